"""How far a simulated run is from a real one: start order, waits, makespan."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scenarios import END_S, EVERY_S, START_S, Scenario, predicted

from ddlsched.workload.job import Workload

_RESAMPLES = 2000
_FLOOR_RUNS = 5


def comparison(workload: Workload, scenario: Scenario, real: pd.DataFrame) -> dict[str, float]:
    """Return what the two have in common and what not, times in seconds.

    The interval is of the mean difference of waits, job by job, by the bootstrap over runs of 25 neighbouring jobs,
    whose waits depend on one another.
    """
    both = _beside(workload, real, predicted(workload, scenario))
    real_s, difference_s = float(both["real_wait_s"].mean()), both["wait_s"] - both["real_wait_s"]
    low_s, high_s = _interval(difference_s.to_numpy())
    return {
        "real_wait_s": round(real_s, 2),
        "simulated_wait_s": round(float(both["wait_s"].mean()), 2),
        "difference_%": round(100 * float(difference_s.mean()) / real_s, 2),
        "low_%": round(100 * low_s / real_s, 2),
        "high_%": round(100 * high_s / real_s, 2),
        "same_order_%": round(100 * same_order(both["start_s_real"], both["start_s_simulated"], EVERY_S), 2),
        "same_order_strict_%": round(100 * same_order(both["start_s_real"], both["start_s_simulated"], 0.0), 2),
        "real_makespan_s": round(float(both["end_s_real"].max()), 1),
        "simulated_makespan_s": round(float(both["end_s_simulated"].max()), 1),
        **_with_own_times(workload, scenario, real, real_s),
        "load": float(real["load"].iloc[-1]),
    }


def _beside(workload: Workload, real: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    both = real.merge(simulated, on="job_id", suffixes=("_real", "_simulated"), validate="1:1")
    arrival_s = both["job_id"].map({job.job_id: job.arrival_s for job in workload})
    return both.assign(real_wait_s=both["start_s_real"] - arrival_s, wait_s=both["start_s_simulated"] - arrival_s)


def _with_own_times(workload: Workload, scenario: Scenario, real: pd.DataFrame, real_s: float) -> dict[str, float]:
    """Return what Slurm took in this run to start and to end jobs, and what follows if each job's own time is known."""
    if scenario.options is None:
        return {}
    own = pd.DataFrame({"job_id": real["job_id"], "start_s": real["start_s"] - real["decided_s"]})
    # Ends fall on any part of the time between two looks, unless all are in its middle.
    seen_s = float((real["seen_end_s"] - real["end_s"]).mean())
    end_s = END_S if scenario.between_looks else seen_s - scenario.every_s / 2
    own["held_s"] = real["end_s"] - real["decided_s"] + end_s
    both = _beside(workload, real, predicted(workload, scenario, own))
    own_s = float(both["wait_s"].mean()) - real_s
    order = same_order(both["start_s_real"], both["start_s_simulated"], EVERY_S)
    return {
        "run_start_s": round(float(own["start_s"].mean()), 2),
        "run_start_sd_s": round(float(own["start_s"].std()), 2),
        "run_end_s": round(end_s, 2),
        "difference_with_these_%": round(100 * own_s / real_s, 2),
        "same_order_with_these_%": round(100 * order, 2),
    }


def floor(workload: Workload, scenario: Scenario, sd_s: float) -> float:
    """Return what the simulation has in common with itself: with runs in which jobs take longer or shorter.

    Parameters
    ----------
    workload, scenario
        Jobs, and who decides.
    sd_s
        Standard deviation of the times that Slurm takes to start a job; each job takes longer by a normal number.
    """
    rng = np.random.default_rng(0)
    usual = predicted(workload, scenario)
    run_s = np.array([job.service_ns / 1e9 / job.num_gpus for job in workload])
    shares = []
    for _ in range(_FLOOR_RUNS):
        more_s = rng.normal(0.0, sd_s, len(run_s)).clip(-START_S)
        own = pd.DataFrame({"start_s": START_S + more_s, "held_s": run_s + more_s})
        other = predicted(workload, scenario, own.assign(job_id=[job.job_id for job in workload]))
        both = usual.merge(other, on="job_id", suffixes=("_usual", "_other"), validate="1:1")
        shares.append(same_order(both["start_s_usual"], both["start_s_other"], EVERY_S))
    return float(np.mean(shares))


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
