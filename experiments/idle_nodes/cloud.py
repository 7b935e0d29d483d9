"""Malleable training on preemptible instances, whose lifetimes have one mean and two distributions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from beyond import MOST_WAITING
from inputs import Inputs
from parallel import Workers
from queue_training import UNTIL_S, trained

from ddlsched.cluster.cloud_instances import CloudInstances
from ddlsched.cluster.idle_trace import IdleTrace

INSTANCES, MEAN_WAIT_S = 128, 300.0
KINDS = ("exponential", "trace-driven")
POLICIES = ("equal share", "optimum, T_fwd 120 s", "survival-aware")


def cloud(inputs: Inputs, workers: Workers, seeds: int) -> pd.DataFrame:
    """Return what trainers do on instances whose lifetimes have the same mean, by policy.

    Trace-driven lifetimes are the lengths of the trace's fragments: most are short, most of the time is in long ones.
    """
    jobs, lives_s = inputs.hpo[:MOST_WAITING], inputs.idle.lengths_s
    settings = list(product(KINDS, range(1, seeds + 1), POLICIES))
    calls = [(_instances(kind, seed, lives_s), jobs, policy) for kind, seed, policy in settings]
    rows = workers.do("cloud", trained, calls)
    labels = [dict(zip(("lifetimes", "seed", "policy"), setting, strict=True)) for setting in settings]
    return pd.DataFrame([label | row for label, row in zip(labels, rows, strict=True)])


def _instances(kind: str, seed: int, lives_s: np.ndarray) -> IdleTrace:
    lives = {"mean_life_s": float(lives_s.mean())} if kind == "exponential" else {"lifetimes": tuple(lives_s.tolist())}
    rented = CloudInstances(**lives, mean_wait_s=MEAN_WAIT_S, until_s=UNTIL_S, seed=seed)  # type: ignore[arg-type]
    there = (stay for stay in rented.trace(INSTANCES).presences if stay.join_s < UNTIL_S)
    stays = [(stay.server, stay.join_s, min(stay.leave_s, UNTIL_S)) for stay in there]
    nodes, joins_s, leaves_s = np.array(stays).T
    return IdleTrace(nodes.astype(np.int64), joins_s, leaves_s)
