"""Malleable training on the nodes that a simulated main queue leaves idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pandas as pd
from beyond import MOST_JOBS, MOST_WAITING
from inputs import Inputs, shared_evenly
from main_queue import left_idle, model_jobs, served
from on_engine import Watched, simulated
from parallel import Workers
from replay import TrainingJob

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.equal_share import NodeEqualShare
from algorithms.allocation.malletrain import MalleTrain
from algorithms.allocation.survival_aware import SurvivalAware
from ddlsched.cluster.idle_trace import IdleTrace

LOAD = 0.8
QUEUES = ("FCFS", "FCFS, EASY")
POLICIES = {
    "equal share": NodeEqualShare(),
    "MalleTrain": MalleTrain(lookahead_s=120.0),
    "optimum, T_fwd 120 s": CountProgramme(lookahead_s=120.0),
    "survival-aware": SurvivalAware(),
}
UNTIL_S = 50_000.0


def queue_training(inputs: Inputs, workers: Workers, seeds: int) -> pd.DataFrame:
    """Return what trainers do in the first hours on the idle nodes of each main queue; more jobs than can end."""
    jobs = inputs.hpo[:MOST_WAITING]
    queues = list(product(QUEUES, range(1, seeds + 1)))
    traces = workers.do("idle nodes", _idle, [(seed, queue) for queue, seed in queues])
    rows = workers.do("training", trained, [(idle, jobs, name) for idle in traces for name in POLICIES])
    labels = [{"queue": queue, "seed": seed, "policy": name} for queue, seed in queues for name in POLICIES]
    return pd.DataFrame([label | row for label, row in zip(labels, rows, strict=True)])


def _idle(seed: int, queue: str) -> IdleTrace:
    return left_idle(served(model_jobs(seed, LOAD), queue)).between(0.0, UNTIL_S)


def trained(idle: IdleTrace, jobs: Sequence[TrainingJob], name: str) -> dict[str, float]:
    """Return U, samples/s, losses, and how many nodes are idle on average, to the last change within ``UNTIL_S``."""
    watched = Watched(policy=POLICIES[name])
    _, tally = simulated(idle, [replace(job, submit_s=0.0) for job in jobs], watched, until_s=UNTIL_S)
    samples, end_s = watched.seen["trained"], watched.seen["until_s"]
    mean_idle = idle.mean_idle(0.0, end_s)
    return {
        "mean_idle": mean_idle,
        "samples_per_s": samples / end_s,
        "u": samples / end_s / shared_evenly(jobs, mean_idle, MOST_JOBS),
        "rescale_lost": tally.rescale_lost / samples,
        "preempt_lost": tally.preempt_lost / samples,
    }
