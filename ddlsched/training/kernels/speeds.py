"""Measured kernels as a table, and what they say of how far a GPU stays below its data sheet."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import cell_number, csv_rows, readable
from ddlsched.training.estimate.hardware import Efficiency, Gpu

__all__ = ["Kernel", "KernelSpeeds", "kernel_speeds", "read_kernels", "write_kernels"]

_MOST_SHARE = 1.15
"""Of a data sheet's figure; what is above was measured on another GPU."""
_LONG = 2048
"""Tokens from which on attention is no longer short of work."""


class Kernel(NamedTuple):
    """A measured kernel.

    Parameters
    ----------
    gpu
        On which, by its driver's name.
    kernel
        ``product``, ``attention`` or ``copy``.
    precision
        Of a product.
    size
        Rows, inner size and columns of a product; tokens of a sequence; numbers copied.
    flops, traffic_bytes
        Its operations, and bytes that it reads and writes.
    seconds
        Its time.
    """

    gpu: str
    kernel: str
    precision: str
    size: str
    flops: float
    traffic_bytes: float
    seconds: float


def write_kernels(kernels: Iterable[Kernel], path: Path) -> None:
    """Write a row a kernel."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Kernel._fields)
        writer.writerows(kernels)


def read_kernels(path: Path) -> list[Kernel]:
    """Return the kernels of a file.

    Raises
    ------
    InputError
        The file cannot be read, lacks a column, or has a number that is none.
    """
    rows = readable(path, "measured kernels", lambda found: list(csv_rows(found, Kernel._fields, ())))
    kernels = []
    for where, row in rows:
        numbers = [cell_number(where, name, row[name]) for name in Kernel._fields[4:]]
        if numbers[-1] == 0:
            raise InputError(f"{where}, column seconds: is 0; expected a time > 0")
        kernels.append(Kernel(*(row[name] for name in Kernel._fields[:4]), *numbers))
    if not any(one.kernel == "product" for one in kernels):
        raise InputError(f"{path}: has no products; expected a file that 'calibrate-gpu' wrote")
    return kernels


class KernelSpeeds(NamedTuple):
    """Constants of a GPU from its kernels, and how far these are met: the mean error of all products."""

    constants: Mapping[str, Any]
    error: float

    def given_to(self, efficiency: Efficiency) -> Efficiency:
        """Return an efficiency with these constants; what kernels alone do not tell stays."""
        both = {**efficiency.by_precision, **self.constants["by_precision"]}
        return dataclasses.replace(efficiency, **{**self.constants, "by_precision": both})


def kernel_speeds(kernels: Sequence[Kernel], gpu: Gpu) -> KernelSpeeds:
    """Return what kernels say of a GPU, by its data sheet.

    A product takes the longer of moving its bytes and ``(flops + half_flops) / (matrix x peak)``; each precision has
    its own ``matrix``, and all have one ``half_flops``, which makes small products slow.

    Raises
    ------
    InputError
        They are faster than the GPU can be, or in a precision that it does not have.
    """
    from scipy.optimize import least_squares

    products = [one for one in kernels if one.kernel == "product"]
    precisions = sorted({one.precision for one in products})
    which = np.array([precisions.index(one.precision) for one in products])
    flops, traffic_bytes, seconds = (
        np.array([getattr(one, name) for one in products]) for name in ("flops", "traffic_bytes", "seconds")
    )
    peaks = np.array([gpu.peak(precision) for precision in precisions])  # type: ignore[arg-type]
    moving_s = traffic_bytes / (gpu.memory_bytes_per_s * min(_copied(kernels, gpu), 1.0))

    def ratios(logs: np.ndarray) -> np.ndarray:
        told: np.ndarray = np.log(predicted_s(logs) / seconds)
        return told

    def predicted_s(logs: np.ndarray) -> np.ndarray:
        half_flops, *shares = np.exp(logs)
        longest: np.ndarray = np.maximum(moving_s, (flops + half_flops) / (np.array(shares) * peaks)[which])
        return longest

    start = np.log([1e9, *np.full(len(precisions), 0.7)])
    found = least_squares(ratios, start, loss="soft_l1", f_scale=0.1).x
    half_flops, *shares = np.exp(found).tolist()
    by_precision = dict(zip(precisions, shares, strict=True))
    attention = _attention(kernels, gpu)
    for what, share in {**by_precision, "attention": attention / 2}.items():
        if share > _MOST_SHARE:
            raise InputError(
                f"{kernels[0].gpu}: kernels ({what}) reach {share:.2f} of the peak of {gpu.name}; "
                "expected those of the GPU of --cluster"
            )
    matrix = by_precision.pop("half", next(iter(by_precision.values()), 1.0))
    constants = {"matrix": matrix, "half_flops": half_flops, "by_precision": by_precision, "attention": attention}
    return KernelSpeeds(constants, float(np.abs(predicted_s(found) / seconds - 1).mean()))


def _copied(kernels: Sequence[Kernel], gpu: Gpu) -> float:
    """Return the share of the memory's bandwidth that the fastest copy reaches."""
    reached = [one.traffic_bytes / one.seconds for one in kernels if one.kernel == "copy"]
    return max(reached, default=float(gpu.memory_bytes_per_s)) / float(gpu.memory_bytes_per_s)


def _attention(kernels: Sequence[Kernel], gpu: Gpu) -> float:
    """Return the share of the peak that attention over long sequences reaches, all pairs of tokens counted."""
    attention = [one for one in kernels if one.kernel == "attention"]
    told = [one for one in attention if int(one.size) >= _LONG] or attention
    peak = float(gpu.peak("half"))
    return float(np.exp(np.mean([np.log(one.flops / one.seconds / peak) for one in told]))) if told else 1.0
