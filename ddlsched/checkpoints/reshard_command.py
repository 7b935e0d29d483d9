"""``ddlsched reshard``: a checkpoint under another parallelism."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ddlsched.checkpoints.formats import Format
from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice
from ddlsched.errors import InputError
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.checkpoints.collection import TensorCollection
    from ddlsched.checkpoints.plan import ReshardPlan, Way
    from ddlsched.checkpoints.reading import Reading
    from ddlsched.checkpoints.resharding import Outcome

_HOSTS = "Hosts"
_FORMATS = "Formats of other programs"


class Hash(StrEnum):
    """What contents are compared by."""

    xxh3 = "xxh3"
    sha256 = "sha256"


@dataclass(frozen=True, kw_only=True)
class ReshardOptions:
    """What is written, from what, and by which host.

    Parameters
    ----------
    to
        The new parallelism, e.g. tp=4,pp=2,dp=2; what is left out is 1.
    stages
        The new stage of each layer, e.g. 0,1,1,1.
    dry_run
        Only show the plan.
    verify
        Read all back: contents as saved, replicas equal; takes longer.
    digest
        For --verify, and checked if SRC records it; sha256 also resists intent, and is slower.
    lost
        Ranks whose files are gone, e.g. 4,5; replicas serve for them.
    buffer_mb
        Most memory for data on its way.
    gpus_per_host
        Devices of a host, before and after.
    host
        Write only this host's ranks.
    peer
        Where the files of a host's ranks are, if not in SRC, a host each.
    like
        If SRC is PyTorch's: a checkpoint with the same tensors, which says how each is divided.
    write
        What DST becomes.
    as_json
        Print plan and times as one JSON object.
    """

    to: str = option("", metavar="DEGREES", shown="as in SRC")
    stages: str = option("", metavar="STAGES", shown="as in SRC for the same pp, else even")
    dry_run: bool = False
    verify: bool = False
    digest: Hash = Hash.xxh3
    lost: str = option("", metavar="RANKS")
    buffer_mb: int = 64
    gpus_per_host: int = option(0, shown="as the checkpoint says", panel=_HOSTS)
    host: int = option(-1, shown="all", panel=_HOSTS)
    peer: Sequence[str] = option((), metavar="HOST=URL", panel=_HOSTS)
    like: str | None = option(None, metavar="DIR", shown="as in SRC", panel=_FORMATS)
    write: Format = option(Format.safetensors, flag="--format", panel=_FORMATS)
    as_json: bool = False


def reshard(
    source: Annotated[str, Option(metavar="SRC")],
    destination: Annotated[Path, Option(metavar="DST")],
    options: Annotated[Given[ReshardOptions], Panel(several=("peer",))],
) -> None:
    """Write a checkpoint under another parallelism or in another format, moving the least data.

    SRC may be this program's, a PyTorch distributed checkpoint, Megatron-core's, a Hugging Face directory, or a file
    of torch.save.
    A run that was stopped goes on where it was when it is started again. docs/reconfiguration.md has the formats.

    Parameters
    ----------
    source
        Folder or URL of the checkpoint; it is only read.
    destination
        New folder.
    """
    from ddlsched.checkpoints.locations import begin_reading

    begin_reading(source)  # The disk is at work while the rest is imported.
    from ddlsched.checkpoints import resharding
    from ddlsched.checkpoints.collection import parse_parallelism
    from ddlsched.checkpoints.formats import form_of, num_left_out, reading_for
    from ddlsched.io.progress import bytes_bar

    asked = options.made()
    if asked.buffer_mb < 1:
        raise InputError(f"--buffer-mb {asked.buffer_mb}: expected a whole number from 1")
    degrees = parse_parallelism(asked.to) if asked.to else None
    lost_ranks, map_of_stages = _numbers("--lost", asked.lost), _numbers("--stages", asked.stages)
    found = _opened(source, asked.like, lost_ranks, dict(map(_peer, asked.peer or [])), asked.gpus_per_host)
    origin = reading_for(asked.write, found)
    wanted = degrees or origin.job.parallelism
    if left := num_left_out(asked.write, found):
        notice(f"left out what {asked.write.value} has no place for: {left} tensors, objects, files or other values")
    if asked.verify and (unknown := len(set(origin.job.by_name) - set(getattr(origin.checkpoint, asked.digest.value)))):
        notice(
            f"no {asked.digest.value} hash of {unknown} tensors in {source}: damage that they have already is not found"
        )
    if asked.dry_run:
        plan = resharding.planned(origin, wanted, gpus_per_host=asked.gpus_per_host, stages=map_of_stages)
        emit(json.dumps(plan_numbers(plan), indent=2) + "\n" if asked.as_json else plan_text(plan))
        return
    with bytes_bar() as watch:
        done = resharding.reshard(
            origin,
            destination,
            to=wanted,
            form=form_of(asked.write),
            host=None if asked.host < 0 else asked.host,
            gpus_per_host=asked.gpus_per_host,
            stages=map_of_stages,
            verify=asked.verify,
            digest=asked.digest.value,
            buffer_bytes=asked.buffer_mb * 1_000_000,
            watch=watch,
        )
    if asked.as_json:
        emit(json.dumps(plan_numbers(done.plan) | copy_times(done), indent=2) + "\n")
    elif asked.write is Format.safetensors:
        emit(plan_text(done.plan))
    notice(f"wrote {copy_summary(done, destination)}")


def _opened(source: str, like: str | None, lost: list[int], peers: dict[int, str], gpus_per_host: int) -> Reading:
    """Return a checkpoint of any program as a reading."""
    from ddlsched.checkpoints.formats import foreign_reading
    from ddlsched.checkpoints.reading import Reading

    foreign = foreign_reading(source, like)
    if foreign is None:
        return Reading.at(source, lost, peers, gpus_per_host=gpus_per_host)
    if lost or peers:
        option = "--lost" if lost else "--peer"
        raise InputError(f"{source}: has no files of ranks, which {option} names; expected none for this format")
    return foreign


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise InputError(f"{option} {text}: {wrong[0]!r} is no number; expected whole numbers such as 4,5")
    return [int(part) for part in parts]


def _peer(text: str) -> tuple[int, str]:
    host, _, where = text.partition("=")
    if not host.isdecimal() or not where:
        raise InputError(f"--peer {text}: expected HOST=URL, such as 1=http://host1:8000/checkpoint")
    return int(host), where


_WAYS: dict[Way, str] = {
    "kept": "kept on the device",
    "host": "copied within the host",
    "network": "fetched from other hosts",
    "relayed": "handed on within the host",
}
_MOST_RANKS = 32
_NAMED = 8
_SHADES = "·░▒▓█"


def plan_numbers(plan: ReshardPlan) -> dict[str, Any]:
    """Return a plan as plain numbers."""
    hosts = plan.bytes_between_hosts
    ranks = plan.bytes_between_ranks
    return {
        "from": str(plan.old.parallelism),
        "to": str(plan.new.parallelism),
        "tensors": len(plan.tensors),
        "moves": sum(len(tensor.moves) for tensor in plan.tensors),
        "bytes": dict(plan.bytes_by_way),
        "lower_bound_bytes": sum(plan.lower_bound_bytes.values()),
        "hosts": [{"from": a, "to": b, "bytes": size} for (a, b), size in sorted(hosts.items())],
        "ranks": [{"from": a, "to": b, "way": way, "bytes": size} for (a, b, way), size in sorted(ranks.items())],
    }


def copy_times(done: Outcome) -> dict[str, Any]:
    """Return what was done, as plain numbers."""
    names = ("written_bytes", "resumed_bytes", "plan_s", "copy_s", "verify_s")
    return {name: getattr(done, name) for name in names}


def copy_summary(done: Outcome, destination: Path) -> str:
    """Return one line about a run."""
    copied_bytes = done.written_bytes - done.resumed_bytes
    resumed = f", {_size(done.resumed_bytes)} of it in an earlier run" if done.resumed_bytes else ""
    checked = f", checked in {done.verify_s:.1f} s" if done.verify_s > 0.001 else ""
    rate = f" ({copied_bytes / done.copy_s / 1e9:.2f} GB/s)" if done.copy_s else ""
    planned = f"planned in {done.plan_s:.2f} s, copied in {done.copy_s:.1f} s{rate}{checked}"
    return f"{_size(done.written_bytes)} to {destination}{resumed}: {planned}"


def plan_text(plan: ReshardPlan) -> str:
    """Return a plan for a reader."""
    lines = [f"{_job(plan.old)}  ->  {_job(plan.new)}"]
    bound = sum(plan.lower_bound_bytes.values())
    for way, name in _WAYS.items():
        note = f"   at least {_size(bound)}, whatever the plan" if way == "network" else ""
        lines.append(f"  {name:<28}{_size(plan.bytes_by_way[way]):>12}{note}")
    if plan.bytes_between_hosts:
        lines += ["", *_hosts(plan)]
    return "\n".join([*lines, "", *_picture(plan)]) + "\n"


def _job(collection: TensorCollection) -> str:
    num_hosts = len(set(collection.allocation.hosts))
    return f"{collection.parallelism} ({_count(collection.num_ranks, 'rank')}, {_count(num_hosts, 'host')})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _size(num_bytes: int) -> str:
    unit, factor = next((unit for unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if num_bytes >= unit[1]), ("B", 1))
    return f"{num_bytes / factor:,.{0 if factor == 1 else 2}f} {unit}"


def _hosts(plan: ReshardPlan) -> list[str]:
    """Return a table of what each host sends and receives."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (source, target), size in plan.bytes_between_hosts.items():
        sent[source] += size
        received[target] += size
    lines = [f"  {'host':>6}{'sends':>14}{'receives':>14}{'at least':>14}"]
    for host in sorted(set(sent) | set(plan.lower_bound_bytes)):
        row = (sent[host], received[host], plan.lower_bound_bytes.get(host, 0))
        lines.append(f"  {host:>6}" + "".join(f"{_size(size):>14}" for size in row))
    return lines


def _picture(plan: ReshardPlan) -> list[str]:
    """Return who sends what to whom, as shades: by rank, or by host if there are many ranks."""
    by_rank = max(plan.old.num_ranks, plan.new.num_ranks) <= _MOST_RANKS
    what = "rank" if by_rank else "host"
    sizes: Counter[tuple[int, int]] = Counter()
    kept: set[tuple[int, int]] = set()
    for (source, target, way), size in plan.bytes_between_ranks.items():
        if way == "relayed":
            continue
        ends = (source, target)
        if not by_rank:
            ends = (plan.old.allocation.hosts[source], plan.new.allocation.hosts[target])
        sizes[ends] += size
        if way == "kept":
            kept.add(ends)
    rows, columns = sorted({a for a, _ in sizes}), sorted({b for _, b in sizes})
    most = max(sizes.values(), default=1)
    legend = f"shade: bytes, {_SHADES[-1]} is {_size(most)}" + (", = is kept on the device" if kept else "")
    lines = [f"  from old {what} (down) to new {what} (across); {legend}"]
    lines.append("  " + " " * 6 + "".join(f"{column:>4}" for column in columns))
    lines += [f"  {row:>6}" + "".join(_cell(row, column, sizes, kept, most) for column in columns) for row in rows]
    return lines + _left_out(plan, by_rank, rows, columns)


def _left_out(plan: ReshardPlan, by_rank: bool, rows: Sequence[int], columns: Sequence[int]) -> list[str]:
    """Return a line on the old ranks or hosts that are no rows, and one on the new ones that are no columns."""
    kind = "rank" if by_rank else "host"
    lines = []
    for collection, shown, does in (
        (plan.old, rows, "old {}s are no rows, as they send nothing: others hold the same bytes"),
        (plan.new, columns, "new {}s are no columns: they receive nothing, or what a rank of their host hands on"),
    ):
        numbers = range(collection.num_ranks) if by_rank else collection.allocation.hosts
        missing = sorted(set(numbers) - set(shown))
        if missing:
            names = ", ".join(map(str, missing[:_NAMED])) + (", ..." if len(missing) > _NAMED else "")
            lines.append(f"  {len(missing)} {does.format(kind)} ({names})")
    return lines


def _cell(row: int, column: int, sizes: Mapping[tuple[int, int], int], kept: set[tuple[int, int]], most: int) -> str:
    size = sizes.get((row, column), 0)
    if not size:
        return "    "
    return f" {'=' if (row, column) in kept else ' '}{_shade(size, most, _SHADES) * 2}"


def _shade(size: int, most: int, shades: Sequence[str]) -> str:
    return shades[min(int(size / most * len(shades)), len(shades) - 1)]
