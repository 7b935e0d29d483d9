"""The job scalability analyser: how fast a job would be on 1, 2, 3, ... GPUs, and with which batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddlsched.errors import InputError
from ddlsched.workload.elastic_job import ElasticJob

__all__ = ["Scalability", "analyse"]

_BATCHES = 24
"""How many batches are tried at each number of GPUs."""


@dataclass(frozen=True)
class Scalability:
    """A job's speed by its number of GPUs.

    Attributes
    ----------
    batch
        The best batch with 0, 1, 2, ... GPUs; 0 where the job cannot run.
    samples_per_s
        The rate with that batch; 0 where the job cannot run.
    """

    batch: np.ndarray
    samples_per_s: np.ndarray

    @property
    def speedup(self) -> np.ndarray:
        """Rate over that of one GPU; -inf where the job cannot run.

        A job that needs several GPUs to run at all is taken to be as fast on one as on those, shared out.
        """
        rates = self.samples_per_s
        least = int(np.argmax(rates > 0))
        return np.where(rates > 0, rates / (rates[least] / least), -np.inf)


def analyse(
    job: ElasticJob,
    most_gpus: int,
    communication_s: Callable[[int], float],
    batch: int | None = None,
) -> Scalability:
    """Estimate a job's rate on every number of GPUs from the time of one GPU and that of an all-reduce.

    An iteration takes ``job.curve.iteration_s(k, B) + communication_s(k)``; the rate is B over that. For each k the
    best of some two dozen batches B that the job allows is kept.

    Parameters
    ----------
    job
        Its curve is asked; it may be measured (a table of throughputs) or come from the
        training-time model (:mod:`ddlsched.training.estimate.estimated_jobs`).
    most_gpus
        The largest number of GPUs to look at (k_max).
    communication_s
        From a number of GPUs to the time of an iteration's all-reduce, seconds.
    batch
        Instead of the best one, the only one; then the job runs on those numbers of GPUs that have room for it.

    Raises
    ------
    InputError
        The job can run on no number of GPUs up to ``most_gpus``.
    """
    most = min(most_gpus, job.max_gpus)
    batches, rates = np.zeros(most_gpus + 1, np.int64), np.zeros(most_gpus + 1)
    for num_gpus in range(job.min_gpus, most + 1):
        wait_s = communication_s(num_gpus)
        for tried in _batches(job, num_gpus, batch):
            rate = tried / (job.curve.iteration_s(num_gpus, tried) + wait_s)
            if rate > rates[num_gpus]:
                batches[num_gpus], rates[num_gpus] = tried, rate
    if not rates.any():
        what = f"from {job.min_gpus} GPUs on" + ("" if batch is None else f", with a batch of {batch}")
        raise InputError(f"job {job.job_id!r}: runs {what}, and gets at most {most_gpus}; expected more")
    return Scalability(batches, rates)


def _batches(job: ElasticJob, num_gpus: int, batch: int | None) -> list[int]:
    """Return the batches to try, from smallest to largest, in equal ratios and in whole shares of the GPUs."""
    smallest, largest = job.smallest_batch(num_gpus), job.largest_batch(num_gpus)
    if batch is not None:
        return [batch] if smallest <= batch <= largest else []
    spread = np.geomspace(smallest, largest, _BATCHES)
    shares = np.unique(np.ceil(spread / num_gpus).astype(np.int64) * num_gpus)
    inside = shares[(shares >= smallest) & (shares <= largest)].tolist()
    return sorted({smallest, *inside, largest})
