"""What ``ddlsched reshard`` does, its arguments read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.checkpoints.format_names import Format
from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.checkpoints.content import Digest
    from ddlsched.checkpoints.reading import Reading

__all__ = ["run_reshard"]


def run_reshard(
    source: str,
    destination: Path,
    *,
    to: str = "",
    stages: str = "",
    dry_run: bool = False,
    verify: bool = False,
    digest: Digest = "xxh3",
    lost: str = "",
    buffer_mb: int = 64,
    gpus_per_host: int = 0,
    host: int = -1,
    peers: Sequence[str] = (),
    like: str | None = None,
    write: Format = Format.safetensors,
    as_json: bool = False,
) -> None:
    """Write a checkpoint under another parallelism; the arguments are those of the command line.

    Raises
    ------
    InputError
        Something cannot be used: the message names it.
    """
    from ddlsched.checkpoints.read_ahead import begin_reading

    begin_reading(source)  # The disk is at work while the rest is imported.
    from ddlsched.checkpoints import resharding
    from ddlsched.checkpoints.commands import reshard_output as output
    from ddlsched.checkpoints.formats import form_of, num_left_out, reading_for
    from ddlsched.checkpoints.parallelism import parse_parallelism
    from ddlsched.io.progress import bytes_bar

    if buffer_mb < 1:
        raise InputError(f"--buffer-mb {buffer_mb}: expected a whole number from 1")
    degrees = parse_parallelism(to) if to else None
    lost_ranks, map_of_stages = _numbers("--lost", lost), _numbers("--stages", stages)
    found = _opened(source, like, lost_ranks, dict(map(_peer, peers)), gpus_per_host)
    origin = reading_for(write, found)
    wanted = degrees or origin.job.parallelism
    if left := num_left_out(write, found):
        notice(f"left out what {write.value} has no place for: {left} tensors, objects, files or other values")
    if verify and (unknown := len(set(origin.job.by_name) - set(getattr(origin.checkpoint, digest)))):
        notice(f"no {digest} hash of {unknown} tensors in {source}: damage that they have already is not found")
    if dry_run:
        plan = resharding.planned(origin, wanted, gpus_per_host=gpus_per_host, stages=map_of_stages)
        emit(json.dumps(output.numbers(plan), indent=2) + "\n" if as_json else output.text(plan))
        return
    with bytes_bar() as watch:
        done = resharding.reshard(
            origin,
            destination,
            to=wanted,
            form=form_of(write),
            host=None if host < 0 else host,
            gpus_per_host=gpus_per_host,
            stages=map_of_stages,
            verify=verify,
            digest=digest,
            buffer_bytes=buffer_mb * 1_000_000,
            watch=watch,
        )
    if as_json:
        emit(json.dumps(output.numbers(done.plan) | output.times(done), indent=2) + "\n")
    elif write is Format.safetensors:
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
