"""What jobs reduce: sizes of their messages, and over how many workers at most."""

from __future__ import annotations

from collections.abc import Iterable

from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job
from ddlsched.workload.tasks import CollectiveTask

__all__ = ["messages_and_workers"]


def messages_and_workers(jobs: Iterable[Job]) -> list[tuple[list[float], int]]:
    """Return of each job with several GPUs the sizes of an iteration's messages, bytes, and its number of GPUs."""
    return [(_messages(job), job.num_gpus) for job in jobs if job.num_gpus > 1]


def _messages(job: Job) -> list[float]:
    if isinstance(job, ElasticJob):
        return [job.message_bytes] if job.message_bytes > 0 else []
    return [task.message_bytes for task in job.dag.tasks if isinstance(task, CollectiveTask)]
