"""The parts that replay the whole trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from beyond import MOST_JOBS
from inputs import Inputs, shared_evenly
from on_engine import simulated
from parallel import Workers
from replay import TrainingJob, replay

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.sharing import NodeEqualShare
from ddlsched.cluster.idle_trace import IdleTrace

POLICIES: dict[str, Any] = {
    "equal share": NodeEqualShare(),
    "optimum, T_fwd 10 s": CountProgramme(lookahead_s=10.0),
    "optimum, T_fwd 120 s": CountProgramme(lookahead_s=120.0),
}
LOOKAHEADS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


def row_of(idle: IdleTrace, jobs: Sequence[TrainingJob], policy: Any, published: bool) -> dict[str, float]:
    """Run on the engine to the last job's end; U is against as many trainers that share the mean idle count evenly."""
    result, tally = simulated(idle, jobs, policy, published=published)
    makespan_s = float(result.summary()["makespan_s"])
    samples = sum(job.samples for job in jobs)
    even = shared_evenly(jobs, idle.mean_idle(0.0, makespan_s), MOST_JOBS)
    return {
        "makespan_h": makespan_s / 3600,
        "rescale_lost": tally.rescale_lost / samples,
        "preempt_lost": tally.preempt_lost / samples,
        "rescales": tally.rescales,
        "u": samples / makespan_s / even,
    }


def reference(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return the rows of the reference table: the log replayer's rules, through the engine."""
    calls = [(inputs.idle, inputs.hpo, policy, True) for policy in POLICIES.values()]
    rows = workers.do("reference", row_of, calls)
    return pd.DataFrame([{"policy": name} | row for name, row in zip(POLICIES, rows, strict=True)])


def crosscheck(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return the same by the plain replay of the same rules, which knows no engine."""
    outs = workers.do("crosscheck", _replayed, [(inputs.idle, inputs.hpo, policy) for policy in POLICIES.values()])
    return pd.DataFrame([{"policy": name} | row for name, row in zip(POLICIES, outs, strict=True)])


def _replayed(idle: IdleTrace, jobs: Sequence[TrainingJob], policy: Any) -> dict[str, float]:
    out = replay(idle, jobs, policy, most_jobs=MOST_JOBS)
    samples = sum(job.samples for job in jobs)
    return {
        "makespan_h": out.makespan_s / 3600,
        "rescale_lost": out.rescale_lost / samples,
        "preempt_lost": out.preempt_lost / samples,
        "rescales": out.rescales,
        "u": samples / out.makespan_s / shared_evenly(jobs, out.mean_idle, MOST_JOBS),
        "of_running": out.resizes,
        "finished": out.finished,
    }


def sweep(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return what the look-ahead changes, under both sets of rules, for both sets of trainers."""
    settings = [
        (kind, rules, s) for kind in ("hpo", "imagenet") for rules in ("published", "live") for s in LOOKAHEADS_S
    ]
    calls = [
        (inputs.idle, getattr(inputs, kind), CountProgramme(lookahead_s=s), rules == "published")
        for kind, rules, s in settings
    ]
    labels = [dict(zip(("trainers", "rules", "lookahead_s"), setting, strict=True)) for setting in settings]
    return pd.DataFrame([a | b for a, b in zip(labels, workers.do("sweep", row_of, calls), strict=True)])
