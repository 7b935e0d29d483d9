"""Measures at which share of a GPU's peak a transformer block is multiplied, split over GPUs; needs a GPU.

``shares_of_peak.py --out FILE.csv``: for each width and degree of tensor parallelism the four matrix products of a
block, as one GPU of the group has them, forward and backward, in bfloat16, for one and four sequences of 2,048 tokens.
No communication. Takes a minute.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

WIDTHS = (3072, 6144, 8192, 12288)
SPLITS = (1, 2, 4, 8, 16)
TOKENS = 2048
MICRO_BATCHES = (1, 4)
LEAST_S = 0.3
"""For which each block is timed."""


def products(width: int, split: int) -> list[tuple[int, int]]:
    """Return what goes in and out of each matrix product on one GPU: attention's two and the MLP's two."""
    return [
        (width, 3 * width // split),
        (width // split, width),
        (width, 4 * width // split),
        (4 * width // split, width),
    ]


def block_s(width: int, split: int, micro_batch: int) -> float:
    """Return the median time of forward and backward, seconds."""
    given = {"device": "cuda", "dtype": torch.bfloat16}
    tokens = micro_batch * TOKENS
    shapes = products(width, split)
    inputs = [torch.randn(tokens, inside, **given) for inside, _ in shapes]
    weights = [torch.randn(outside, inside, **given) for inside, outside in shapes]
    errors = [torch.randn(tokens, outside, **given) for _, outside in shapes]

    def run() -> None:
        for own, weight, error in zip(inputs, weights, errors, strict=True):
            torch.matmul(own, weight.t())
            torch.matmul(error, weight)
            torch.matmul(error.t(), own)

    return float(Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=LEAST_S).median)


def peak_flops() -> float:
    """Return what a square product of 8,192 reaches, floating-point operations a second."""
    side = 8192
    one, other = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    timer = Timer("torch.matmul(one, other)", "import torch", globals={"one": one, "other": other})
    return float(2 * side**3 / timer.blocked_autorange(min_run_time=2.0).median)


def main() -> None:
    """Measure and write a row a width, split and micro-batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    peak = peak_flops()
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("gpu", "width", "tensor_parallelism", "micro_batch", "block_ms", "square_tflops", "share"))
        for width, split, micro_batch in itertools.product(WIDTHS, SPLITS, MICRO_BATCHES):
            took_s = block_s(width, split, micro_batch)
            flops = sum(6 * micro_batch * TOKENS * inside * outside for inside, outside in products(width, split))
            share = flops / took_s / peak
            name = torch.cuda.get_device_name()
            row = (name, width, split, micro_batch, f"{1e3 * took_s:.4f}", f"{peak / 1e12:.1f}", f"{share:.4f}")
            writer.writerow(row)
            print(*row, flush=True)


if __name__ == "__main__":
    main()
