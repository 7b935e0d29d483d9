"""Jobs for cases worked out by hand, and a placement that puts them where the case wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from ddlsched.workload.job import Job


def data_parallel_job(
    job_id: str = "a",
    gpus: int = 1,
    *,
    arrival_s: float = 0.0,
    iterations: int = 1,
    memory_mb: float = 1.0,
    model: str | None = None,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    message_bytes: float = 0.0,
    buckets: int = 1,
) -> Job:
    """Return a job of iterations in which all that is not told takes no time."""
    iteration = DataParallelIteration(
        forward_s=forward_s, backward_s=backward_s, message_bytes=message_bytes, buckets=buckets
    )
    return Job(
        job_id=job_id,
        arrival_s=arrival_s,
        num_gpus=gpus,
        iterations=iterations,
        iteration=iteration,
        gpu_memory_mb=memory_mb,
        model=model,
    )


def elastic_job(job_id: str = "a", **changes: Any) -> ElasticJob:
    """One GPU takes 10 ms a sample; the share of a GPU is what counts."""
    fields: dict[str, Any] = {
        "arrival_s": 0.0,
        "samples": 1000,
        "curve": LinearCurve(fixed_s=0.0, sample_s=0.01),
        "gpu_batch": 10,
        "max_gpus": 4,
    }
    return ElasticJob(job_id=job_id, **fields | changes)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """Places each job on given GPUs."""

    gpus: dict[str, list[int]]

    def place(self, job: Any, cluster: Any) -> list[int]:
        return self.gpus[job.job_id]


class ServiceSeen:
    """FIFO that notes each job's service, attained and used, nanoseconds."""

    compiled = False

    def __init__(self):
        self.seen = {}

    def key(self, job, now_s):
        self.seen.setdefault(job.job_id, []).append((job.attained_service_ns, job.used_service_ns))
        return job.arrival_ns
