"""Options of the commands that make a job of recorded training: what the job is called, and its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.option_values import real, whole

__all__ = ["AsJson", "CardGbps", "CardLatencyUs", "ChartStem", "JobId", "JobIterations"]

JobIterations = Annotated[int, typer.Option(help="Of the job.", metavar="N", parser=whole)]
JobId = Annotated[str, typer.Option(help="Of the job.", metavar="TEXT")]
CardGbps = Annotated[
    float, typer.Option(help="Network card of each rank, for the summary.", metavar="GBIT/S", parser=real)
]
CardLatencyUs = Annotated[
    float, typer.Option(help="Of a step from rank to rank, for the summary.", metavar="US", parser=real)
]
ChartStem = Annotated[Path | None, typer.Option(metavar="STEM", help="Draw the iteration into STEM.png and STEM.svg.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]
