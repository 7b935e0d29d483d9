"""Turns of a gate for users' jobs, with ranks that note what they are told, in a clock of the test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import TestbedError
from ddlsched.real.channel import Address, ChannelEndedError
from ddlsched.real.gate import service
from ddlsched.real.gate.live_jobs import GateRank
from ddlsched.real.gate.service import GateService, Membership
from ddlsched.real.listener import Caller
from ddlsched.real.testbed.real_run import gate_settings

SECOND = 1_000_000_000


class Channel:
    """A rank's, of which a test says what comes."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.coming: list[Any] = []
        self.is_closed = False

    def send(self, message: dict[str, Any]) -> None:
        if self.is_closed:
            raise ChannelEndedError("it is closed")
        self.told.append(message)

    def receive(self) -> list[Any]:
        if self.coming and isinstance(self.coming[0], Exception):
            raise self.coming.pop(0)
        said, self.coming = self.coming, []
        return said

    def close(self) -> None:
        self.is_closed = True

    def does(self) -> list[str]:
        """Return what the rank was told to do, and forget it."""
        told, self.told = [f"{each['do']} {each.get('error', '')}".strip() for each in self.told], []
        return told


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(ns=5 * SECOND)
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic_ns=lambda: now.ns))
    return now


@pytest.fixture
def members(clock: SimpleNamespace) -> Membership:
    return Membership(gate_settings(Cluster(num_servers=3), communication="bounded-overlap:limit=1"), [].append)


def rank(server: int) -> Any:
    return GateRank(Channel(), server, f"10.0.0.{server}")  # type: ignore[arg-type]


def join(members: Membership, job: str, *ranks: Any, size: int | None = None) -> None:
    usual = {"say": "join", "size": size or len(ranks), "iterations": 5, "compute_s": 0.5, "message_bytes": 1000.0}
    for number, one in enumerate(ranks):
        members.hear(one, usual | {"job_id": job, "rank": number})


def test_a_job_begins_with_its_last_rank(members: Membership, clock: SimpleNamespace) -> None:
    clock.ns += 3 * SECOND
    ranks = [rank(2), rank(0), rank(2)]
    join(members, "a", *ranks[:2], size=3)
    assert not any(one.channel.told for one in ranks)
    assert members.jobs == {}
    last = {"say": "join", "job_id": "a", "rank": 2, "size": 3, "iterations": 5, "compute_s": 0.5, "message_bytes": 8}
    members.hear(ranks[2], last)
    assert [one.channel.does() for one in ranks] == [["begin"]] * 3
    job = members.jobs["a"]
    assert (job.number, job.ranks, job.iterated, job.job.num_gpus, job.job.iterations) == (0, ranks, [0] * 3, 3, 5)
    assert (job.job.arrival_s, job.job.iteration.forward_s, job.job.iteration.backward_s) == (3.0, 0.0, 0.5)
    assert tuple(job.view.servers) == (2, 0)
    join(members, "b", rank(1), rank(0))
    assert members.jobs["b"].number == 1


@pytest.mark.parametrize(
    ("server", "more", "said"),
    [
        (0, {"rank": 2}, "rank 2 of 2 joined; expected 0 to 1"),
        (3, {}, "job 'b': server 3 joined; the gate's network has 3 (--servers)"),
        (-1, {}, "job 'b': server -1 joined; the gate's network has 3 (--servers)"),
        (0, {"job_id": "a"}, "job 'a', rank 0, has joined already; expected a job_id of its own"),
        (0, {"size": 4097}, "expected a message of ddlsched.real.torch"),
    ],
)
def test_who_cannot_join_is_told_why(members: Membership, server: int, more: dict[str, Any], said: str) -> None:
    join(members, "a", rank(0), rank(1))
    one = rank(server)
    usual = {"say": "join", "job_id": "b", "rank": 0, "size": 2, "iterations": 5, "compute_s": 0, "message_bytes": 0}
    members.hear(one, usual | more)
    [told] = one.channel.does()
    assert told.startswith("fail ")
    assert told.endswith(said)
    assert list(members.jobs) == ["a"]


def test_what_a_job_that_has_not_begun_says_ends_it(members: Membership) -> None:
    first, second = rank(0), rank(1)
    join(members, "a", first, size=2)
    members.hear(first, {"say": "iterated", "iteration": 0})
    assert first.channel.does() == ["fail job 'a', rank 0: a message of a job that has not begun came"]
    members.hear(second, {"say": "pong"})
    assert second.channel.does() == []
    members.hear(second, {"say": "sent", "task": 0, "iteration": 0, "chunk": 0})
    assert second.channel.does() == ["fail a message of a job that has not begun came"]


def test_ranks_are_asked_each_second_and_hang_after_thirty(members: Membership, clock: SimpleNamespace) -> None:
    ranks, others = [rank(0), rank(1)], [rank(2)]
    join(members, "a", *ranks)
    join(members, "b", *others)
    for one in (*ranks, *others):
        one.channel.does()
    clock.ns += 30 * SECOND
    members.look_after()
    assert [one.channel.does() for one in (*ranks, *others)] == [["ping"]] * 3
    members.hear(ranks[0], {"say": "pong"})
    members.hear(others[0], {"say": "pong"})
    clock.ns += 1
    members.look_after()
    hangs = "fail job 'a', rank 1: hangs: nothing heard for 30 s"
    assert [one.channel.does() for one in ranks] == [["ping", hangs], [hangs]]
    assert others[0].channel.does() == ["ping"]
    assert list(members.jobs) == ["b"]
    others[0].channel.is_closed = True
    members.look_after()  # its connection's end says so later


def turns(members: Membership) -> GateService:
    made: Any = GateService.__new__(GateService)
    made._members, made._servers, made._look_ns, made._tell = members, {}, 0, lambda line: None
    made.callers = lambda timeout_s: []
    return made  # type: ignore[no-any-return]


class Selector:
    """Notes for how long it waits, and says who can be read."""

    def __init__(self, *ready: Any) -> None:
        self.ready, self.waits, self.registered = list(ready), list[float](), dict[Any, Any]()

    def select(self, timeout_s: float) -> list[Any]:
        self.waits.append(timeout_s)
        return [(SimpleNamespace(fileobj=one.channel, data=one), 1) for one in self.ready]

    def register(self, channel: Any, events: int, data: Any) -> None:
        self.registered[channel] = data

    def unregister(self, channel: Any) -> None:
        self.ready = [one for one in self.ready if one.channel is not channel]


def test_a_rank_that_is_gone_takes_its_job_with_it(members: Membership) -> None:
    ranks = [rank(0), rank(1)]
    join(members, "a", *ranks)
    ranks[1].channel.does()
    ranks[0].channel.coming = [ChannelEndedError("the connection ended")]
    selector: Any = Selector(*ranks)
    turns(members)._turn(selector)
    assert ranks[0].channel.is_closed
    assert selector.ready == [ranks[1]]
    assert ranks[1].channel.does() == [
        "fail job 'a', rank 0: is gone: the connection ended",
    ]
    assert members.jobs == {}


def test_a_turn_waits_until_a_policy_wakes_and_at_most_a_second(members: Membership, clock: SimpleNamespace) -> None:
    clock.ns += 3 * SECOND
    made, selector, looks = turns(members), Selector(), list[int]()
    members.look_after = lambda: looks.append(members.now_ns())  # type: ignore[method-assign]
    for wake_ns, waits_s in ((None, 1.0), (4 * SECOND, 1.0), (SECOND // 4, 0.25), (-1, 0.0)):
        members.wake_ns = None if wake_ns is None else 3 * SECOND + wake_ns
        members.transfers.changed = False
        made._turn(selector)  # type: ignore[arg-type]
        assert selector.waits.pop() == waits_s
    assert looks == [3 * SECOND]
    for seconds in (0.5, 0.5, 0.999999999, 0.000000001):
        clock.ns += round(seconds * SECOND)
        made._turn(selector)  # type: ignore[arg-type]
    assert looks == [3 * SECOND, 4 * SECOND, 5 * SECOND]


@pytest.mark.parametrize(
    ("changed", "wake_ns", "asked"), [(False, None, 0), (False, 8, 0), (False, 7, 1), (True, None, 1), (True, 9, 1)]
)
def test_policies_are_asked_when_something_changed_or_they_are_due(
    members: Membership, clock: SimpleNamespace, changed: bool, wake_ns: int | None, asked: int
) -> None:
    clock.ns += 7
    times: list[int] = []
    members.transfers = SimpleNamespace(changed=changed, decide=times.append)  # type: ignore[assignment]
    members._policies = SimpleNamespace(wake_ns=lambda kind, now_ns: (kind, now_ns))  # type: ignore[assignment]
    members.wake_ns = wake_ns
    members.decide()
    assert times == [7] * asked
    assert members.wake_ns == (("communication", 7) if asked else wake_ns)

    def fails(now_ns: int) -> None:
        members.transfers.changed = False
        raise TestbedError("a rank is gone")

    members.wake_ns, members.transfers.changed, members.transfers.decide = None, True, fails  # type: ignore[method-assign]
    members.decide()
    assert members.transfers.changed is True


def test_servers_are_numbered_by_hosts_unless_ranks_say_theirs(members: Membership) -> None:
    made, selector, told = turns(members), Selector(), list[str]()
    made._tell = told.append
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3", "10.0.0.9")
    roles = ({"kind": "gate"}, {"kind": "gate"}, {"kind": "gate", "server": "1"}, {"kind": "gate", "server": 7}, {})
    for host, role in zip(hosts, roles, strict=True):
        made._take_in(selector, Caller(Channel(), role, host))  # type: ignore[arg-type]
    assert [(one.server, one.address) for one in selector.registered.values()] == [
        (0, "10.0.0.1"),
        (1, "10.0.0.2"),
        (0, "10.0.0.1"),
        (7, "10.0.0.3"),
    ]
    assert told == ["refused 10.0.0.9: a connection for no rank of a job came"]


def test_a_gate_that_is_closed_ends_all_connections(members: Membership) -> None:
    made = GateService(Address("127.0.0.1", 0), b"0123456789abcdef", members)
    one = SimpleNamespace(fileno=made.fileno, is_closed=False)

    def turn(selector: Any) -> None:
        channel: Any = SimpleNamespace(close=lambda: setattr(one, "is_closed", True))
        real, _ = selector.get_map(), made.stop()
        selector.get_map = lambda: {**real, -1: SimpleNamespace(data=GateRank(channel, 0, ""))}

    made._turn = turn  # type: ignore[method-assign]
    made.serve()
    assert one.is_closed
    assert made._listener.fileno() == -1
