"""``ddlsched report``: a comparison as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.reporting import notice, status

__all__ = ["report"]


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that 'ddlsched compare' wrote.", readable=False)
    ],
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write.", metavar="FILE.html", show_default="DIR/report.html")
    ] = None,
) -> None:
    """Write a comparison as one HTML file with tables and interactive charts that opens without a network.

    Also draws its charts for papers, PNG and SVG, into DIR/charts.
    """
    with status(f"reporting on {folder}"):
        from ddlsched.comparisons.report.html_report import report as write

        path = write(folder, out)
    notice(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
