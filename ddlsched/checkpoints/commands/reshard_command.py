"""``ddlsched reshard``: a checkpoint under another parallelism."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ddlsched.checkpoints.commands.reshard_run import run_reshard
from ddlsched.checkpoints.format_names import Format
from ddlsched.cli.numbers import whole

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
    run_reshard(
        source,
        destination,
        to=to,
        stages=stages,
        dry_run=dry_run,
        verify=verify,
        lost=lost,
        buffer_mb=buffer_mb,
        gpus_per_host=gpus_per_host,
        host=host,
        like=like,
        write=write,
        as_json=as_json,
        digest=digest.value,
        peers=peer or [],
    )
