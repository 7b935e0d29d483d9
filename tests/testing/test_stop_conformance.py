"""The conformance classes find policies whose stops, moves and paths are not what they should be."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from algorithms.path.ecmp import Ecmp
from algorithms.placement.first_fit import FirstFit
from ddlsched.policies.stopping import StopsByKey
from ddlsched.testing import OrderingConformance, PathConformance, PlacementConformance
from ddlsched.testing import conformance_runs as runs
from ddlsched.testing.conformance_runs import example_workload, long_workload


def failed(conformance: type, policy: Any, only: str = "test_") -> dict[str, str]:
    """Return the checks that a policy fails, of those whose names begin so, with what they say first."""
    checks = type("Checks", (conformance,), {"make": lambda self: policy})()
    faults = {}
    for name in (name for name in dir(checks) if name.startswith(only)):
        try:
            getattr(checks, name)()
        except Exception as error:
            faults[name] = str(error).partition("\n")[0]
    return faults


def frozen(kind: type) -> type:
    return dataclass(frozen=True, kw_only=True)(kind)


@frozen
class ShortFirst(StopsByKey):
    """Few GPUs first, also before those that run."""

    def key(self, job, now_s):
        return job.num_gpus, job.arrival_ns


@frozen
class StopsTheQueue(ShortFirst):
    def stops(self, running, queue, cluster):
        return [queue[0]]


@frozen
class StopsTwice(ShortFirst):
    def stops(self, running, queue, cluster):
        return [running[0], running[0]] if queue[0].num_gpus < running[0].num_gpus else []


COUNT: list[int] = []


@frozen
class RemembersEarlierRuns(ShortFirst):
    """Stops by a count that goes on from run to run."""

    def stops(self, running, queue, cluster):
        COUNT.append(1)
        return super().stops(running, queue, cluster) if len(COUNT) % 5 < 2 else []


@frozen
class PromisesALinearKey(StopsByKey):
    """By the parity of the iterations left, which is no linear key."""

    key_is_linear = True

    def key(self, job, now_s):
        return job.iterations_left % 7, job.arrival_ns


@pytest.mark.long
def test_an_order_that_stops_what_it_should_passes() -> None:
    assert failed(OrderingConformance, ShortFirst()) == {}


@pytest.mark.parametrize(
    ("policy", "check", "said"),
    [
        (StopsTheQueue(), "test_stops_are_jobs_that_run", "which does not run; expected some of the running jobs"),
        (StopsTheQueue(), "test_stops_run_alike", "which does not run; expected some of the running jobs"),
        (StopsTwice(), "test_stops_are_jobs_that_run", "twice; expected each job once"),
        (RemembersEarlierRuns(), "test_stops_run_alike", "the same seed gives the same run"),
        (PromisesALinearKey(), "test_linear_keys_are", "key_is_linear: the first number changes by the same amount"),
    ],
)
def test_stops_that_are_wrong_are_found(policy: Any, check: str, said: str) -> None:
    assert said in failed(OrderingConformance, policy, only=check).get(check, "passed")


# ---- Moves


@frozen
class Tidy(FirstFit):
    """A job on several servers goes to one that has room for all of it."""

    def moves(self, running, cluster):
        for job in running:
            for server in range(cluster.num_servers):
                room = [gpu for gpu in cluster.eligible_gpus(job) if cluster.server_of(gpu) == server]
                if len(job.servers) > 1 and len(room) >= job.num_gpus:
                    return [(job, room[: job.num_gpus])]
        return []


@frozen
class OntoTaken(Tidy):
    def moves(self, running, cluster):
        taken = [gpu for gpu in range(cluster.num_gpus) if cluster.num_residents(gpu)]
        alone = [job for job in running if job.num_gpus == 1]
        return [(job, taken[-1:]) for job in alone[:1] if taken[-1] not in job.gpus]


@frozen
class MovesByEarlierRuns(Tidy):
    def moves(self, running, cluster):
        COUNT.append(1)
        return super().moves(running, cluster) if len(COUNT) % 3 == 0 else []


@pytest.mark.long
def test_a_placement_that_moves_as_it_should_passes() -> None:
    assert failed(PlacementConformance, Tidy()) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "check", "said"),
    [
        (OntoTaken(), "test_moves_are_jobs_that_run_and_gpus_that_hold_them", "which has a job; expected a free one"),
        (MovesByEarlierRuns(), "test_moves_run_alike", "the same seed gives the same run"),
    ],
)
def test_moves_that_are_wrong_are_found(policy: Any, check: str, said: str) -> None:
    assert said in failed(PlacementConformance, policy).get(check, "passed")


@pytest.mark.long
@pytest.mark.parametrize(("door", "policy", "least"), [("order", ShortFirst(), 3), ("placement", Tidy(), 1)])
def test_the_example_runs_have_stops_and_moves(door: str, policy: Any, least: int) -> None:
    for make in (example_workload, long_workload):
        counts = [
            len(runs._run_at_a_price(make(seed), seed, {door: policy}).finished.departures) for seed in runs.SEEDS
        ]
        assert sum(counts) >= least, counts


# ---- Paths


@frozen
class PathBeyond:
    def path(self, flow, network):
        return len(flow.paths)


@frozen
class PathByEarlierRuns:
    def path(self, flow, network):
        COUNT.append(1)
        return random.Random(len(COUNT)).randrange(len(flow.paths))


@pytest.mark.long
def test_paths_that_are_wrong_are_found() -> None:
    assert failed(PathConformance, Ecmp()) == {}
    beyond = failed(PathConformance, PathBeyond())
    assert "path: answered 1 of 1 paths" in beyond["test_takes_the_only_path"]
    assert "path: answered 3 of 3 paths" in beyond["test_answers_a_path"]
    assert "expected a whole number from 0 to" in beyond["test_runs_alike"]
    assert failed(PathConformance, PathByEarlierRuns())["test_runs_alike"] == "the same seed gives the same run"


# ---- Recorded runs


@frozen
class ByTheRun:
    """It counts the runs, as nothing tells it which is recorded, and the third of a seed is."""

    recorded: bool = False

    def begin(self, cluster, rng):
        COUNT.append(1)
        return ByTheRun(recorded=len(COUNT) % 3 == 0)

    def key(self, job, now_s):
        return -job.number if self.recorded else job.number

    def path(self, flow, network):
        return flow.source % len(flow.paths) if self.recorded else 0


@pytest.mark.long
@pytest.mark.parametrize("conformance", [OrderingConformance, PathConformance])
def test_item_2_runs_that_are_recorded_are_compared(conformance: Any) -> None:
    COUNT.clear()
    assert failed(conformance, ByTheRun(), "test_runs_alike") == {"test_runs_alike": "recording changed it"}
