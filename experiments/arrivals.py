"""The jobs of a mix, drawn, and when they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ddlsched import Job, Workload
from ddlsched.workload.generators.streams import gpu_seconds


def drawn_once(mix: Callable[..., Iterable[Job]], seed: int, jobs: int, rng: np.random.Generator) -> list[Job]:
    """Return jobs of mixes of 160 that ``mix`` makes of seeds; none comes twice, as no job recurs to the iteration."""
    pool = [job for part in range(-(-jobs // 160)) for job in mix(seed=seed + 100_000 * part)]
    return [pool[place] for place in rng.choice(len(pool), size=jobs, replace=False).tolist()]


def arriving(jobs: Sequence[Job], arrivals_s: np.ndarray) -> Workload:
    """Return jobs, numbered, that arrive at these times, seconds."""
    numbered = enumerate(zip(jobs, arrivals_s.round(9).tolist(), strict=True))
    return Workload.of([replace(job, job_id=str(number), arrival_s=at_s) for number, (job, at_s) in numbered])


def poisson(
    jobs: Sequence[Job], *, load: float, gpus: int, gpus_per_server: int, gbps: float, rng: np.random.Generator
) -> Workload:
    """Return jobs that arrive as a Poisson process and ask for ``load`` of the GPUs; a server's card has ``gbps``."""
    alone_s = sum(alone_gpu_s(job, gpus_per_server, gbps) for job in jobs)
    return arriving(jobs, np.cumsum(rng.exponential(alone_s / (load * gpus * len(jobs)), len(jobs))))


def alone_gpu_s(job: Job, gpus_per_server: int, gbps: float) -> float:
    """Return the time of a job alone x its GPUs; a ring of four servers moves 1.5 of a message over each card."""
    return gpu_seconds(job, per_byte_s=1.5 * 8e-9 / gbps, gpus_per_server=gpus_per_server)
