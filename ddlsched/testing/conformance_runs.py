"""Runs, checks, and the small random workloads and networks for them, that the conformance classes share."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.network.topology import Link
from ddlsched.policies.promises import PROMISES, promises
from ddlsched.policies.views import JobView, as_list
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.testing.handmade import job_view
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve
from ddlsched.workload.job import Job, Workload

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
    if not dataclasses.is_dataclass(plugin):
        return _changed(copy.deepcopy(plugin), attributes)
    plain = type(kind.__name__, (kind,), attributes)
    values = {field.name: getattr(plugin, field.name) for field in dataclasses.fields(kind) if field.init}
    made: Plugin = plain(**values)
    return made


def _given(begun: Any, attributes: dict[str, Any]) -> Any:
    """Return what ``begin`` answered, of a class with other attributes; it is not copied: it may hold anything."""
    kind, changes = type(begun), {name: value for name, value in attributes.items() if name != "begin"}
    return _changed(begun, changes) if any(getattr(kind, name, None) is not v for name, v in changes.items()) else begun


def _changed(plugin: Plugin, attributes: dict[str, Any]) -> Plugin:
    kind = type(plugin)
    object.__setattr__(plugin, "__class__", type(kind.__name__, (kind,), attributes | {"__slots__": ()}))
    return plugin


SEEDS = range(4)
CLUSTER = Cluster(num_servers=4, gpus_per_server=3)
_EXCLUSIVE = Cluster(num_servers=4, gpus_per_server=3, exclusive=True)
_PRICE = Disturbances(restart_s=0.05, state_mb=200.0)
_COMPILED_DOORS = ("order", "communication", "contention")


def run_example(seed: int, **plugins: Any) -> Result:
    """Run the example workload of a seed on the example cluster."""
    return simulate(example_workload(seed), CLUSTER, seed=seed, **plugins)


def finishes_of(result: Result) -> list[int]:
    """Return when each job finished, nanoseconds."""
    return as_list(result.finished.state.jobs.finish_ns)


def _assert_frozen_dataclass(plugin: object) -> None:
    """Assert: a plug-in is a frozen dataclass with keyword-only parameters."""
    assert dataclasses.is_dataclass(plugin), "a plug-in is a dataclass: its parameters are its fields"
    parameters = getattr(type(plugin), "__dataclass_params__")  # noqa: B009
    assert parameters.frozen, "a plug-in is frozen: nothing may change between runs"
    assert all(field.kw_only for field in dataclasses.fields(plugin)), "parameters are keyword-only"
    hash(plugin)


class Conformance:
    """What all conformance classes check."""

    def make(self) -> Any:
        """Return what is tested."""
        raise NotImplementedError("give the conformance class a make() that returns what is tested")

    def test_is_a_frozen_dataclass(self) -> None:
        """Parameters are fields, and nothing changes between runs."""
        _assert_frozen_dataclass(self.make())


def begun(policy: Any, cluster: Cluster = CLUSTER) -> Any:
    """Return the object that is asked during a run."""
    return policy.begin(cluster, np.random.default_rng(0)) if hasattr(policy, "begin") else policy


def assert_runs_alike(door: str, plugin: object) -> None:
    """Assert: same seed, same run, to the bit, recorded or not; and the compiled form, if stated, is the Python form.

    So what remembers is asked about the same in the same sequence, whatever is recorded.
    """
    for seed in SEEDS:
        finishes = finishes_of(run_example(seed, **{door: plugin}))
        assert all(finish > 0 for finish in finishes), "every job finishes"
        assert finishes == finishes_of(run_example(seed, **{door: plugin})), "the same seed gives the same run"
        assert finishes == finishes_of(run_example(seed, **{door: plugin}, timeline=True)), "recording changed it"
        if door in _COMPILED_DOORS and getattr(plugin, "compiled", None) is not False:
            assert finishes == finishes_of(run_example(seed, **{door: python_form(plugin)})), "both forms agree"


def assert_promises_change_nothing(door: str, plugin: object) -> None:
    """Assert: a run that takes shortcuts by what the class promises is the run without."""
    made = [name for name in PROMISES if promises(plugin, name)]
    for seed in range(2 * len(SEEDS)) if made else ():
        for workload in (example_workload(seed), long_workload(seed)):
            kinds: list[Any] = [plugin, without_promises(plugin)]
            plugins: list[dict[str, Any]] = [{door: kind} for kind in kinds]
            finishes = [finishes_of(simulate(workload, CLUSTER, seed=seed, **given)) for given in plugins]
            assert finishes[0] == finishes[1], f"what the class promises is so: {' and '.join(made)}"


def assert_stops_and_moves_alike(door: str, plugin: object) -> None:
    """Assert of runs in which a policy may stop or move jobs, at a price: same seed, same run, in each of its forms.

    Every job finishes, no two are on a GPU at once, and it changes nothing whether the run is recorded, whether the
    policy is compiled, and whether what its class promises is relied on.
    """
    forms = {"the same seed gives the same run": plugin, "what the class promises is so": without_promises(plugin)}
    if door in _COMPILED_DOORS and getattr(plugin, "compiled", None) is not False:
        forms["both forms agree"] = python_form(plugin)
    for seed in SEEDS:
        for workload in (example_workload(seed), long_workload(seed)):
            result = _run_at_a_price(workload, seed, {door: plugin})
            finishes = finishes_of(result)
            assert all(finish > 0 for finish in finishes), "every job finishes"
            _assert_one_job_a_gpu(result)
            for what, form in forms.items():
                assert finishes == finishes_of(_run_at_a_price(workload, seed, {door: form})), what
            recorded = _run_at_a_price(workload, seed, {door: plugin}, timeline=True)
            assert finishes == finishes_of(recorded), "a run that is recorded, in which nothing is skipped, is the same"


def _run_at_a_price(workload: Workload, seed: int, plugins: dict[str, Any], *, timeline: bool = False) -> Result:
    return simulate(workload, _EXCLUSIVE, seed=seed, disturbances=_PRICE, timeline=timeline, **plugins)


def _assert_one_job_a_gpu(result: Result) -> None:
    assert result.most_jobs_on_a_gpu <= 1, "a GPU of an exclusive cluster has one job at a time"
    departures = len(result.finished.departures)
    assert result.jobs["restarts"].sum() == departures, "a job leaves its GPUs before its end by a stop or a move only"


def assert_linear(keys: list[Any]) -> None:
    """Assert what ``key_is_linear`` promises of keys after equally many iterations each."""
    parts = [key if isinstance(key, tuple | list) else (key,) for key in keys]
    first = [part[0] for part in parts]
    assert all(isinstance(number, int | np.integer) for number in first), "key_is_linear: the first number is whole"
    steps = {after - before for before, after in pairwise(first)}
    assert len(steps) <= 1, f"key_is_linear: the first number changes by the same amount, not {sorted(steps)[:3]}"
    others = {tuple(part[1:]) for part in parts}
    assert len(others) == 1, f"key_is_linear: the other numbers stay the same, not {sorted(others)[:3]}"
