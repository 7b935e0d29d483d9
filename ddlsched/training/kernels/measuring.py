"""Times of kernels under PyTorch: matrix products in two precisions, attention forward and backward, a copy."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.training.kernels.speeds import Kernel

if TYPE_CHECKING:
    import torch

__all__ = ["measured_kernels"]

_LEAST_SIZE = 128
_HEADS, _WIDTH, _TOKENS = 16, 128, 16384
_EACH_S = 0.25
"""Time to repeat a kernel for: 400 products and what is beside them then take a few minutes."""


def measured_kernels(device: str, *, shapes: int, largest: int) -> Iterator[Kernel]:
    """Yield each kernel as it has been measured: products of ``shapes`` sizes up to ``largest``, attention, a copy.

    Products are in half and, where the device has them, in 8 bits, else in single precision. Attention is causal and
    its backward counts; its operations are those of all pairs of tokens, as the estimate counts them.

    Raises
    ------
    InputError
        PyTorch is not installed, or has no such device.
    """
    torch = _torch(device)
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    eight = device == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    second = ("fp8", _product_8_bits) if eight else ("single", _product_single)
    for m, k, n in _shapes(shapes, largest):
        for precision, make in (("half", _product_half), second):
            seconds = _seconds(torch, device, make(torch, device, m, k, n))
            moved = {"half": 2, "single": 4, "fp8": 1}[precision] * (m * k + k * n) + 2 * m * n
            yield Kernel(gpu, "product", precision, f"{m}x{k}x{n}", 2.0 * m * k * n, float(moved), seconds)
    sequence = min(512, largest)
    while sequence <= min(_TOKENS, largest):
        batch = max(1, min(_TOKENS, 4 * largest) // sequence)
        flops = 3.5 * 4.0 * batch * _HEADS * _WIDTH * sequence**2
        moved_bytes = 12.0 * 2 * batch * _HEADS * _WIDTH * sequence
        seconds = _seconds(torch, device, _attention(torch, device, batch, sequence))
        yield Kernel(gpu, "attention", "half", f"{sequence}", flops, moved_bytes, seconds)
        sequence *= 2
    size = largest**2
    yield Kernel(gpu, "copy", "half", f"{size}", 0.0, 4.0 * size, _seconds(torch, device, _copy(torch, device, size)))


def _torch(device: str) -> Any:
    try:
        import torch
    except ImportError:
        raise InputError("calibrate-gpu: PyTorch is not installed; expected pip install 'ddlsched[training]'") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "calibrate-gpu: PyTorch finds no GPU; expected one, or --device cpu --largest 512 to try it out"
        )
    return torch


def _shapes(count: int, largest: int) -> list[tuple[int, int, int]]:
    """Return sizes of products, whose sides are powers of two and half as much again; the largest is the first."""
    powers = [size for power in range(7, 31) if (size := 2**power) <= largest]
    sides = sorted({*powers, *(3 * size // 2 for size in powers if 3 * size // 2 <= largest)}) or [_LEAST_SIZE]
    every = list(itertools.product(sides, repeat=3))
    drawn = np.random.default_rng(0).permutation(len(every) - 1)[: count - 1]
    return [every[-1], *(every[number] for number in drawn)]


def _product_half(torch: Any, device: str, m: int, k: int, n: int) -> Callable[[], object]:
    one, other = (torch.randn(size, device=device, dtype=torch.bfloat16) for size in ((m, k), (k, n)))
    return lambda: one @ other


def _product_single(torch: Any, device: str, m: int, k: int, n: int) -> Callable[[], object]:
    torch.backends.cuda.matmul.allow_tf32 = True
    one, other = (torch.randn(size, device=device) for size in ((m, k), (k, n)))
    return lambda: one @ other


def _product_8_bits(torch: Any, device: str, m: int, k: int, n: int) -> Callable[[], object]:
    """Return a product whose second matrix lies by columns, as the tensor cores want it."""
    one = torch.randn((m, k), device=device).to(torch.float8_e4m3fn)
    other = torch.randn((n, k), device=device).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device)
    return lambda: torch._scaled_mm(one, other, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def _attention(torch: Any, device: str, batch: int, sequence: int) -> Callable[[], object]:
    size = (batch, _HEADS, sequence, _WIDTH)
    parts = [torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    gradient = torch.ones(size, device=device, dtype=torch.bfloat16)

    def both() -> None:
        torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True).backward(gradient)

    return both


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
