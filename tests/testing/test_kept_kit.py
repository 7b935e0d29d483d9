"""What the conformance classes draw, ask and play, and how they make a case smaller: as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kept_numbers import assert_kept, digest, short

from ddlsched.network.collectives import KINDS
from ddlsched.policies.view_parts import View
from ddlsched.testing import (
    admission_conformance,
    conformance_runs,
    handmade,
    network_conformance,
    policy_conformance,
)
from ddlsched.testing.conformance_runs import assert_linear


def told(what: Any, depth: int = 2) -> str:
    """Return all that a view shows, and of the views that it shows."""
    if isinstance(what, float):
        return short(what)
    if isinstance(what, list | tuple | np.ndarray):
        return f"[{', '.join(told(each, depth) for each in what)}]"
    if not isinstance(what, View):
        return str(what) if isinstance(what, int | str | None) else type(what).__name__
    if depth == 0:
        return ""
    shown = [name for name in dir(what) if name[0] != "_" and not callable(getattr(type(what), name, None))]
    return str([f"{name} {told(getattr(what, name), depth - 1)}" for name in shown])


class Asked:
    """A policy that notes what it is asked, and answers as it is told to."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.heard: list[str] = []
        for name, answer in answers.items():
            setattr(self, name, self._noting(name, answer))

    def _noting(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*given: Any, **named: Any) -> Any:
            self.heard.append(f"{name} {told([*given, *named.values()])}")
            return answer(*given, **named)

        return asked


def asked_by(checks: type, check: str, **answers: Callable[..., Any]) -> str:
    policy = Asked(**answers)
    getattr(type("Checks", (checks,), {"make": lambda self: policy})(), check)()
    return f"{len(policy.heard)} {digest(policy.heard)}"


@pytest.mark.long
def test_what_policies_are_asked_is_what_it_was() -> None:
    of, network = policy_conformance, network_conformance
    place, order = of.PlacementConformance, of.OrderingConformance
    stopping: dict[str, Any] = {"stops": lambda *_: [], "key": lambda job, now_s: job.number}
    assert_kept("kit-asks", {
        "place": asked_by(place, "test_answers_none_or_that_many_fitting_gpus", place=lambda job, cluster: None),
        "full": asked_by(place, "test_waits_when_no_gpu_has_the_memory", place=lambda job, cluster: None),
        "moves": asked_by(place, "test_moves_are_jobs_that_run_and_gpus_that_hold_them", moves=lambda *_: []),
        "keys": asked_by(order, "test_keys_are_totally_ordered", key=lambda job, now_s: job.number),
        "stops": asked_by(order, "test_stops_are_jobs_that_run", **stopping),
        "allocate": asked_by(of.AllocationConformance, "test_answers_what_can_be_carried_out", allocate=lambda *_: {}),
        "share": asked_by(of.InterferenceConformance, "test_penalties_are_shares", penalty_share=lambda *_: 0.0),
        "lone": asked_by(network.CommunicationConformance, "test_lets_a_lone_transfer_run", admit=lambda *_: True),
        "path": asked_by(network.PathConformance, "test_answers_a_path", path=lambda *_: 0),
    })  # fmt: skip


def test_what_is_drawn_is_what_it_was() -> None:
    rng, found = np.random.default_rng(3), dict[str, str]()
    for seed in range(4):
        made = (
            conformance_runs.example_workload(seed),
            conformance_runs.long_workload(seed),
            conformance_runs.example_elastic_workload(seed),
            conformance_runs.example_workload(seed, num_jobs=3, most_gpus=2),
            conformance_runs.example_elastic_workload(seed, num_jobs=3, most_gpus=2),
        )
        found[f"workloads {seed}"] = " ".join(digest(map(str, workload.jobs)) for workload in made)
    links = handmade.example_network()
    flows = [flow for count in (1, 4, 9) for flow in conformance_runs.example_flows(rng, links, count)]
    found["network"] = f"{digest(map(str, links))} {digest(map(str, flows))} {digest(told(flow.job) for flow in flows)}"
    found["sizes"] = digest(map(str, handmade.example_network(3)))
    for kind in KINDS:
        groups = list(network_conformance._groups(kind))
        needed = [
            network_conformance._needed(kind, ranks, set(ranks[:count]))
            for ranks in groups
            for count in range(1, len(ranks))
        ]
        found[kind] = f"{len(groups)} {digest(map(str, groups))} {digest(map(short, needed))}"
    transfers = [network_conformance._random_transfer(rng, number, number % 5) for number in range(20)]
    found["transfers"] = digest(map(told, transfers))
    assert_kept("kit-draws", found)


def smaller_chain(case: Any, rng: np.random.Generator) -> list[str]:
    """Take drawn steps to smaller cases until one has a single job."""
    lines = []
    while len(case.jobs) > 1:
        steps = list(admission_conformance._smaller(case))
        lines += [str(len(steps)), *map(str, steps)]
        case = steps[int(rng.integers(len(steps)))]
    return lines


@pytest.mark.long
def test_cases_of_tenants_are_drawn_and_made_smaller_as_they_were() -> None:
    rng, found = np.random.default_rng(5), dict[str, str]()
    for number in range(12):
        case = admission_conformance.random_case(rng, groups=number % 3 > 0)
        chain = smaller_chain(case, rng)
        found[f"case {number}"] = f"{digest([case])} {len(chain)} {digest(chain)}"
    assert_kept("kit-cases", found)


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ([5, 4, 3], ""),
        ([(1, 9), (3, 9), (5, 9)], ""),
        ([7, 7, 7], ""),
        ([5, 4, 2], "changes by the same amount"),
        ([1, 2, 1], "changes by the same amount"),
        ([(1, 9), (2, 8)], "the other numbers stay the same"),
        ([1.5, 2.5], "the first number is whole"),
    ],
)
def test_keys_that_are_linear_pass_and_no_others(keys: list[Any], wrong: str) -> None:
    if not wrong:
        assert_linear(keys)
        return
    with pytest.raises(AssertionError, match=wrong):
        assert_linear(keys)
