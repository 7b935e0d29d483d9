"""How far a simulated run is from a real one: start order, waits, makespan."""

from __future__ import annotations

import numpy as np
import pandas as pd
from predictions import Taken, predictions, taken
from scenarios import EVERY_S, Scenario

from ddlsched.workload.job import Workload

_RESAMPLES = 2000


def comparison(workload: Workload, scenario: Scenario, real: pd.DataFrame, took: Taken) -> dict[str, float]:
    """Return what the two have in common and what not, times in seconds.

    The interval is of the mean difference of waits, job by job, by the bootstrap over runs of 25 neighbouring jobs,
    whose waits depend on one another. ``arrival_order_%`` is what jobs that start as they arrive have in common with
    the real run: what the same order is worth. Where there are several simulated runs, jobs have their mean times.
    """
    runs = [_beside(workload, real, run) for run in predictions(workload, scenario, took)]
    both = pd.concat(runs).groupby("job_id", sort=False).mean(numeric_only=True)
    real_s, difference_s = float(both["real_wait_s"].mean()), both["wait_s"] - both["real_wait_s"]
    low_s, high_s = _interval(difference_s.to_numpy())
    arrivals_s = both["start_s_real"] - both["real_wait_s"]
    waits_s = [float(run["wait_s"].mean()) for run in runs]
    return {
        "real_wait_s": round(real_s, 2),
        "simulated_wait_s": round(float(both["wait_s"].mean()), 2),
        "difference_%": round(100 * float(difference_s.mean()) / real_s, 2),
        "low_%": round(100 * low_s / real_s, 2),
        "high_%": round(100 * high_s / real_s, 2),
        "draws": len(runs),
        "draws_sd_%": round(100 * float(np.std(waits_s, ddof=len(runs) > 1)) / real_s, 2),
        "same_order_%": round(100 * same_order(both["start_s_real"], both["start_s_simulated"], EVERY_S), 2),
        "same_order_strict_%": round(100 * same_order(both["start_s_real"], both["start_s_simulated"], 0.0), 2),
        "arrival_order_%": round(100 * same_order(both["start_s_real"], arrivals_s, EVERY_S), 2),
        "real_makespan_s": round(float(both["end_s_real"].max()), 1),
        "simulated_makespan_s": round(float(np.mean([run["end_s_simulated"].max() for run in runs])), 1),
        **_what_slurm_took(real, scenario),
        "load": float(real["load"].iloc[-1]),
    }


def _beside(workload: Workload, real: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    both = real.merge(simulated, on="job_id", suffixes=("_real", "_simulated"), validate="1:1")
    arrival_s = both["job_id"].map({job.job_id: job.arrival_s for job in workload})
    return both.assign(real_wait_s=both["start_s_real"] - arrival_s, wait_s=both["start_s_simulated"] - arrival_s)


def _what_slurm_took(real: pd.DataFrame, scenario: Scenario) -> dict[str, float]:
    if scenario.options is None:
        return {}
    own = taken(real, scenario)
    times_s = {"run_start_s": own.starts_s.mean(), "run_start_sd_s": own.starts_s.std(), "run_end_s": own.end_s}
    return {name: round(float(time_s), 2) for name, time_s in times_s.items()}


def repeated(real: pd.DataFrame, again: pd.DataFrame) -> dict[str, float]:
    """Return what two real runs of the same jobs have in common."""
    both = real.merge(again, on="job_id", suffixes=("_real", "_again"), validate="1:1")
    waits_s = [float((both[f"start_s_{run}"] - both[f"arrival_s_{run}"]).mean()) for run in ("real", "again")]
    return {
        "again_difference_%": round(100 * (waits_s[1] / waits_s[0] - 1), 2),
        "again_same_order_%": round(100 * same_order(both["start_s_real"], both["start_s_again"], EVERY_S), 2),
    }


def same_order(real_s: pd.Series, simulated_s: pd.Series, resolution_s: float) -> float:
    """Return the share of pairs of jobs whose starts are not in opposite order.

    Starts that are not more than the resolution apart, in either run, have no order.
    """
    real, simulated = (np.subtract.outer(starts, starts) for starts in (real_s.to_numpy(), simulated_s.to_numpy()))
    ordered = (np.abs(real) > resolution_s) & (np.abs(simulated) > resolution_s)
    opposite = ordered & (np.sign(real) != np.sign(simulated))
    pairs = len(real_s) * (len(real_s) - 1)
    return 1.0 - float(opposite.sum()) / pairs


def _interval(differences_s: np.ndarray, block: int = 25) -> tuple[float, float]:
    blocks = np.array_split(differences_s, max(len(differences_s) // block, 2))
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(blocks), size=(_RESAMPLES, len(blocks)))
    means = [np.concatenate([blocks[place] for place in places]).mean() for places in drawn]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)
