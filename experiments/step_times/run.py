"""How far estimated training steps are from published ones, on rows that the constants were not fitted to.

    python experiments/step_times/run.py                       # splits, tables and the pictures; a few minutes
    python experiments/step_times/run.py --splits 1 --only fsdp   # seconds

Constants of each program are fitted to two thirds of its settings (some whole pairs of model and GPU are left out)
and judged on the others; then to all but one pair, but one model, or but one kind of GPU, each in turn. The last fit
takes all rows; its constants are those of ddlsched/training/estimate/presets.py.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from page import BY, draw

from ddlsched.training.estimate.hardware import Efficiency, Machine, clock
from ddlsched.training.estimate.presets import GPUS
from ddlsched.training.estimate.published_rows import PublishedRun, read_published

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data" / "training_times"
TOLERANCE = 0.05
"""Log-ratio from which on a row counts linearly."""
_STEP = 1e-4
_MOST_STEPS = 40


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
    "fsdp": _DENSE | {"fp8": Prior(0.62, 0.3)},
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
        "casting": Prior(0.3, 0.7),
        "experts": Prior(0.8, 0.3),
        "expert_rows": Prior(300, 0.5),
        "expert_s": Prior(1e-3, 1.0),
        "graph_expert_s": Prior(2e-4, 1.0),
        "sorting": Prior(2.0, 0.7),
        "graph_sorting": Prior(1.0, 0.7),
        "exposed": Prior(0.5, 0.4),
        "scattered": Prior(0.6, 0.3),
        "gap_s": Prior(1e-5, 1.0),
        "graph_gap_s": Prior(1e-6, 1.0),
        "taken": Prior(0.3, 0.4),
        "inside": Prior(0.75, 0.1),
        "between": Prior(0.6, 0.3),
        "gain": Prior(0.015, 0.7),
    },
}
"""What constants are expected to be before any row is read, and how far, as a log-ratio, they may be off.

Large products reach 0.6 to 0.8 of a data sheet, FlashAttention 0.35 (second version on Hopper) to 0.7 of it over the
causal half of the pairs and twice that over all, copies 0.5 to 0.9, links 0.7. Products in FP8 reach 0.62 on an H100
(calibrate-gpu, ``measured/``). Launches take microseconds, in a graph
less. A release makes steps a percent or two faster."""

NARROW = 0.78
"""Speed of cuDNN's attention with heads of 64 numbers to that of 128 on an H100 and an H200, as calibrate-gpu measured
it (``measured/``: 0.78 and 0.77)."""

Values = Mapping[str, float]
_TOLD = ["model", "gpu", "precision", "experts", "gpus", "sequence", "tokens", "measured_step_s"]
_COLUMNS = ["program", "kind", "fold", "setting", *_TOLD, "error"]


def efficiency_of(program: str, run: PublishedRun, values: Values) -> Efficiency:
    """Return a run's efficiency under some constants."""
    if program == "megatron-bridge":
        kind = "hopper" if run.gpu.startswith("h") else "blackwell"
        graph = "graph_" if run.program != program else ""
        shared = Efficiency(
            matrix=values[f"matrix {kind}"],
            by_precision={"fp8": values[f"fp8 {kind}"], "mxfp8": values["mxfp8"], "nvfp4": values["nvfp4"]},
            attention=values[f"attention {kind}"],
            narrow=NARROW,
            **{name: values[f"{graph}{name}"] for name in ("expert_s", "sorting", "gap_s")},
            **{name: values[name] for name in _SHARED},
        )
        return shared.at_clock(clock(GPUS[run.gpu], GPUS["h100" if kind == "hopper" else "gb300"]))
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


_SHARED = ("memory", "casting", "experts", "expert_rows", "exposed", "scattered", "taken")


def log_ratios(program: str, runs: Sequence[PublishedRun], values: Values) -> np.ndarray:
    """Return the logarithms of predicted over measured steps, by run and entry of the constants' arrays."""
    seconds: dict[tuple[int, int], np.ndarray] = {}
    ratios = []
    for run, setting in zip(runs, settings(runs), strict=True):
        key = int(setting), run.earlier
        if key not in seconds:
            machine = _linked(run, values["inside"], values["between"])
            fitted_machine = machine.with_efficiency(efficiency_of(program, run, values))
            seconds[key] = np.asarray(run.step_s(fitted_machine, values.get("gain", np.zeros(1))))
        ratios.append(np.log(seconds[key] / run.measured_step_s))
    return np.array(ratios)


def _linked(run: PublishedRun, inside: float, between: float) -> Machine:
    """Return a run's machine with other shares of the data sheet's links."""
    ideal = dataclasses.replace(run, program="ideal").machine
    tiers = tuple(
        tier._replace(bytes_per_s=tier.bytes_per_s * (between if number else inside))
        for number, tier in enumerate(ideal.tiers)
    )
    return dataclasses.replace(ideal, tiers=tiers)


def settings(runs: Sequence[PublishedRun]) -> np.ndarray:
    """Return the setting of each run, as the place of the first that has it: releases measured many more than once."""
    first: dict[tuple[object, ...], int] = {}
    keys = [(repr(run.model), run.plan, run.gpu, run.nic_gbps, run.precision, run.program) for run in runs]
    return np.array([first.setdefault(key, place) for place, key in enumerate(keys)])


def fitted(program: str, runs: Sequence[PublishedRun], kept: np.ndarray) -> np.ndarray:
    """Return the constants that explain the rows which each fit keeps best, priors counted; a row a fit.

    Levenberg and Marquardt's steps on all fits at once: an estimate takes as long for a thousand entries as for one.
    Residuals count linearly from :data:`TOLERANCE` on, all measurements of a setting together as one.
    """
    priors = PRIORS[program]
    centre = np.log([prior.value for prior in priors.values()])
    spread = np.array([prior.spread for prior in priors.values()])
    alike = settings(runs)
    together = kept @ (alike[:, None] == alike).astype(float)
    weights = np.hstack([kept / np.maximum(together, 1), np.ones((len(kept), len(priors)))])
    moves = _STEP * np.eye(len(priors), len(priors) + 1, 1)

    def residuals(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return residuals, by fit, and their slopes, by fit, residual and constant."""
        entries = np.moveaxis(logs[:, :, None] + moves, 1, 0).reshape(len(priors), -1)
        ratios = log_ratios(program, runs, dict(zip(priors, np.exp(entries), strict=True))) / TOLERANCE
        by_fit = np.moveaxis(ratios.reshape(len(runs), len(kept), -1), 1, 0)
        slopes = (by_fit[:, :, 1:] - by_fit[:, :, :1]) / _STEP
        own = np.broadcast_to(np.diag(1 / spread), (len(kept), len(priors), len(priors)))
        return np.hstack([by_fit[:, :, 0], (logs - centre) / spread]), np.hstack([slopes, own])

    best = np.tile(centre, (len(kept), 1))
    tried, damping, least = best, np.full(len(kept), 0.01), np.full(len(kept), np.inf)
    slope, curved = np.zeros_like(best), np.zeros((*best.shape, len(priors)))
    for _ in range(_MOST_STEPS):
        left, slopes = residuals(tried)
        cost = 2 * (weights * (np.sqrt(1 + left**2) - 1)).sum(axis=1)
        counted = weights / np.sqrt(1 + left**2)
        is_less = cost < least
        best[is_less], least[is_less] = tried[is_less], cost[is_less]
        slope[is_less] = np.einsum("frk,fr->fk", slopes, counted * left)[is_less]
        curved[is_less] = np.einsum("frk,fr,frl->fkl", slopes, counted, slopes)[is_less]
        damping = np.where(is_less, damping / 4, damping * 4)
        damped = curved * (1 + damping[:, None, None] * np.eye(len(priors)))
        tried = best - np.clip(np.linalg.solve(damped, slope[:, :, None])[:, :, 0], -1, 1)
    return np.exp(best)


def groups(runs: Sequence[PublishedRun]) -> dict[str, list[PublishedRun]]:
    """Return the runs that are fitted together, by a name."""
    found: dict[str, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        program = run.program.removesuffix("-eager").removesuffix("-graphs")
        found[f"fsdp {run.gpu}" if program == "fsdp" else program].append(run)
    return dict(found)


def split(runs: Sequence[PublishedRun], seed: int) -> np.ndarray:
    """Return which rows are kept out: about a third, some as whole pairs of model and GPU, some as single settings."""
    rng = np.random.default_rng(seed)
    pairs = sorted({(run.row["model"], run.gpu) for run in runs})
    whole = {pairs[number] for number in rng.permutation(len(pairs))[: max(1, len(pairs) // 6)]}
    out = np.array([(run.row["model"], run.gpu) in whole for run in runs])
    return out | (rng.random(len(runs)) < 0.2)[settings(runs)]


class Fold(NamedTuple):
    """Rows that a fit does not see, and how they were chosen: at random, as a whole pair, a model or a kind of GPU."""

    kind: str
    out: np.ndarray


def folds(runs: Sequence[PublishedRun], splits: int) -> list[Fold]:
    """Return random thirds, each pair of model and GPU, each model, and each GPU of programs whose GPUs share them."""
    found = [Fold("a third", split(runs, seed)) for seed in range(splits)]
    models, gpus = [run.row["model"] for run in runs], [run.gpu for run in runs]
    for kind, keys in (("a pair", list(zip(models, gpus, strict=True))), ("a model", models), ("a GPU", gpus)):
        if len(set(keys)) > 1:
            found += [Fold(kind, np.array([key == one for key in keys])) for one in sorted(set(keys))]
    return found


class Judged(NamedTuple):
    """Kept-out rows with their errors, and the constants of each fit."""

    rows: pd.DataFrame
    constants: pd.DataFrame


def held_out(name: str, runs: Sequence[PublishedRun], chosen: Sequence[Fold]) -> Judged:
    """Return a row a fold and run kept out of it, predicted over measured less 1; the last fold keeps out none."""
    program, rows, alike = name.split()[0], [], settings(runs)
    chosen = [*chosen, Fold("none", np.zeros(len(runs), dtype=bool))]
    found = fitted(program, runs, ~np.array([fold.out for fold in chosen]))
    errors = np.expm1(log_ratios(program, runs, dict(zip(PRIORS[program], found.T, strict=True))))
    for number, (kind, out) in enumerate(chosen):
        judged = np.flatnonzero(out) if out.any() else range(len(runs))
        rows += [(name, kind, number, alike[at], *_told(runs[at]), float(errors[at, number])) for at in judged]
    constants = pd.DataFrame(found, columns=list(PRIORS[program])).assign(kind=[fold.kind for fold in chosen])
    return Judged(pd.DataFrame(rows, columns=_COLUMNS), constants)


def _told(run: PublishedRun) -> tuple[object, ...]:
    """Return what a table says of a run, and the tokens that each GPU trains in a step."""
    assert run.model is not None
    sequence, gpus = int(run.model.sequence), int(run.plan.num_gpus)
    tokens = float(run.plan.global_batch) * sequence / gpus
    return run.row["model"], run.gpu, run.precision, _experts(run), gpus, sequence, tokens, run.measured_step_s


def ordered(held: pd.DataFrame) -> pd.DataFrame:
    """Return how often the faster of two settings of one model, kept out together, is predicted to be faster.

    Two measurements of one setting are no order, nor are two that differ by less than 2 %.
    """
    rows = []
    for (program, kind, *_), own in held.groupby(["program", "kind", "fold", "model"]):
        measured, setting = np.log(own["measured_step_s"] / own["tokens"]).to_numpy(), own["setting"].to_numpy()
        predicted = measured + np.log1p(own["error"].to_numpy())
        one, other = np.triu_indices(len(own), 1)
        apart = measured[one] - measured[other]
        right = np.sign(apart) == np.sign(predicted[one] - predicted[other])
        told = (np.abs(apart) > 0.02) & (setting[one] != setting[other])
        rows += [(program, kind, bool(own["experts"].iloc[0]), bool(is_right)) for is_right in right[told]]
    by = ["program", "kind", "experts"]
    return pd.DataFrame(rows, columns=[*by, "right"]).groupby(by)["right"].agg(right="mean", pairs="size").reset_index()


def repeated(name: str, runs: Sequence[PublishedRun]) -> pd.DataFrame:
    """Return how far measurements of one setting lie apart: what no estimate can foretell."""
    logs = pd.Series([np.log(run.measured_step_s) for run in runs])
    pairs = [
        abs(one - other)
        for _, own in logs.groupby(settings(runs))
        for place, one in enumerate(own)
        for other in own.iloc[:place]
    ]
    apart = np.expm1(pairs)
    told = {"mean": apart.mean(), "p95": np.quantile(apart, 0.95), "most": apart.max()} if pairs else {}
    return pd.DataFrame([{"program": name, "pairs": len(pairs), **told}])


def _experts(run: PublishedRun) -> bool:
    assert run.model is not None
    return bool(np.max(run.model.experts) > 1)


def errors(held: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the mean and the 95th percentile of errors, and the share within 15 %, by some columns."""
    table = held.assign(error=held["error"].abs()).groupby(list(by))["error"]
    told = table.agg(
        mean="mean",
        p95=lambda errors: errors.quantile(0.95),
        within_15=lambda errors: (errors <= 0.15).mean(),
        rows="size",
    )
    return told.reset_index()


def headlines(held: pd.DataFrame) -> pd.DataFrame:
    """Return the mean error of each kind of rows over the fits, and the least and the most of one fit."""
    models = np.where(held["experts"], "experts", "dense")
    told = held.assign(models=np.where(held["precision"] == "fp8", models + " fp8", models))
    told["models"] = np.where(told["program"].str.startswith("fsdp"), told["models"], models)
    by = ["kind", "program", "models"]
    fits = told.assign(error=told["error"].abs()).groupby([*by, "fold"])["error"].mean().groupby(by)
    return errors(told, by).merge(fits.agg(low="min", high="max", fits="size").reset_index())


def intervals(name: str, judged: Judged) -> pd.DataFrame:
    """Return a program's constants with what 5 and 95 % of the fits to random two thirds stay below."""
    fits = judged.constants.set_index("kind")
    told = pd.DataFrame({"value": fits.loc["none"], "low": fits.loc["a third"].quantile(0.05)})
    told = told.assign(high=fits.loc["a third"].quantile(0.95)).rename_axis("constant").reset_index()
    return told.assign(program=name)[["program", "constant", "value", "low", "high"]]


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
    held, constants = [], []
    repeats = pd.concat([repeated(name, own) for name, own in chosen.items()])
    for name, own in chosen.items():
        judged = held_out(name, own, folds(own, options.splits))
        held.append(judged.rows)
        constants.append(intervals(name, judged))
        kept_out = judged.rows[judged.rows["kind"] == "a third"]["error"].abs().mean()
        print(f"{name}: {100 * kept_out:.1f} %", flush=True)
    every = pd.concat(held)
    is_seen = every["kind"] == "none"
    write(every[~is_seen], every[is_seen], {"constants": pd.concat(constants), "repeated": repeats}, options.out)


def write(held: pd.DataFrame, seen: pd.DataFrame, more: Mapping[str, pd.DataFrame], out: Path) -> None:
    """Write the tables, draw the page and print what was found."""
    out.mkdir(parents=True, exist_ok=True)
    thirds = held[held["kind"] == "a third"]
    by = ["program", "gpu", "precision", "experts"]
    tables = {
        "errors": errors(thirds, by),
        "headlines": headlines(held),
        "order": ordered(held),
        "by_model": errors(thirds, ["model"]),
        "fitted": errors(seen, ["program"]),
        **more,
    }
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False, float_format="%.6g" if name == "constants" else "%.4f")
        print(f"\n{name}\n{table.to_string(index=False)}")
    draw(thirds, seen, {column: errors(thirds, [column]) for column in BY}, out / "held_out")


if __name__ == "__main__":
    main()
