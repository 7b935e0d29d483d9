"""``ddlsched calibrate-gpu``: kernels measured on a GPU at hand, for ``estimate --gpu``."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.option_values import whole
from ddlsched.cli.output import notice
from ddlsched.errors import InputError
from ddlsched.io.files import refuse_unwritable, replacing

__all__ = ["calibrate_gpu"]

_LEAST = 128


def calibrate_gpu(
    out: Annotated[Path, typer.Option(help="Where to write the kernels and their times.", metavar="FILE.csv")],
    device: Annotated[str, typer.Option(help="Where they run: cuda or cpu.")] = "cuda",
    shapes: Annotated[int, typer.Option(help="Sizes of products.", metavar="N", parser=whole)] = 200,
    largest: Annotated[int, typer.Option(help="Side of the largest product.", metavar="N", parser=whole)] = 16384,
) -> None:
    """Measure kernels on the GPU of this machine, in less than ten minutes.

    Matrix products of many sizes in two precisions, and attention forward and backward over growing sequences.
    'estimate --gpu FILE.csv' takes them in place of a program's published steps.
    """
    from ddlsched.training.kernels.measuring import measured_kernels
    from ddlsched.training.kernels.speeds import write_kernels

    if device not in ("cuda", "cpu"):
        raise InputError(f"--device {device}: expected cuda or cpu")
    for name, value, least in (("--shapes", shapes, 1), ("--largest", largest, _LEAST)):
        if value < least:
            raise InputError(f"{name} {value}: expected a whole number from {least}")
    refuse_unwritable(out, "--out")
    measured = measured_kernels(device, shapes=shapes, largest=largest)
    first = next(measured)
    kernels = list(itertools.chain([first], measured))
    with replacing(out, "--out") as file:
        write_kernels(kernels, file)
    notice(f"wrote {len(kernels)} kernels of {first.gpu} to {out}")
