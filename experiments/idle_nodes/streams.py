"""Streams of short jobs with different scaling, and what knowing, supposing or measuring that is worth.

Architecture search and hyper-parameter search, made from a seed.

A job on n nodes trains n B / (c B + s (n - 1) / n + l log2 n) samples/s: the time to compute a share of B samples, to
reduce gradients in a ring, and to start that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from inputs import Inputs
from on_engine import simulated
from parallel import Workers
from replay import TrainingJob

from algorithms.allocation.count_programme import CountProgramme
from algorithms.allocation.malletrain import MalleTrain
from algorithms.allocation.sharing import Sharing
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.idle_trace import IdleTrace
from ddlsched.policies.doors import Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.workload.elastic_job import ElasticJob, ThroughputCurve
from ddlsched.workload.profiling import extrapolated
from ddlsched.workload.trainers import Numbers

JOBS, MOST_NODES = 60, 32
LONGEST_S = 72 * 3600.0
"""Of the trace, left for the last stream."""
MOST_OF_A_STREAM = 0.8
"""Throughput of a stream is that of its first four fifths: then the last few jobs share all nodes."""
MEAN_NODE_S = 6 * 3600.0
"""Of a job, on one node."""


def architecture_search(seed: int, num_jobs: int) -> list[TrainingJob]:
    """Return child networks: each computes and communicates as its own size has it."""
    rng = np.random.default_rng([seed, 1])
    compute_s = 0.1 * rng.lognormal(0.0, 0.8, num_jobs)
    reduce_s = 0.1 * rng.lognormal(0.0, 1.0, num_jobs)
    return _jobs("nas", rng, np.full(num_jobs, 64.0), compute_s, reduce_s)


def hyperparameter_search(seed: int, num_jobs: int) -> list[TrainingJob]:
    """Return trials of one network that differ in their batch: small ones communicate the more for a sample."""
    rng = np.random.default_rng([seed, 2])
    batch = rng.choice([16.0, 32.0, 64.0, 128.0, 256.0], num_jobs)
    return _jobs("hpo", rng, batch, 0.1 * batch / 64.0, np.full(num_jobs, 0.1))


def _jobs(
    name: str, rng: np.random.Generator, batch: np.ndarray, compute_s: np.ndarray, reduce_s: np.ndarray
) -> list[TrainingJob]:
    nodes = np.arange(1, MOST_NODES + 1)
    work_s = MEAN_NODE_S * rng.exponential(1.0, len(batch)).clip(0.1, 4.0)
    jobs = []
    for j, (b, c, s) in enumerate(zip(batch, compute_s, reduce_s, strict=True)):
        rates = nodes * b / (c + s * (nodes - 1) / nodes + 0.1 * s * np.log2(nodes))
        jobs.append(
            TrainingJob(
                job_id=f"{name}{j:04d}",
                submit_s=0.0,
                samples=float(round(work_s[j] * rates[0])),
                rates=np.append(0.0, rates),
                scale_up_s=18.0,
                scale_down_s=12.0,
            )
        )
    return jobs


MAKERS = {"architecture search": architecture_search, "hyper-parameter search": hyperparameter_search}
POLICIES = (
    "FreeTrain, linear",
    "FreeTrain, average curve",
    "FreeTrain, 1 to 4 nodes",
    "FreeTrain, true curves",
    "MalleTrain",
)


@dataclass(frozen=True, kw_only=True)
class Supposed:
    """FreeTrain whose users supply the given rates, samples/s at 0, 1, ... nodes, by job."""

    rates: Mapping[str, Numbers]

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _SupposedRun:
        """Return what is asked during a run."""
        return _SupposedRun(CountProgramme(lookahead_s=120.0).begin(cluster, rng), self.rates)


@dataclass
class _SupposedRun:
    asked: Sharing
    rates: Mapping[str, Numbers]
    jobs: dict[str, ElasticJob] = field(default_factory=dict)

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation]:
        return self.asked.allocate([replace(view, job=self._supposed(view.job)) for view in jobs], capacity, now_s)

    def _supposed(self, job: ElasticJob) -> ElasticJob:
        if job.job_id not in self.jobs:
            rates = self.rates[job.job_id][1:].tolist()
            curve = ThroughputCurve(num_gpus=tuple(range(1, len(rates) + 1)), samples_per_s=tuple(rates))
            self.jobs[job.job_id] = replace(job, curve=curve)
        return self.jobs[job.job_id]


def policy_of(name: str, jobs: Sequence[TrainingJob]) -> Any:
    """Return one of those that are compared; FreeTrain's are told apart by what its users suppose of their jobs."""
    if name == "MalleTrain":
        return MalleTrain(lookahead_s=120.0)
    if name == "FreeTrain, true curves":
        return CountProgramme(lookahead_s=120.0)
    if name == "FreeTrain, linear":
        return CountProgramme(lookahead_s=120.0, believes="linear")
    if name == "FreeTrain, average curve":
        average = np.mean([job.rates / job.rates[1] for job in jobs], axis=0)
        return Supposed(rates={job.job_id: average * job.rates[1] for job in jobs})
    known = {job.job_id: {n: float(job.rates[n]) for n in range(1, 5)} for job in jobs}
    return Supposed(rates={job_id: extrapolated(rates, MOST_NODES) for job_id, rates in known.items()})


def streams(inputs: Inputs, workers: Workers, seeds: int) -> pd.DataFrame:
    """Return how fast each policy is done with streams of jobs; each seed has its own jobs and its own time."""
    apart_s = (float(inputs.idle.idle_to_s.max()) - LONGEST_S) / max(seeds - 1, 1)
    settings = list(product(MAKERS, range(1, seeds + 1), POLICIES))
    later = [inputs.idle.since(seed * max(apart_s, 0.0)) for seed in range(seeds)]
    rows = workers.do("streams", _done, [(later[seed - 1], stream, seed, policy) for stream, seed, policy in settings])
    labels = [dict(zip(("stream", "seed", "policy"), setting, strict=True)) for setting in settings]
    return pd.DataFrame([a | b for a, b in zip(labels, rows, strict=True)])


def _done(idle: IdleTrace, stream: str, seed: int, policy: str) -> dict[str, float]:
    jobs = MAKERS[stream](seed, JOBS)
    result, _ = simulated(idle, jobs, policy_of(policy, jobs))
    finish_h = np.sort(result.jobs["finish_s"]) / 3600
    first = int(MOST_OF_A_STREAM * len(jobs))
    return {"jobs_per_h": first / finish_h[first - 1], "makespan_h": finish_h[-1], "mean_finish_h": finish_h.mean()}
