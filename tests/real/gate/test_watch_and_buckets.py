"""Who hangs or is cut off, by hand on a gate that is made up, and a rank's buckets that wait for the gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddlsched.errors import TestbedError
from ddlsched.real.gate import loop
from ddlsched.real.gate.client import WaitingBuckets

S = 1_000_000_000


class Rank:
    """A rank on a server, and what it was sent."""

    def __init__(self, server: int) -> None:
        self.server, self.sent = server, list[Any]()

    def send(self, message: Any) -> None:
        """Note a message."""
        self.sent.append(message)


def _gate(*jobs: Any, **others: Any) -> Any:
    """Return a gate on which these jobs run and something is due, so that nothing is taken for a deadlock."""
    usual = {"running": list(jobs), "seats": {rank: (job, 0) for job in jobs for rank in job.ranks}, "finished": False}
    quiet: dict[str, Any] = {"last_event_ns": 0, "nothing_is_due": False, "due_ns": list}
    return SimpleNamespace(**usual | quiet | others)


def _job(*servers: int, placed_s: float = 0.0, began_s: float = 0.0, told_s: float | None = None) -> Any:
    in_flight = told_s is not None
    transfer = SimpleNamespace(in_flight=in_flight, told_ns=int((told_s or 0.0) * S))
    return SimpleNamespace(
        job=SimpleNamespace(job_id="a"), ranks=[Rank(server) for server in servers], transfers={0: transfer},
        placed_ns=int(placed_s * S), began_ns=int(began_s * S) if began_s >= 0 else -1,
    )  # fmt: skip


def _pong(received: int, asked_ns: int = 0, computing: int = 0, cards: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "say": "pong", "received_bytes": received, "asked_ns": asked_ns, "computing": computing, "cards_down": cards,
    }  # fmt: skip


def test_ranks_are_asked_each_second_and_no_earlier() -> None:
    job = _job(0, 1)
    watch = loop.Watch(_gate(job))
    assert watch.due_ns() == int(loop.PING_S * S)
    watch.look(watch.due_ns() - 1)
    assert [rank.sent for rank in job.ranks] == [[], []]
    now_ns = watch.due_ns()
    watch.look(now_ns)
    assert [rank.sent for rank in job.ranks] == [[{"do": "ping", "asked_ns": now_ns}]] * 2
    assert watch.due_ns() == now_ns + int(loop.PING_S * S)


def test_only_an_answer_is_for_the_watch_alone() -> None:
    job = _job(0)
    watch = loop.Watch(_gate(job))
    assert watch.hear(job.ranks[0], _pong(0), 1) is True
    assert watch.hear(job.ranks[0], {"say": "sent"}, 1) is False


@pytest.mark.parametrize(
    ("heard_s", "placed_s", "began_s", "now_s", "silent_s"),
    [
        (None, 0.0, 0.0, 6.0, None), (None, 0.0, 0.0, 6.1, 6.1), (None, 3.0, 3.0, 9.0, None),
        (None, 3.0, 3.0, 9.1, 6.1),
        (5.0, 0.0, 0.0, 11.0, None), (5.0, 0.0, 0.0, 11.1, 6.1), (None, 0.0, -1.0, 6.1, None),
        (None, 0.0, -1.0, 6.0 + loop.GROUP_S, None), (None, 0.0, -1.0, 6.1 + loop.GROUP_S, 6.1 + loop.GROUP_S),
    ],
)  # fmt: skip
def test_a_rank_of_which_nothing_is_heard_for_six_seconds_hangs(
    heard_s: float | None, placed_s: float, began_s: float, now_s: float, silent_s: float | None
) -> None:
    """Since it was placed, and longer while it forms its group."""
    job = _job(0, 3, placed_s=placed_s, began_s=began_s)
    watch = loop.Watch(_gate(job))
    watch.hear(job.ranks[0], {"say": "sent"}, round(now_s * S))
    if heard_s is not None:
        watch.hear(job.ranks[1], {"say": "sent"}, round(heard_s * S))
    if silent_s is None:
        watch.look(round(now_s * S))
        return
    with pytest.raises(TestbedError) as hangs:
        watch.look(round(now_s * S))
    said = f"the worker of job 'a' on server 3 hangs: nothing heard for {silent_s:.1f} s"
    assert str(hangs.value) == said


@pytest.mark.parametrize(
    ("received", "now_s", "still"),
    [
        ([(8.0, 1_500)], 14.0, ""), ([(8.0, 1_500)], 14.1, "server 0"),
        ([(8.0, 1_500), (12.0, 2_999)], 14.1, "server 0"),
        ([(8.0, 1_500), (12.0, 3_000)], 14.1, ""), ([], 8.0, ""), ([], 8.1, "server 0, 1"),
    ],
)  # fmt: skip
def test_a_server_that_receives_nothing_while_a_transfer_runs_is_cut_off(
    received: list[tuple[float, int]], now_s: float, still: str
) -> None:
    """A transfer runs since 2 s; fewer than 1,500 bytes are nothing; server 1 has received until the end."""
    job = _job(1, 0, told_s=2.0)
    watch = loop.Watch(_gate(job))
    for rank in job.ranks:
        watch.hear(rank, _pong(0), 1)
    for at_s, total in received:
        watch.hear(job.ranks[1], _pong(total, cards=("card 2",)), round(at_s * S))
        watch.hear(job.ranks[0], _pong(int(at_s * 10_000)), round(at_s * S))
    if received:
        watch.hear(job.ranks[0], _pong(10**6), round(now_s * S))
    for rank in job.ranks:
        watch.hear(rank, {"say": "sent"}, round(now_s * S))
    if not still:
        watch.look(round(now_s * S))
        return
    with pytest.raises(TestbedError) as cut_off:
        watch.look(round(now_s * S))
    assert str(cut_off.value).startswith(f"{still} has received nothing for 6.1 s while an all-reduce of job 'a' runs")
    assert ("card 2 of server 0" in str(cut_off.value)) is bool(received)


DEADLOCK = "deadlock: communication x starts no transfer, nothing else will happen: a waits"


@pytest.mark.parametrize(
    ("changed", "computing", "asked_ns", "said"),
    [
        ({}, 0, 8, DEADLOCK), ({}, 1, 8, ""), ({}, 0, 7, ""), ({"nothing_is_due": False}, 0, 8, ""),
        ({"finished": True}, 0, 8, ""),
        ({"transfers": SimpleNamespace(waiting=[])}, 0, 8, ""),
        (
            {"running": [], "transfers": SimpleNamespace(waiting=[])}, 0, 8,
            "deadlock: placement x keeps waiting with jobs 'b', 'c', and nothing else will happen",
        ),
    ],
)  # fmt: skip
def test_a_deadlock_is_told_once_all_are_quiet(changed: Any, computing: int, asked_ns: int, said: str) -> None:
    """The last event was at 7 ns, so that an answer to a later question says that nothing goes on."""
    job = _job(0)
    waiting = [SimpleNamespace(job=SimpleNamespace(job_id=name)) for name in "bc"]
    gate = _gate(job, **{
        "last_event_ns": 7, "nothing_is_due": True, "placements": SimpleNamespace(queue=waiting),
        "transfers": SimpleNamespace(waiting=[1], who_waits_for_whom=lambda now_ns: ["a waits"]),
        "policies": SimpleNamespace(label=lambda kind: "x"), **changed,
    })  # fmt: skip
    watch = loop.Watch(gate)
    watch.hear(job.ranks[0], _pong(0, asked_ns, computing), 1)
    if not said:
        watch.look(2 * S)
        return
    with pytest.raises(TestbedError) as stuck:
        watch.look(2 * S)
    assert str(stuck.value) == said


def test_the_end_of_a_worker_is_told_with_its_job() -> None:
    rank: Any = Rank(2)

    def receive() -> list[Any]:
        raise loop.ChannelEndedError("gone")

    rank.channel = SimpleNamespace(receive=receive)
    for seats, whose in (({}, "that stood ready"), ({rank: (_job(2), 0)}, "of job 'a'")):
        with pytest.raises(TestbedError, match=rf"^the worker {whose} on server 2 has died: gone$"):
            loop._received(SimpleNamespace(seats=seats), rank)  # type: ignore[arg-type]


def test_buckets_wait_until_the_last_chunk_is_sent_or_the_gate_is_gone() -> None:
    said: list[Any] = []
    done: list[Any] = []
    buckets = WaitingBuckets(said.append)
    for task in (1, 2):
        buckets.ready(
            task,
            5,
            100.0,
            lambda *chunk, task=task: done.append((task, chunk)),
            lambda error, task=task: done.append(task),
        )
    buckets.send({"task": 1, "iteration": 5, "chunk": 0, "chunks": 2})
    buckets.sent(1, 5, 0, last=False)
    buckets.send({"task": 1, "iteration": 5, "chunk": 1, "chunks": 2})
    buckets.sent(1, 5, 1, last=True)
    buckets.iterated(5)
    assert done == [(1, (0, 2)), (1, (1, 2))]
    assert said == [
        *({"say": "ready", "task": task, "iteration": 5, "message_bytes": 100.0} for task in (1, 2)),
        {"say": "sent", "task": 1, "iteration": 5, "chunk": 0},
        {"say": "sent", "task": 1, "iteration": 5, "chunk": 1},
        {"say": "iterated", "iteration": 5},
    ]
    assert list(buckets._waiting) == [(2, 5)]
