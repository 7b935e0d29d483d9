"""The 160-job mix of the 64-GPU experiment, after a Microsoft trace."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ddlsched.errors import says_unknown_arguments
from ddlsched.ranges import check_arguments
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload


class ModelTimes(NamedTuple):
    """Measured on one GPU; the message is of 1e6-byte MB."""

    name: str
    message_bytes: float
    gpu_memory_mb: float
    forward_s: float
    backward_s: float


MODELS = (
    ModelTimes("VGG-16", 526.4e6, 4527, 0.036, 0.054),
    ModelTimes("ResNet-50", 99.2e6, 3213, 0.025, 0.037),
    ModelTimes("Inception-V3", 103.0e6, 3291, 0.035, 0.052),
    ModelTimes("LSTM-PTB", 251.8e6, 2751, 0.032, 0.047),
)
"""The models of the experiment (arXiv 2002.10105 and its authors' simulator)."""

JOBS_OF_SIZE = {1: 80, 2: 14, 4: 26, 8: 30, 16: 8, 32: 2}
"""How many of the 160 jobs have how many GPUs."""


@says_unknown_arguments
def microsoft_160(*, seed: int, scale: float = 1.0) -> Workload:
    """Return the workload: 160 jobs, models uniform, 1000..6000 iterations, arrivals over 1200 s.

    Parameters
    ----------
    seed
        Of numpy's PCG64; the same seed gives the same jobs.
    scale
        Multiplies iterations and arrivals; 0.01 is the form in which the authors ran their simulator.

    Raises
    ------
    InputError
        A scale that leaves no iteration, or a negative seed.
    """
    check_arguments("microsoft-160", scale=(scale, 0.001, 1e6), seed=(seed, 0))
    rng = np.random.default_rng(seed)
    sizes = rng.permutation(np.repeat(list(JOBS_OF_SIZE), list(JOBS_OF_SIZE.values())))
    models = rng.integers(len(MODELS), size=len(sizes))
    iterations = rng.integers(round(1000 * scale), round(6000 * scale), size=len(sizes), endpoint=True)
    arrivals_s = np.sort(rng.uniform(0.0, 1200.0 * scale, size=len(sizes)))
    rows = zip(models.tolist(), sizes.tolist(), iterations.tolist(), arrivals_s.tolist(), strict=True)
    return Workload(tuple(_job(number, MODELS[model], *row) for number, (model, *row) in enumerate(rows)))


def _job(number: int, model: ModelTimes, gpus: int, iterations: int, arrival_s: float) -> Job:
    iteration = DataParallelIteration(
        forward_s=model.forward_s, backward_s=model.backward_s, message_bytes=model.message_bytes
    )
    return Job(
        job_id=str(number),
        arrival_s=round(arrival_s, 9),
        num_gpus=gpus,
        iterations=iterations,
        iteration=iteration,
        gpu_memory_mb=model.gpu_memory_mb,
        model=model.name,
    )
