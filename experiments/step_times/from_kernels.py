"""How far steps are from what the kernels of a GPU say alone: nothing is fitted to a step.

    python experiments/step_times/from_kernels.py    # seconds

It reads ``measured/``: kernels by ``ddlsched calibrate-gpu``, steps by ``measure.py``, on one H100 and one H200.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ddlsched.training.estimate.hardware import clock
from ddlsched.training.estimate.kernel_speeds import kernel_speeds, read_kernels
from ddlsched.training.estimate.presets import GPUS
from ddlsched.training.estimate.published_rows import read_published

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data" / "training_times"
_GPUS = ("h100", "h200")


def compared() -> Iterator[dict[str, object]]:
    """Yield each measured step, with errors by the kernels of its GPU and by constants of published steps."""
    for gpu in _GPUS:
        found = kernel_speeds(read_kernels(HERE / "measured" / f"{gpu}-kernels.csv"), GPUS[gpu])
        for family in ("mpt", "llama"):
            for run in read_published(HERE / "measured" / f"{gpu}-{family}.csv"):
                assert run.model is not None, run.reason
                kernels = run.machine.with_efficiency(found.alone())
                yield {
                    "gpu": gpu,
                    "launched": "compiled" if run.row.get("compiled") == "yes" else "one by one",
                    "model": run.row["model"],
                    "sequence": int(run.model.sequence),
                    "micro_batch": int(run.plan.micro_batch),
                    "recompute": run.row["recompute"],
                    "measured_s": run.measured_step_s,
                    "by_kernels": run.step_s(kernels, 0.0) / run.measured_step_s - 1,
                    "by_published_steps": run.step_s() / run.measured_step_s - 1,
                    "memory_gib": float(run.row["memory_gib"]),
                    "by_estimate": float(run.estimated().memory.total_bytes) / 2**30 / float(run.row["memory_gib"]) - 1,
                }


def of_many_gpus() -> pd.DataFrame:
    """Return by program how far kernels alone, and with its losses, are from published steps."""
    found = kernel_speeds(read_kernels(HERE / "measured" / "h100-kernels.csv"), GPUS["h100"])
    rows = []
    for run in (run for name in ("torchtitan", "megatron_bridge") for run in read_published(DATA / f"{name}.csv")):
        if run.reason or not run.gpu.startswith("h100"):
            continue
        factor = clock(GPUS[run.gpu], GPUS["h100"])
        both = [
            run.step_s(run.machine.with_efficiency(one.at_clock(factor))) / run.measured_step_s - 1
            for one in (found.alone(), found.given_to(run.machine.gpu.efficiency))
        ]
        rows.append((run.program.removesuffix("-eager"), *both))
    table = pd.DataFrame(rows, columns=["program", "kernels_alone", "with_losses"])
    return table.groupby("program").agg(
        rows=("with_losses", "size"), least=("kernels_alone", "min"), most=("kernels_alone", "max"),
        kernels_alone=("kernels_alone", "mean"), with_losses=("with_losses", "mean"),
    ).reset_index()  # fmt: skip


def main() -> None:
    """Write the tables and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "expected")
    options = parser.parse_args()
    steps = pd.DataFrame(list(compared()))
    errors = ["by_kernels", "by_published_steps"]
    sizes = steps[errors].abs().assign(gpu=steps["gpu"], launched=steps["launched"], rows=1, bias=steps["by_kernels"])
    means = sizes.groupby(["gpu", "launched"]).agg(
        rows=("rows", "sum"), mean=("by_kernels", "mean"), most=("by_kernels", "max"), bias=("bias", "mean"),
        published=("by_published_steps", "mean"),
    )  # fmt: skip
    tables = {"own_steps": steps, "own_errors": means.reset_index(), "kernels_alone": of_many_gpus()}
    for name, table in tables.items():
        table.to_csv(options.out / f"{name}.csv", index=False, float_format="%.4f")
        print(f"{name}\n{table.round(3).to_string(index=False)}\n")


if __name__ == "__main__":
    main()
