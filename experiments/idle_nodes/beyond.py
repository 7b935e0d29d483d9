"""Better than the myopic optimum? Over disjoint sets of nodes, paired, with a clairvoyant and a bound to compare."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from inputs import Inputs, shared_evenly
from on_engine import Watched, simulated
from parallel import Workers
from replay import TrainingJob

from algorithms.allocation.count_programme import CountProgramme, SurvivalAware, SurvivalRun
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.workload.trainers import Survival

MOST_JOBS, MOST_WAITING = 10, 120
NODES, SETS, UNTIL_S = 512, 9, 50_000.0


@dataclass(frozen=True, kw_only=True)
class Clairvoyant(SurvivalAware):
    """The same rule with the true time that each node stays: what foresight is worth to it."""

    leaves_s: dict[int, list[float]]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> SurvivalRun:
        """Return what is asked during a run."""
        return _ClairvoyantRun(self, Survival())


class _ClairvoyantRun(SurvivalRun):
    def useful_s(self, now_s: float) -> dict[int, float]:
        leaves_s, horizon_s = self.policy.leaves_s, self.policy.horizon_s  # type: ignore[attr-defined]
        return {gpu: min(self._next(leaves_s[gpu], now_s) - now_s, horizon_s) for gpu in self.since_s}

    @staticmethod
    def _next(leaves_s: Sequence[float], now_s: float) -> float:
        place = bisect_right(leaves_s, now_s + 1e-6)
        return leaves_s[place] if place < len(leaves_s) else np.inf


def policies(idle: IdleTrace) -> dict[str, Any]:
    """Return those that are compared."""
    leaves_s: dict[int, list[float]] = {}
    for node, end_s in sorted(zip(idle.node.tolist(), idle.idle_to_s.tolist(), strict=True)):
        leaves_s.setdefault(node, []).append(end_s)
    return {
        "optimum, T_fwd 120 s": CountProgramme(lookahead_s=120.0),
        "survival-aware": SurvivalAware(),
        "the same rule, clairvoyant": Clairvoyant(leaves_s=leaves_s),
    }


def beyond(inputs: Inputs, workers: Workers) -> pd.DataFrame:
    """Return U of each policy, and the bound, over disjoint sets of nodes; there are more jobs than can end."""
    jobs = inputs.hpo[:MOST_WAITING]
    sets = range(0, min(int(inputs.all_nodes.node.max()) + 1, SETS * NODES), NODES)
    parts = {first: inputs.all_nodes.of_nodes(first, first + NODES).between(0.0, UNTIL_S) for first in sets}
    settings = [(first, name) for first in sets for name in policies(parts[first])]
    rows = workers.do("beyond", _one, [(parts[first], jobs, name) for first, name in settings])
    table = [{"first_node": first, "policy": name} | row for (first, name), row in zip(settings, rows, strict=True)]
    for first, idle in parts.items():
        bound = no_cost_bound(idle, jobs, UNTIL_S)
        table.append({"first_node": first, "policy": "bound: changes cost nothing", "u": bound})
    return pd.DataFrame(table)


def _one(idle: IdleTrace, jobs: Sequence[TrainingJob], name: str) -> dict[str, float]:
    watched = Watched(policy=policies(idle)[name])
    _, tally = simulated(idle, [replace(job, submit_s=0.0) for job in jobs], watched, until_s=UNTIL_S)
    trained, end_s = watched.seen["trained"], watched.seen["until_s"]
    even = shared_evenly(jobs, idle.mean_idle(0.0, end_s), MOST_JOBS)
    losses = {"rescale_lost": tally.rescale_lost / trained, "preempt_lost": tally.preempt_lost / trained}
    return {"u": trained / end_s / even} | losses


def no_cost_bound(idle: IdleTrace, jobs: Sequence[TrainingJob], until_s: float) -> float:
    """Return a bound on U: ten trainers of the mean curve, shared out anew at every instant for nothing."""
    mean = np.mean([job.rates for job in jobs], axis=0)
    seconds: dict[int, float] = {}
    nodes, since_s = 0, 0.0
    for change in idle.between(0.0, until_s).changes():
        seconds[nodes] = seconds.get(nodes, 0.0) + change.time_s - since_s
        nodes, since_s = nodes + len(change.joined) - len(change.left), change.time_s
    best = np.zeros(max(seconds) + 1)
    for _ in range(MOST_JOBS):
        before = best.copy()
        for size in range(1, min(len(mean), len(best))):
            best[size:] = np.maximum(best[size:], before[:-size] + mean[size])
    trained = sum(best[nodes] * span_s for nodes, span_s in seconds.items())
    return float(trained / until_s / shared_evenly(jobs, idle.mean_idle(0.0, until_s), MOST_JOBS))
