"""Small random workloads and networks that the conformance classes run plug-ins on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ddlsched.network.topology import Link
from ddlsched.policies.promises import PROMISES
from ddlsched.policies.views import JobView
from ddlsched.testing.handmade import job_view
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.scaling_curves import LinearCurve

__all__ = [
    "ExampleFlow",
    "example_elastic_workload",
    "example_flows",
    "example_network",
    "example_workload",
    "long_workload",
    "python_form",
    "without_promises",
]

Plugin = TypeVar("Plugin")


def example_workload(seed: int, *, num_jobs: int = 12, most_gpus: int = 9) -> Workload:
    """Return jobs with ties of every kind: equal arrivals, equal times, buckets, and messages of 0 bytes."""
    rng = np.random.default_rng(seed)
    return Workload(tuple(_job(rng, number, most_gpus) for number in range(num_jobs)))


def long_workload(seed: int) -> Workload:
    """Return jobs of many like iterations that meet on GPUs and links, so that the engine skips and jumps ahead."""
    rng = np.random.default_rng(seed)
    jobs = [
        Job(
            job_id=f"l{number}",
            arrival_s=float(rng.choice([0.0, 0.5, 3.0])),
            num_gpus=int(rng.choice([2, 4, 5])),
            iterations=int(rng.integers(20, 600)),
            iteration=DataParallelIteration(
                forward_s=float(rng.choice([0.01, 0.02])),
                backward_s=0.02,
                message_bytes=float(rng.choice([2e7, 5e7, 2e8])),
                buckets=int(rng.choice([1, 1, 2])),
            ),
            gpu_memory_mb=6000.0,
        )
        for number in range(7)
    ]
    return Workload.of(jobs)


def _job(rng: np.random.Generator, number: int, most_gpus: int) -> Job:
    iteration = DataParallelIteration(
        forward_s=float(rng.choice([0.0, 0.01, 0.025])),
        backward_s=float(rng.choice([0.02, 0.037, 0.05])),
        message_bytes=float(rng.choice([0.0, 1e6, 99.2e6, 526.4e6])),
        buckets=int(rng.choice([1, 1, 3])),
    )
    return Job(
        job_id=f"j{number}",
        arrival_s=float(rng.choice([0.0, 0.1, 0.5, float(rng.uniform(0, 2))])),
        num_gpus=int(rng.integers(1, most_gpus, endpoint=True)),
        iterations=int(rng.integers(1, 12, endpoint=True)),
        iteration=iteration,
        gpu_memory_mb=float(rng.choice([3000.0, 9000.5, 17000.0])),
    )


def example_elastic_workload(seed: int, *, num_jobs: int = 10, most_gpus: int = 6) -> Workload:
    """Return elastic jobs with equal arrivals, with and without messages, that run for minutes."""
    rng = np.random.default_rng(seed)
    jobs = [
        ElasticJob(
            job_id=f"e{number}",
            arrival_s=float(rng.choice([0.0, 60.0, 250.0])),
            samples=int(rng.integers(1, 40_000)),
            curve=LinearCurve(fixed_s=0.02, sample_s=float(rng.choice([0.005, 0.01]))),
            gpu_batch=int(rng.choice([8, 32])),
            max_gpus=int(rng.integers(1, most_gpus, endpoint=True)),
            message_bytes=float(rng.choice([0.0, 99.2e6])),
        )
        for number in range(num_jobs)
    ]
    return Workload.of(jobs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExampleFlow:
    """A transfer as a contention model sees it."""

    servers: tuple[int, ...]
    links: tuple[int, ...]
    message_bytes: float = 100e6
    bytes_left: float = 100e6
    job: JobView | None = None

    @property
    def bytes_sent(self) -> float:
        """Bytes sent."""
        return self.message_bytes - self.bytes_left


def example_network(num_servers: int = 6) -> list[Link]:
    """Return the links of a star of equal servers."""
    return [
        Link(name=f"server {server}", bandwidth_bytes_per_s=1.25e9, relative_bandwidth=1.0)
        for server in range(num_servers)
    ]


def example_flows(rng: np.random.Generator, links: Sequence[Link], count: int) -> list[ExampleFlow]:
    """Return transfers between random servers of a star, of which some is sent."""
    flows = []
    for number in range(count):
        size = int(rng.integers(2, len(links), endpoint=True))
        servers = tuple(int(s) for s in rng.choice(len(links), size, replace=False))
        message_bytes = float(rng.choice([1e6, 1e8, 5e8]))
        flows.append(
            ExampleFlow(
                servers=servers,
                links=tuple(sorted(servers)),
                message_bytes=message_bytes,
                bytes_left=message_bytes * float(rng.choice([1.0, 0.6, 0.05])),
                job=job_view(number=number, num_gpus=size, servers=servers, iterations_left=number + 1),
            )
        )
    return flows


def python_form(plugin: Plugin) -> Plugin:
    """Return the same plug-in without its compiled form, so that the engine asks its Python methods."""
    return _with_attributes(plugin, {"compiled": False})


def without_promises(plugin: Plugin) -> Plugin:
    """Return the same plug-in without what its class promises, so that the engine takes no shortcut by that."""
    return _with_attributes(plugin, dict.fromkeys(PROMISES, False))


def _with_attributes(plugin: Plugin, attributes: dict[str, Any]) -> Plugin:
    kind: Any = type(plugin)
    attributes = dict(attributes)
    if hasattr(kind, "begin"):
        made_by = kind.begin
        attributes["begin"] = lambda self, cluster, rng: _given(made_by(self, cluster, rng), attributes)
    plain = type(kind.__name__, (kind,), attributes)
    values = {field.name: getattr(plugin, field.name) for field in dataclasses.fields(kind) if field.init}
    made: Plugin = plain(**values)
    return made


def _given(begun: Any, attributes: dict[str, Any]) -> Any:
    """Return what ``begin`` answered, of a class with other attributes; it is not copied: it may hold anything."""
    kind, changes = type(begun), {name: value for name, value in attributes.items() if name != "begin"}
    if any(getattr(kind, name, None) is not value for name, value in changes.items()):
        object.__setattr__(begun, "__class__", type(kind.__name__, (kind,), changes | {"__slots__": ()}))
    return begun
