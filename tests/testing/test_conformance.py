"""The conformance classes find what a policy's class promises and does not keep."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlsched.engine.field_values import SliceKind
from ddlsched.network.collectives import Phase, Rank
from ddlsched.testing import CommunicationConformance, OrderingConformance, admission_conformance, network_conformance


def promises(name):
    """Make a plug-in of a class that promises something."""

    def promising(kind):
        setattr(kind, name, True)
        return dataclass(frozen=True, kw_only=True)(kind)

    return promising


@promises("refusal_lasts")
class RefusesByTheClock:
    def admit(self, transfer, network):
        return network.most_on_links_of(transfer) == 0 or network.now_s % 0.5 < 0.25


@promises("refusal_lasts")
class RefusesForOthersElsewhere:
    def admit(self, transfer, network):
        return len(network.active) == 0


@promises("refusal_lasts")
class RefusesUntilLittleIsLeft:
    def admit(self, transfer, network):
        return all(other.bytes_left < 0.5 * other.message_bytes for other in network.met_by(transfer))


@promises("refusal_lasts")
class RefusesUntilManyWait:
    def admit(self, transfer, network):
        return network.most_on_links_of(transfer) == 0 or len(network.waiting) > 1


@promises("refusal_lasts")
class RefusesOneThatMeetsNobody:
    def admit(self, transfer, network):
        return network.now_s > 0.75 or len(network.waiting) > 0


@promises("refusal_lasts")
class KeepsItsRefusals:
    def admit(self, transfer, network):
        return network.most_on_links_of(transfer) < 2


@promises("key_is_linear")
class SecondNumberChanges:
    def key(self, job, now_s):
        return 0, job.iterations_left % 3


@promises("key_is_linear")
class Quadratic:
    def key(self, job, now_s):
        return job.iterations_left * job.iterations_left


@promises("key_is_linear")
class Float:
    def key(self, job, now_s):
        return job.iterations_left / 2


@promises("key_is_linear")
class Linear:
    def key(self, job, now_s):
        return -3 * job.iterations_left, job.num_gpus


@promises("key_is_linear")
class TransferKeyJumps:
    def transfer_key(self, transfer, network):
        return transfer.job.iterations_left % 5


@promises("key_is_linear")
class TransfersOfAJobDiffer:
    def transfer_key(self, transfer, network):
        return transfer.job.iterations_left * int(transfer.message_bytes)


@promises("key_falls_while_sending")
class KeyRises:
    def transfer_key(self, transfer, network):
        return -transfer.bytes_left


def _faults(conformance: type, policy: Any) -> list[str]:
    """Return the checks of promises that a policy fails on hand-made views."""
    checks = type("Checks", (conformance,), {"make": lambda self: policy()})()
    failed = []
    for name in ("test_refusals_last", "test_linear_keys_are", "test_keys_fall_while_sending"):
        try:
            getattr(checks, name, lambda: None)()
        except AssertionError as error:
            failed.append(str(error).split(":")[0])
    return failed


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (RefusesByTheClock, "refusal_lasts"),
        (RefusesForOthersElsewhere, "refusal_lasts"),
        (RefusesUntilLittleIsLeft, "refusal_lasts"),
        (RefusesUntilManyWait, "refusal_lasts"),
        (RefusesOneThatMeetsNobody, "refusal_lasts"),
        (TransferKeyJumps, "key_is_linear"),
        (TransfersOfAJobDiffer, "key_is_linear"),
        (KeyRises, "key_falls_while_sending"),
    ],
)
def test_a_broken_promise_of_a_communication_policy_is_found(policy, promise):
    assert _faults(CommunicationConformance, policy) == [promise]


@pytest.mark.parametrize("policy", [SecondNumberChanges, Quadratic, Float])
def test_a_broken_promise_of_an_order_is_found(policy):
    assert _faults(OrderingConformance, policy) == ["key_is_linear"]


@pytest.mark.long
def test_a_promise_that_is_kept_is_none_of_the_faults():
    assert _faults(CommunicationConformance, KeepsItsRefusals) == []
    assert _faults(OrderingConformance, Linear) == []


@pytest.mark.long
@pytest.mark.parametrize("policy", [RefusesByTheClock, RefusesForOthersElsewhere, RefusesUntilLittleIsLeft])
def test_a_broken_promise_changes_a_run_and_is_found_there_too(policy):
    class Checks(CommunicationConformance):
        def make(self):
            return policy()

    with pytest.raises(AssertionError):
        Checks().test_runs_alike()


def test_what_some_ranks_send_the_others_leaves_out_what_stays_among_them() -> None:
    one, two, three = (Rank(server, 0, 0) for server in range(3))
    flows = ((one, two, 1.0), (one, three, 2.0), (two, three, 4.0), (three, one, 8.0))
    phases = [Phase(flows, 1), Phase(flows, 1, merged=True)]
    assert network_conformance._sent_by(phases, {one, two}) == (2.0 + 4.0) + 4.0


def test_cases_of_tenants_have_groups_and_start_at_once_unless_asked_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(admission_conformance, "random_case", lambda _, groups: asked.append(groups))
    monkeypatch.setattr(admission_conformance, "_fault", lambda *given: asked.append(given[3]))
    assert admission_conformance.find_fault(None, cases=1) is None
    assert admission_conformance.find_fault(None, cases=1, groups=False, at_once=False) is None
    assert asked == [True, True, False, False]


@pytest.mark.parametrize(("available", "faults"), [(1, 0), (2, 1), (3, 1)])
def test_a_victim_is_needless_beside_whom_a_job_would_have_fitted(available: int, faults: int) -> None:
    node = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None, available=lambda _: available)
    play: Any = SimpleNamespace(quotas={"a": node}, faults=[])
    answer: Any = SimpleNamespace(job=SimpleNamespace(queue="a", num_gpus=2), kind="any")
    admission_conformance._Play._check_need(play, answer, [SimpleNamespace(queue="a", kind="any", num_gpus=1)])  # type: ignore[list-item]
    assert len(play.faults) == faults


@pytest.mark.parametrize(("end_ns", "is_right"), [(400, True), (100, False), (25, False)])
def test_bytes_of_all_iterations_are_expected(end_ns: int, is_right: bool) -> None:
    """Of 4 iterations of 1000 bytes, at 10 bytes in a nanosecond."""
    sent = [(SliceKind.TRANSFER, 0, 0, end_ns, 1e10)]
    columns = [("kind", int), ("owner", int), ("start_ns", int), ("end_ns", int), ("rate", float)]
    slices = np.array(sent, columns)
    transfers, jobs = [SimpleNamespace(job=0, bytes=1000.0, num_entries=1)], [SimpleNamespace(iterations=4)]
    state = SimpleNamespace(transfers=transfers, jobs=jobs)
    result: Any = SimpleNamespace(finished=SimpleNamespace(state=state, slices=slices))
    with nullcontext() if is_right else pytest.raises(AssertionError):
        network_conformance._assert_bytes_conserved(result)
