"""``ddlsched reshard``: a checkpoint under another parallelism."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.numbers import whole
from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.reconfiguration.file_forms import FileForm
    from ddlsched.reconfiguration.reading import Reading

__all__ = ["reshard"]

_HOSTS = "Hosts"
_TORCH = "PyTorch distributed checkpoints"


class Format(StrEnum):
    """What is written."""

    safetensors = "safetensors"
    torch = "torch"


def reshard(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Folder or URL of the checkpoint; it is only read.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New folder.", readable=False)],
    to: Annotated[
        str, typer.Option(help="The new parallelism, e.g. tp=4,pp=2,dp=2; what is left out is 1.", metavar="DEGREES")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all back: contents as saved, replicas equal; takes longer.")
    ] = False,
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
            help="If SRC is one: a checkpoint with the same tensors, which says how each is divided.",
            metavar="DIR",
            show_default="SRC/ddlsched.json",
            rich_help_panel=_TORCH,
        ),
    ] = None,
    write: Annotated[
        Format, typer.Option("--format", help="What DST becomes.", rich_help_panel=_TORCH)
    ] = Format.safetensors,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan and times as one JSON object.")] = False,
) -> None:
    """Write a checkpoint under another parallelism, moving the least data.

    A run that was stopped goes on where it was when it is started again. docs/reconfiguration.md has the format.
    """
    from ddlsched.cli import reshard_output as output
    from ddlsched.io.progress import bytes_bar
    from ddlsched.reconfiguration import resharding
    from ddlsched.reconfiguration.parallelism import parse_parallelism

    if buffer_mb < 1:
        raise InputError(f"--buffer-mb {buffer_mb}: expected a whole number from 1")
    wanted, ranks = parse_parallelism(to), _numbers(lost)
    peers = dict(map(_peer, peer or []))
    origin = _read(source, like)
    if dry_run:
        found = resharding.planned(origin, wanted, lost=ranks, peers=peers, gpus_per_host=gpus_per_host)
        emit(json.dumps(output.numbers(found), indent=2) + "\n" if as_json else output.text(found))
        return
    with bytes_bar() as watch:
        done = resharding.reshard(
            origin,
            destination,
            to=wanted,
            form=_form(write),
            lost=ranks,
            host=None if host < 0 else host,
            peers=peers,
            gpus_per_host=gpus_per_host,
            verify=verify,
            buffer_bytes=buffer_mb * 1_000_000,
            watch=watch,
        )
    numbers = output.numbers(done.plan) | output.times(done)
    emit(json.dumps(numbers, indent=2) + "\n" if as_json else output.text(done.plan))
    notice(f"wrote {output.summary(done, destination)}")


def _form(write: Format) -> FileForm:
    from ddlsched.reconfiguration.distributed_writing import TORCH_FILES
    from ddlsched.reconfiguration.file_forms import RANK_FILES

    return {Format.safetensors: RANK_FILES, Format.torch: TORCH_FILES}[write]


def _read(source: str, like: str | None) -> str | Reading:
    """Return a PyTorch distributed checkpoint as a reading, anything else as it is."""
    from ddlsched.reconfiguration.distributed_reading import is_distributed, read_distributed

    return read_distributed(source, like) if like is not None or is_distributed(source) else source


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal()]
    if wrong:
        raise InputError(f"--lost {text}: {wrong[0]!r} is no rank; expected whole numbers such as 4,5")
    return [int(part) for part in parts]


def _peer(text: str) -> tuple[int, str]:
    host, _, where = text.partition("=")
    if not host.isdecimal() or not where:
        raise InputError(f"--peer {text}: expected HOST=URL, such as 1=http://host1:8000/checkpoint")
    return int(host), where
