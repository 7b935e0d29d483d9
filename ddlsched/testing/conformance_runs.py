"""Runs and checks that the conformance classes share."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.policies.promises import PROMISES, promises
from ddlsched.results.result import Result
from ddlsched.simulation import simulate
from ddlsched.testing.examples import (
    example_workload,
    long_workload,
    python_form,
    without_promises,
)
from ddlsched.workload.job import Workload

__all__ = [
    "CLUSTER",
    "SEEDS",
    "Conformance",
    "assert_linear",
    "assert_promises_change_nothing",
    "assert_runs_alike",
    "assert_stops_and_moves_alike",
    "begun",
    "finishes_of",
    "run_example",
]

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
    finishes: list[int] = result.finished.state.jobs.finish_ns.tolist()
    return finishes


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
    """Assert: same seed, same run, to the bit; and the compiled form, if stated, is the Python form."""
    for seed in SEEDS:
        finishes = finishes_of(run_example(seed, **{door: plugin}))
        assert all(finish > 0 for finish in finishes), "every job finishes"
        assert finishes == finishes_of(run_example(seed, **{door: plugin})), "the same seed gives the same run"
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
