"""What ``ddlsched reshard`` shows of a plan: totals, a table of hosts, and who sends what to whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlsched.checkpoints.collection import TensorCollection
    from ddlsched.checkpoints.plan import ReshardPlan, Way
    from ddlsched.checkpoints.resharding import Outcome

__all__ = ["numbers", "summary", "text", "times"]

_WAYS: dict[Way, str] = {
    "kept": "kept on the device",
    "host": "copied within the host",
    "network": "fetched from other hosts",
    "relayed": "handed on within the host",
}
_MOST_RANKS = 32
_NAMED = 8
_SHADES = "·░▒▓█"


def numbers(plan: ReshardPlan) -> dict[str, Any]:
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


def times(done: Outcome) -> dict[str, Any]:
    """Return what was done, as plain numbers."""
    names = ("written_bytes", "resumed_bytes", "plan_s", "copy_s", "verify_s")
    return {name: getattr(done, name) for name in names}


def summary(done: Outcome, destination: Path) -> str:
    """Return one line about a run."""
    copied_bytes = done.written_bytes - done.resumed_bytes
    resumed = f", {_size(done.resumed_bytes)} of it in an earlier run" if done.resumed_bytes else ""
    checked = f", checked in {done.verify_s:.1f} s" if done.verify_s > 0.001 else ""
    rate = f" ({copied_bytes / done.copy_s / 1e9:.2f} GB/s)" if done.copy_s else ""
    planned = f"planned in {done.plan_s:.2f} s, copied in {done.copy_s:.1f} s{rate}{checked}"
    return f"{_size(done.written_bytes)} to {destination}{resumed}: {planned}"


def text(plan: ReshardPlan) -> str:
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
        (plan.new, columns, "new {}s are no columns, as they receive nothing"),
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
