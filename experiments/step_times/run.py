"""How far estimated training steps are from published ones, on rows that the constants were not fitted to.

    python experiments/step_times/run.py                       # splits, tables and the picture; about an hour
    python experiments/step_times/run.py --splits 1 --only fsdp   # a few minutes

Constants of each program are fitted to two thirds of its settings (some whole pairs of model and GPU are left out)
and judged on the others. The last fit takes all rows; its constants are those of
ddlsched/training/estimate/measured.py.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter
from scipy.optimize import least_squares

from ddlsched.comparisons.charts.style import PALETTE, in_style, save, shown_figure
from ddlsched.training.estimate.hardware import Efficiency, Machine
from ddlsched.training.estimate.published_rows import PublishedRun, read_published

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data" / "training_times"
TOLERANCE = 0.05
"""Log-ratio from which on a row counts linearly."""
_STEP = 1e-4


class Prior(NamedTuple):
    """What a constant is expected to be before any row is read: a value, and how far, as a log-ratio, it may be off."""

    value: float
    spread: float


_DENSE = {
    "matrix": Prior(0.7, 0.2),
    "attention": Prior(0.7, 0.3),
    "memory": Prior(0.5, 0.4),
    "gap_s": Prior(1e-5, 1.0),
    "taken": Prior(0.5, 0.5),
    "inside": Prior(0.7, 0.2),
    "between": Prior(0.6, 0.3),
}
PRIORS: Mapping[str, Mapping[str, Prior]] = {
    "fsdp": _DENSE | {"fp8": Prior(0.45, 0.3)},
    "torchtitan": {
        "matrix": Prior(0.6, 0.1),
        "attention": Prior(0.6, 0.15),
        "memory": Prior(0.3, 0.2),
        "gap_s": Prior(1e-5, 0.5),
        "taken": Prior(0.5, 0.3),
        "inside": Prior(0.7, 0.1),
        "between": Prior(0.7, 0.2),
        "fp8": Prior(0.65, 0.1),
        "exposed": Prior(0.8, 0.3),
        "eager_gap_s": Prior(3e-5, 0.5),
    },
    "megatron-bridge": {
        "matrix hopper": Prior(0.7, 0.15),
        "matrix blackwell": Prior(0.7, 0.15),
        "fp8 hopper": Prior(0.6, 0.2),
        "fp8 blackwell": Prior(0.65, 0.2),
        "mxfp8": Prior(0.6, 0.2),
        "nvfp4": Prior(0.4, 0.3),
        "attention hopper": Prior(1.0, 0.1),
        "attention blackwell": Prior(1.1, 0.07),
        "memory": Prior(0.5, 0.3),
        "experts": Prior(0.8, 0.3),
        "expert_rows": Prior(300, 0.5),
        "expert_s": Prior(2e-4, 1.0),
        "older_expert_s": Prior(1e-3, 1.0),
        "sorting": Prior(1.0, 0.7),
        "older_sorting": Prior(2.0, 0.7),
        "exposed": Prior(0.5, 0.4),
        "scattered": Prior(0.6, 0.3),
        "gap_s": Prior(4e-6, 0.7),
        "taken": Prior(0.3, 0.4),
        "inside": Prior(0.75, 0.1),
        "between": Prior(0.6, 0.3),
    },
}
"""What constants are expected to be before any row is read, and how far, as a log-ratio, they may be off.

Large products reach 0.6 to 0.8 of a data sheet, FlashAttention 0.35 (second version on Hopper) to 0.7 of it over the
causal half of the pairs and twice that over all, copies 0.5 to 0.9, links 0.7."""

Values = Mapping[str, float]
_COLUMNS = ["program", "split", "model", "gpu", "precision", "experts", "measured_step_s", "error"]


def efficiency_of(program: str, run: PublishedRun, values: Values) -> Efficiency:
    """Return a run's efficiency under some constants."""
    if program == "megatron-bridge":
        kind = "hopper" if run.gpu.startswith("h") else "blackwell"
        older = run.program != program
        return Efficiency(
            matrix=values[f"matrix {kind}"],
            by_precision={"fp8": values[f"fp8 {kind}"], "mxfp8": values["mxfp8"], "nvfp4": values["nvfp4"]},
            attention=values[f"attention {kind}"],
            expert_s=values["older_expert_s" if older else "expert_s"],
            sorting=values["older_sorting" if older else "sorting"],
            **{name: values[name] for name in _SHARED},
        )
    eager = run.program.endswith("-eager")
    return Efficiency(
        matrix=values["matrix"],
        by_precision={"fp8": values["fp8"]},
        attention=values["attention"],
        memory=values["memory"],
        gap_s=values["eager_gap_s" if eager else "gap_s"],
        taken=values["taken"],
        exposed=values.get("exposed", 1.0),
    )


_SHARED = ("memory", "experts", "expert_rows", "exposed", "scattered", "gap_s", "taken")


def log_ratios(program: str, runs: Sequence[PublishedRun], values: Values) -> np.ndarray:
    """Return the logarithms of predicted over measured steps, by run; by run and entry if constants are arrays."""
    ratios = []
    for run in runs:
        machine = _linked(run, values["inside"], values["between"])
        step_s = run.estimated(machine.with_efficiency(efficiency_of(program, run, values))).step_s
        ratios.append(np.log(np.asarray(step_s) / run.measured_step_s))
    return np.array(ratios)


def _linked(run: PublishedRun, inside: float, between: float) -> Machine:
    """Return a run's machine with other shares of the data sheet's links."""
    ideal = dataclasses.replace(run, program="ideal").machine
    tiers = tuple(
        dataclasses.replace(tier, bytes_per_s=tier.bytes_per_s * (between if number else inside))
        for number, tier in enumerate(ideal.tiers)
    )
    return dataclasses.replace(ideal, tiers=tiers)


def settings(runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Return one run a setting: releases that measured the same one become their geometric mean."""
    alike: dict[tuple[object, ...], list[PublishedRun]] = defaultdict(list)
    for run in runs:
        assert run.model is not None
        alike[repr(run.model), run.plan, run.gpu, run.nic_gbps, run.precision, run.program].append(run)
    means = [np.exp(np.mean([np.log(run.measured_step_s) for run in group])) for group in alike.values()]
    return [
        dataclasses.replace(group[0], measured_step_s=float(mean))
        for group, mean in zip(alike.values(), means, strict=True)
    ]


def fitted(program: str, runs: Sequence[PublishedRun]) -> dict[str, float]:
    """Return the constants that explain some runs best, priors counted."""
    priors = PRIORS[program]
    centre = np.log([prior.value for prior in priors.values()])
    spread = np.array([prior.spread for prior in priors.values()])
    own = settings(runs)

    def ratios(logs: np.ndarray) -> np.ndarray:
        return log_ratios(program, own, dict(zip(priors, np.exp(logs), strict=True))) / TOLERANCE

    def residuals(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([ratios(logs), (logs - centre) / spread])

    def slopes(logs: np.ndarray) -> np.ndarray:
        """Estimate all constants' neighbours at once: a constant is an array with an entry each."""
        moved = ratios(logs[:, None] + _STEP * np.eye(len(logs), len(logs) + 1, 1))
        return np.concatenate([(moved[:, 1:] - moved[:, :1]) / _STEP, np.diag(1 / spread)])

    found = least_squares(residuals, centre, slopes, loss="soft_l1", xtol=1e-3, max_nfev=30)
    return dict(zip(priors, np.exp(found.x).tolist(), strict=True))


def groups(runs: Sequence[PublishedRun]) -> dict[str, list[PublishedRun]]:
    """Return the runs that are fitted together, by a name."""
    found: dict[str, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        program = run.program.partition("-eager")[0].removesuffix("-26.04")
        found[f"fsdp {run.gpu}" if program == "fsdp" else program].append(run)
    return dict(found)


def split(runs: Sequence[PublishedRun], seed: int) -> np.ndarray:
    """Return which rows are kept out: about a third, some as whole pairs of model and GPU, some alone."""
    rng = np.random.default_rng(seed)
    pairs = sorted({(run.row["model"], run.gpu) for run in runs})
    whole = {pairs[number] for number in rng.permutation(len(pairs))[: max(1, len(pairs) // 6)]}
    out = np.array([(run.row["model"], run.gpu) in whole for run in runs])
    return out | (rng.random(len(runs)) < 0.2)


def held_out(name: str, runs: Sequence[PublishedRun], splits: int, say: Callable[[str], None]) -> pd.DataFrame:
    """Return a row a split and run kept out of it: predicted over measured, less 1."""
    program, rows = name.split()[0], []
    for seed in range(splits):
        out = split(runs, seed)
        values = fitted(program, [run for run, kept in zip(runs, out, strict=True) if not kept])
        own = [run for run, kept in zip(runs, out, strict=True) if kept]
        for run, ratio in zip(own, log_ratios(program, own, values), strict=True):
            told = (run.row["model"], run.gpu, run.precision, _experts(run), run.measured_step_s)
            rows.append((name, seed, *told, float(np.expm1(ratio))))
        say(f"{name}: split {seed + 1} of {splits}, {100 * np.mean([abs(row[-1]) for row in rows]):.1f} % mean error")
    return pd.DataFrame(rows, columns=_COLUMNS)


def _experts(run: PublishedRun) -> bool:
    assert run.model is not None
    return bool(np.max(run.model.experts) > 1)


def errors(held: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and the 95th percentile of held-out errors by program, GPU, precision and experts."""
    by = held.assign(error=held["error"].abs()).groupby(["program", "gpu", "precision", "experts"])["error"]
    return by.agg(mean="mean", p95=lambda errors: errors.quantile(0.95), rows="size").reset_index()


def draw(held: pd.DataFrame, stem: Path) -> None:
    """Draw how far rows that were kept out are predicted too long, a panel a GPU, a point a row's mean over splits."""
    points = held.groupby(["gpu", "model", "measured_step_s"], as_index=False)["error"].mean()
    models = dict(zip(sorted(set(points["model"])), [*PALETTE.values()] * 2, strict=False))
    with in_style():
        figure = shown_figure(7.2, 4.2)
        for place, gpu in enumerate(_GPUS, 1):
            axes = figure.add_subplot(2, 4, place)
            for model, own in points[points["gpu"] == gpu].groupby("model"):
                axes.plot(own["measured_step_s"], 100 * own["error"], ".", color=models[model])
            axes.axhline(0, color=PALETTE["grey"], linewidth=0.8, zorder=0)
            axes.set(xscale="log", ylim=(-50, 50), title=gpu, xlabel="Measured step (s)" if place > 4 else "")
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_ylabel("Predicted too long (%)" if place % 4 == 1 else "")
        marks = [Line2D([], [], marker=".", linestyle="", color=colour) for colour in models.values()]
        figure.legend(marks, list(models), loc="outside lower center", ncols=6, fontsize=6, frameon=False)
        save(figure, stem)


_GPUS = ("a100-40", "a100-80", "h100", "h100-96", "b200", "b300", "gb200", "gb300")


def main() -> None:
    """Fit, judge, write the tables and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--only", default="", help="part of the names of what is fitted together")
    parser.add_argument("--out", type=Path, default=HERE / "expected")
    options = parser.parse_args()
    runs = [run for name in ("mpt", "torchtitan", "megatron_bridge") for run in read_published(DATA / f"{name}.csv")]
    told = [run for run in runs if not run.reason and np.isfinite(run.measured_step_s)]
    chosen = {name: own for name, own in groups(told).items() if options.only in name}
    parts, constants = [], {}
    for name, own in chosen.items():
        parts.append(held_out(name, own, options.splits, lambda line: print(line, flush=True)))
        constants[name] = fitted(name.split()[0], own)
        ratios = log_ratios(name.split()[0], own, constants[name])
        print(f"{name}: {100 * np.abs(np.expm1(ratios)).mean():.2f} % on the rows that it was fitted to", flush=True)
    held, values = pd.concat(parts), pd.DataFrame(constants)
    table = errors(held)
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "errors.csv", index=False, float_format="%.4f")
    values.to_csv(options.out / "constants.csv", index_label="constant", float_format="%.6g")
    draw(held, options.out / "held_out")
    print(table.to_string(index=False))
    print(values.to_string())


if __name__ == "__main__":
    main()
