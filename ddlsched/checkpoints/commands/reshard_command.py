"""``ddlsched reshard``: a checkpoint under another parallelism."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.checkpoints.format_names import Format
from ddlsched.cli.option_values import whole
from ddlsched.cli.output import emit, notice
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


def reshard(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or URL of the checkpoint; it is only read.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New folder.", readable=False)],
    to: Annotated[
        str,
        typer.Option(
            help="The new parallelism, e.g. tp=4,pp=2,dp=2; what is left out is 1.",
            metavar="DEGREES",
            show_default="as in SRC",
        ),
    ] = "",
    stages: Annotated[
        str,
        typer.Option(
            help="The new stage of each layer, e.g. 0,1,1,1.",
            metavar="STAGES",
            show_default="as in SRC for the same pp, else even",
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all back: contents as saved, replicas equal; takes longer.")
    ] = False,
    digest: Annotated[
        Hash,
        typer.Option(help="For --verify, and checked if SRC records it; sha256 also resists intent, and is slower."),
    ] = Hash.xxh3,
    lost: Annotated[
        str, typer.Option(help="Ranks whose files are gone, e.g. 4,5; replicas serve for them.", metavar="RANKS")
    ] = "",
    buffer_mb: Annotated[int, typer.Option(help="Most memory for data on its way.", metavar="N", parser=whole)] = 64,
    gpus_per_host: Annotated[
        int,
        typer.Option(
            help="Devices of a host, before and after.",
            metavar="N",
            parser=whole,
            show_default="as the checkpoint says",
            rich_help_panel=_HOSTS,
        ),
    ] = 0,
    host: Annotated[
        int,
        typer.Option(
            help="Write only this host's ranks.",
            metavar="N",
            parser=whole,
            show_default="all",
            rich_help_panel=_HOSTS,
        ),
    ] = -1,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Where the files of a host's ranks are, if not in SRC; once for each such host.",
            metavar="HOST=URL",
            rich_help_panel=_HOSTS,
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            help="If SRC is PyTorch's: a checkpoint with the same tensors, which says how each is divided.",
            metavar="DIR",
            show_default="as in SRC",
            rich_help_panel=_FORMATS,
        ),
    ] = None,
    write: Annotated[
        Format, typer.Option("--format", help="What DST becomes.", rich_help_panel=_FORMATS)
    ] = Format.safetensors,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan and times as one JSON object.")] = False,
) -> None:
    """Write a checkpoint under another parallelism or in another format, moving the least data.

    SRC may be this program's, a PyTorch distributed checkpoint, Megatron-core's, a Hugging Face directory, or a file
    of torch.save.
    A run that was stopped goes on where it was when it is started again. docs/reconfiguration.md has the formats.
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
    found = _opened(source, like, lost_ranks, dict(map(_peer, peer or [])), gpus_per_host)
    origin = reading_for(write, found)
    wanted = degrees or origin.job.parallelism
    if left := num_left_out(write, found):
        notice(f"left out what {write.value} has no place for: {left} tensors, objects, files or other values")
    if verify and (unknown := len(set(origin.job.by_name) - set(getattr(origin.checkpoint, digest.value)))):
        notice(f"no {digest.value} hash of {unknown} tensors in {source}: damage that they have already is not found")
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
            digest=digest.value,
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
