"""``ddlsched reshard``: a checkpoint under another parallelism."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.checkpoints.formats import Format
from ddlsched.cli.dataclass_options import Given, Panel, option, with_options
from ddlsched.cli.reporting import emit, notice
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.checkpoints.reading import Reading

__all__ = ["reshard"]

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
    as_json: bool = option(False, flag="--json")


@with_options
def reshard(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or URL of the checkpoint; it is only read.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New folder.", readable=False)],
    options: Annotated[Given[ReshardOptions], Panel(several=("peer",))],
) -> None:
    """Write a checkpoint under another parallelism or in another format, moving the least data.

    SRC may be this program's, a PyTorch distributed checkpoint, Megatron-core's, a Hugging Face directory, or a file
    of torch.save.
    A run that was stopped goes on where it was when it is started again. docs/reconfiguration.md has the formats.
    """
    from ddlsched.checkpoints.locations import begin_reading

    begin_reading(source)  # The disk is at work while the rest is imported.
    from ddlsched.checkpoints import resharding
    from ddlsched.checkpoints.collection import parse_parallelism
    from ddlsched.checkpoints.commands import reshard_output as output
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
        emit(json.dumps(output.numbers(plan), indent=2) + "\n" if asked.as_json else output.text(plan))
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
        emit(json.dumps(output.numbers(done.plan) | output.times(done), indent=2) + "\n")
    elif asked.write is Format.safetensors:
        emit(output.text(done.plan))
    notice(f"wrote {output.summary(done, destination)}")


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
