"""Nodes that fail on purpose through hours of drawn failures: who is there, what is hit, and how jobs go on."""

from __future__ import annotations

import os
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from kept_numbers import assert_kept, digest

from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.cluster.reliability_doors import WAIT
from ddlsched.errors import InvalidDecisionError
from ddlsched.real.live.failing import FailingNodes

CAUSES = (
    FailureCause(cause="node", per="server", mtbf_s=300.0, repair_s=40.0),
    FailureCause(cause="dies", per="gpu", mtbf_s=700.0, takes="job"),
    FailureCause(cause="hangs", per="server", mtbf_s=900.0, takes="job", noticed_s=9.0),
    FailureCause(cause="own", per="job", mtbf_s=400.0, takes="job"),
    FailureCause(cause="known", per="server", mtbf_s=900.0, repair_s=30.0, warned=True),
    FailureCause(cause="unseen", per="gpu", mtbf_s=900.0, takes="job", noticed_s=inf),
)
JOBS = {"a": 2, "b": 1, "c": 3}
GROUPS = (("a", (0, 1)), ("b", (2,)), ("c", (3, 4, 5)))


def groups_on(there: set[str], jobs: tuple[tuple[str, tuple[int, ...]], ...]) -> dict[str, Any]:
    """Return the jobs on those of their nodes that are there."""
    found = {}
    for place, (name, nodes) in enumerate(jobs):
        names = [f"node{node}" for node in nodes if f"node{node}" in there]
        process = {node: SimpleNamespace(process=SimpleNamespace(pid=100 * place + int(node[4:]))) for node in names}
        if names:
            found[name] = SimpleNamespace(nodes=tuple(names), workers=process)
    return found


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("none", {}),
        ("spares", {"recovery": "spares:count=2"}),
        ("wait", {"recovery": "wait"}),
        ("health", {"health": "repeated-failures", "recovery": "spares:count=1"}),
    ],
)
def test_hours_of_failures_are_what_they_were(name: str, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, int(number))))
    for seed in range(3):
        failing = FailingNodes(8, JOBS, Disturbances(failures=CAUSES, **given), seed=seed, speed=2.0)
        told = []
        there: set[str] = set(failing.idle(0.0))
        for now_s in range(1, 600):
            failing.running = groups_on(there, GROUPS)
            there = set(failing.idle(float(now_s)))
            waits = [failing.awaited(job) for job in JOBS]
            told.append(f"{sorted(there)} {waits} {failing.order('c', there)} {len(sent)}")
        kept[f"{name} {seed}"] = f"{digest(told)} {digest(sent)} {len(failing.failures)} {digest(failing.failures)}"
        kept[f"{name} {seed}, sent"] = f"{len(sent)} {sorted({number for _, number in sent})} {len(set(told))}"
        sent.clear()
    assert_kept(f"failing-nodes-{name}", kept)


def test_the_time_to_a_failure_is_that_of_all_causes_that_hit_a_job() -> None:
    causes = (
        FailureCause(cause="node", per="server", mtbf_s=600.0),
        FailureCause(cause="own", per="job", mtbf_s=300.0, takes="job"),
    )
    failing = FailingNodes(3, JOBS, Disturbances(failures=causes), speed=2.0)
    # A job on two nodes is hit twice in 600 s by nodes and twice by itself, at double speed in half the time.
    assert failing.time_to_failure_s(2) == pytest.approx(600 / 4 / 2)
    assert FailingNodes(3, JOBS, Disturbances()).time_to_failure_s(2) == inf


class Recovery:
    """Answers what it is told to, and notes what it sees."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.seen = answer, list[Any]()

    def spares(self, num_servers: int, racks: Any) -> list[int]:
        assert (num_servers, racks) == (4, ())
        return [3, 2]

    def start_s(self, job: Any) -> float:
        raise AssertionError

    def recover(self, job: Any) -> Any:
        self.seen.append(job)
        return self.answer


def test_a_recovery_sees_the_job_and_gives_spares_only() -> None:
    for answer, there, awaited in (
        (None, {"node1"}, 0),
        (WAIT, {"node1"}, 1),
        ({0: 3}, {"node1", "node3"}, 0),
        ({0: 1}, set(), 0),
        (5, set(), 0),
    ):
        recovery = Recovery(answer)
        outages = (Outage(server=0, from_s=10, to_s=30),)
        failing = FailingNodes(4, {"a": 2}, Disturbances(outages=outages, recovery=recovery), speed=4.0)
        failing.running = groups_on({"node0", "node1"}, (("a", (1, 0)),))
        assert failing.idle(2.4) == {"node0", "node1"}
        if there:
            assert failing.idle(2.5) == there
            assert failing.awaited("a") == awaited
            assert failing.order("a", {"node1", "node3"}) == (
                ["node3", "node1"] if answer == {0: 3} else ["node1", "node3"]
            )
            assert failing.idle(7.5) == (there if answer == {0: 3} else {"node0", "node1"})
            assert failing.awaited("a") == 0
        else:
            with pytest.raises(InvalidDecisionError, match=r"expected one of the spares \{2: 1, 3: 1\}"):
                failing.idle(2.5)
        [seen] = recovery.seen
        assert (seen.job_id, seen.num_gpus, seen.servers, seen.lost) == ("a", 2, (1, 0), {0: 1})
        assert (seen.spares, seen.racks, seen.now_s) == ({2: 1, 3: 1}, (), 10.0)
