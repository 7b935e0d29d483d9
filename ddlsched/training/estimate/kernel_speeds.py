"""Kernels measured under PyTorch, as a table, and what they say of how far a GPU stays below its data sheet."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import InputError, abbreviated, need
from ddlsched.io.tables import cell_number, csv_rows, readable
from ddlsched.training.estimate.hardware import NARROW_HEAD, WIDE_HEAD, Efficiency, Gpu

if TYPE_CHECKING:
    import torch

STEP_ERROR = 0.06
"""Of steps on one H100 or H200, none of which is fitted: experiments/step_times/expected/own_errors.csv."""
_MOST_SHARE = 1.15
"""Of a data sheet's figure; what is above was measured on another GPU."""
_ATTENDED = re.compile(r"[1-9]\d{0,8}x[1-9]\d{0,8}")
_LONG = 2048
"""Tokens from which on attention is no longer short of work."""


class Kernel(NamedTuple):
    """A measured kernel.

    Parameters
    ----------
    gpu
        On which, by its driver's name.
    kernel
        ``product``, ``attention``, ``elementwise`` or ``copy``.
    precision
        Of a product.
    size
        Rows, inner size and columns of a product; tokens of a sequence and numbers of a head; numbers copied.
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
    pd.DataFrame(kernels, columns=Kernel._fields).to_csv(path, index=False, lineterminator="\n")


def read_kernels(path: Path) -> list[Kernel]:
    """Return the kernels of a file.

    Raises
    ------
    InputError
        The file cannot be read, lacks a column, or has a number that is none or tells nothing.
    """
    rows = readable(path, "measured kernels", lambda found: list(csv_rows(found, Kernel._fields, ())))
    kernels = []
    for where, row in rows:
        needed = "traffic_bytes" if row["kernel"] in ("elementwise", "copy") else "flops", "seconds"
        names = Kernel._fields[4:]
        numbers = {name: cell_number(where, name, row[name], positive=name in needed) for name in names}
        if row["kernel"] == "attention" and not _ATTENDED.fullmatch(row["size"]):
            raise InputError(
                f"{where}, column size: is {abbreviated(row['size'])}; expected tokens x numbers of a head, such as "
                "2048x128, as 'calibrate-gpu' writes them"
            )
        kernels.append(Kernel(*(row[name] for name in Kernel._fields[:4]), *numbers.values()))
    if not any(one.kernel == "product" for one in kernels):
        raise InputError(f"{path}: has no products; expected a file that 'calibrate-gpu' wrote")
    return kernels


class KernelSpeeds(NamedTuple):
    """Constants of a GPU from its kernels: those of products and attention, and of all else that a step does.

    ``error`` says how far products are met: their mean error. ``others`` is empty where kinds of kernels are missing.
    """

    constants: Mapping[str, Any]
    others: Mapping[str, Any]
    error: float

    def given_to(self, efficiency: Efficiency) -> Efficiency:
        """Return a program's efficiency with these products and attention; what it loses beside them stays."""
        both = {**efficiency.by_precision, **self.constants["by_precision"]}
        return dataclasses.replace(efficiency, **{**self.constants, "by_precision": both})

    def alone(self) -> Efficiency:
        """Return the efficiency of a GPU that trains by itself, of which kernels tell all."""
        return Efficiency(**self.constants, **self.others)


def kernel_speeds(kernels: Sequence[Kernel], gpu: Gpu) -> KernelSpeeds:
    """Return what kernels say of a GPU, by its data sheet.

    A product takes the longest of its launch, moving its bytes, and ``(flops + half_flops) / (matrix x peak)``; each
    precision has its own ``matrix``, and all have one launch and one ``half_flops``, which makes small products slow.

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
    moving_s = traffic_bytes / (gpu.memory_bytes_per_s * _moved(kernels, gpu, "copy"))

    def ratios(logs: np.ndarray) -> np.ndarray:
        told: np.ndarray = np.log(predicted_s(logs) / seconds)
        return told

    def predicted_s(logs: np.ndarray) -> np.ndarray:
        launch_s, half_flops, *shares = np.exp(logs)
        computing_s = (flops + half_flops) / (np.array(shares) * peaks)[which]
        longest: np.ndarray = np.maximum(np.maximum(moving_s, computing_s), launch_s)
        return longest

    start = np.log([seconds.min(), 1e9, *np.full(len(precisions), 0.7)])
    found = least_squares(ratios, start, loss="soft_l1", f_scale=0.1).x
    launch_s, half_flops, *shares = np.exp(found).tolist()
    by_precision = dict(zip(precisions, shares, strict=True))
    attention = _attention(kernels, gpu, WIDE_HEAD)
    for what, share in {**by_precision, "attention": attention / 2}.items():
        if share > _MOST_SHARE:
            raise InputError(
                f"{kernels[0].gpu}: kernels ({what}) reach {share:.2f} of the peak of {gpu.name}; "
                "expected those of the GPU of --cluster"
            )
    matrix = by_precision.pop("half", next(iter(by_precision.values()), 1.0))
    constants = {
        "matrix": matrix,
        "half_flops": half_flops,
        "by_precision": by_precision,
        "attention": attention,
        "narrow": min(_attention(kernels, gpu, NARROW_HEAD) / attention, 1.0),
    }
    whole = {"attention", "elementwise"} <= {one.kernel for one in kernels}
    others = {"memory": _moved(kernels, gpu, "elementwise"), "launch_s": launch_s} if whole else {}
    return KernelSpeeds(constants, others, float(np.abs(predicted_s(found) / seconds - 1).mean()))


def _moved(kernels: Sequence[Kernel], gpu: Gpu, kind: str) -> float:
    """Return the share of the memory's bandwidth that kernels of a kind reach, one after another; without any 1."""
    own = [one for one in kernels if one.kernel == kind]
    most_bytes = float(gpu.memory_bytes_per_s) * sum(one.seconds for one in own)
    return min(sum(one.traffic_bytes for one in own) / most_bytes, 1.0) if own else 1.0


def _attention(kernels: Sequence[Kernel], gpu: Gpu, width: int) -> float:
    """Return the share of the peak that attention over long sequences reaches, all pairs of tokens counted.

    Without heads of this width it is that of all; without attention it is 1.
    """
    every = [one for one in kernels if one.kernel == "attention"]
    own = [one for one in every if one.size.endswith(f"x{width}")] or every
    told = [one for one in own if int(one.size.split("x")[0]) >= _LONG] or own
    return float(np.exp(np.mean([np.log(one.flops / one.seconds) for one in told])) / gpu.peak("half")) if told else 1.0


_LEAST_SIZE = 128
_HIDDEN, _TOKENS = 2048, 16384
_EACH_S = 0.25
"""Time to repeat a kernel for: 400 products and what is beside them then take a few minutes."""


def measured_kernels(device: str, *, shapes: int, largest: int) -> Iterator[Kernel]:
    """Yield each kernel as it has been measured: products of ``shapes`` sizes up to ``largest``, attention, a copy.

    Products are in half and, where the device has them, in 8 bits, else in single precision. Attention is causal, as
    PyTorch chooses it, and its backward counts; its operations are those of all pairs of tokens, as the estimate counts
    them. Elementwise are a norm and an activation, backward too, and a sum.

    Raises
    ------
    InputError
        PyTorch is not installed, or has no such device.
    """
    torch = _torch(device)
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    eight = device == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    for m, k, n in _shapes(shapes, largest):
        for precision in ("half", "fp8" if eight else "single"):
            seconds = _seconds(torch, device, _product(torch, device, precision, m, k, n))
            moved = {"half": 2, "single": 4, "fp8": 1}[precision] * (m * k + k * n) + 2 * m * n
            yield Kernel(gpu, "product", precision, f"{m}x{k}x{n}", 2.0 * m * k * n, float(moved), seconds)
    for width in (WIDE_HEAD, NARROW_HEAD):
        sequence = min(512, largest)
        while sequence <= min(_TOKENS, largest):
            batch = max(1, min(_TOKENS, 4 * largest) // sequence)
            flops = 3.5 * 4.0 * batch * _HIDDEN * sequence**2
            moved_bytes = 12.0 * 2 * batch * _HIDDEN * sequence
            seconds = _seconds(torch, device, _attention_times(torch, device, batch, sequence, width))
            yield Kernel(gpu, "attention", "half", f"{sequence}x{width}", flops, moved_bytes, seconds)
            sequence *= 2
    rows = min(_TOKENS, largest)
    for name, passes, run in _elementwise(torch, device, rows):
        seconds = _seconds(torch, device, run)
        yield Kernel(gpu, "elementwise", "half", name, 0.0, 2.0 * passes * rows * _HIDDEN, seconds)
    size = largest**2
    yield Kernel(gpu, "copy", "half", f"{size}", 0.0, 4.0 * size, _seconds(torch, device, _copy(torch, device, size)))


def _torch(device: str) -> Any:
    need("calibrate-gpu", "torch", extra="training")
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("calibrate-gpu: PyTorch finds no GPU; expected one, or --device cpu --largest 512 to try it")
    return torch


def _shapes(count: int, largest: int) -> list[tuple[int, int, int]]:
    """Return sizes of products, whose sides are powers of two and half as much again; the largest is the first."""
    powers = [size for power in range(7, 31) if (size := 2**power) <= largest]
    sides = sorted({*powers, *(3 * size // 2 for size in powers if 3 * size // 2 <= largest)}) or [_LEAST_SIZE]
    every = list(itertools.product(sides, repeat=3))
    drawn = np.random.default_rng(0).permutation(len(every) - 1)[: count - 1]
    return [every[-1], *(every[number] for number in drawn)]


def _product(torch: Any, device: str, precision: str, m: int, k: int, n: int) -> Callable[[], object]:
    """Return a product; one of 8 bits has its second matrix by columns, as the tensor cores want it."""
    torch.backends.cuda.matmul.allow_tf32 = True
    make = functools.partial(torch.randn, device=device)
    if precision == "fp8":
        one, other = make((m, k)).to(torch.float8_e4m3fn), make((n, k)).to(torch.float8_e4m3fn).t()
        scale = torch.ones((), device=device)
        return lambda: torch._scaled_mm(one, other, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    one, other = (make(size, dtype=torch.bfloat16 if precision == "half" else None) for size in ((m, k), (k, n)))
    return lambda: one @ other


def _attention_times(torch: Any, device: str, batch: int, sequence: int, width: int) -> Callable[[], object]:
    size = (batch, _HIDDEN // width, sequence, width)
    parts = [torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    gradient = torch.ones(size, device=device, dtype=torch.bfloat16)

    def both() -> object:
        attended = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return torch.autograd.grad(attended, parts, gradient)

    return both


def _elementwise(torch: Any, device: str, rows: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield each kernel's name, how often it reads or writes its numbers, and what runs it."""
    numbers = torch.randn((rows, _HIDDEN), device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(_HIDDEN, device=device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.ones_like(numbers)
    functional = torch.nn.functional

    def norm() -> object:
        return torch.autograd.grad(functional.rms_norm(numbers, (_HIDDEN,), weight), (numbers, weight), gradient)

    def activation() -> object:
        return torch.autograd.grad(functional.gelu(numbers), numbers, gradient)

    yield "norm", 5, norm
    yield "activation", 5, activation
    yield "sum", 3, lambda: numbers.detach() + gradient


def _copy(torch: Any, device: str, size: int) -> Callable[[], object]:
    source: torch.Tensor = torch.randn(size, device=device, dtype=torch.bfloat16)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _seconds(torch: Any, device: str, run: Callable[[], object]) -> float:
    """Return the mean time of a kernel that runs again and again, after some runs that are not counted."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    started = time.perf_counter()
    run()
    run()
    wait()
    once_s = (time.perf_counter() - started) / 2
    count = int(np.clip(_EACH_S / max(once_s, 1e-6), 1, 1000))
    started = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - started) / count
