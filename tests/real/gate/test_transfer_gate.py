"""One gate of transfers, asked by hand: what ranks are told, what policies see, what is refused; two servers a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from in_process_ranks import quick_job, settings

from ddlsched.cluster.cluster import Cluster, Server
from ddlsched.errors import TestbedError
from ddlsched.policies.network_views import TransferState
from ddlsched.real.gate import transfer_gate
from ddlsched.real.gate.gate import begun_policies
from ddlsched.real.gate.live_jobs import LiveJob, LiveTransfer, Placements, SentRow
from ddlsched.real.gate.transfer_gate import TransferGate

FREE, ALONE, PAUSING = "bounded-overlap:limit=99", "bounded-overlap:limit=1", "preemptive:by=time"
FIRST, SECOND = 2, 4  # the two all-reduces of a job, between tasks that compute
FOUR = Cluster(num_servers=4, gpus_per_server=1, gpu_memory_mb=1000)
NS_PER_BYTE = 0.8  # at 10 Gbit/s


@dataclass(eq=False)
class Told:
    """A rank that notes what it is told."""

    told: list[dict[str, Any]] = field(default_factory=list)

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)


class Hand:
    """A gate, and jobs in buckets of 0.5 MB on servers 0 and 1, 1 and 2, and so on; c is the shortest."""

    def __init__(
        self, communication: str = FREE, *, jobs: str = "a", gpus: int = 2, cluster: Cluster = FOUR, **given: Any
    ) -> None:
        chosen = settings(cluster, communication=communication)
        policies = begun_policies(chosen)
        self.rows: list[SentRow] = []
        self.gate = TransferGate(policies, chosen.costs, self.rows.append, **given)
        placements = Placements(cluster, policies, chosen.costs)
        self.jobs: dict[str, LiveJob] = {}
        for number, name in enumerate(jobs):
            iterations = 3 if name == "c" else 30
            job = LiveJob(quick_job(name, gpus=gpus, iterations=iterations, buckets=2), number)
            placements.seat(job, range(number, number + gpus), 0)
            job.ranks = [Told() for _ in range(gpus)]  # type: ignore[misc]
            self.jobs[name] = job

    def ready(self, name: str, task: int = FIRST, num_bytes: float = 1e6, now_ns: int = 0, iteration: int = 0) -> None:
        for rank in range(len(self.jobs[name].ranks)):
            self.gate.ready(self.jobs[name], rank, task, iteration, num_bytes, now_ns)

    def sent(self, name: str, chunk: int, task: int = FIRST, now_ns: int = 0, iteration: int = 0) -> None:
        for _ in self.jobs[name].ranks:
            self.gate.sent(self.jobs[name], task, iteration, chunk, now_ns)

    def of(self, name: str, task: int = FIRST) -> LiveTransfer:
        return self.jobs[name].transfers[task]

    def chunks(self, name: str) -> list[tuple[int, int]]:
        """Which chunks of which task a job's ranks were told to send, all the same."""
        first, *others = [[(one["task"], one["chunk"]) for one in rank.told] for rank in self.jobs[name].ranks]  # type: ignore[attr-defined]
        assert all(other == first for other in others)
        return first

    def counts(self) -> list[int]:
        return [self.gate.network().num_on(link) for link in range(4)]

    def are(self, **states: str) -> bool:
        """Whether what is active and what waits are the first transfers of these jobs, in this order."""
        listed = {"active": self.gate.active, "waiting": self.gate.waiting}
        return all([*names] == [one.job.job.job_id for one in listed[state]] for state, names in states.items())


@pytest.mark.parametrize(
    ("communication", "chunk_bytes", "num_bytes", "chunks"),
    [
        (FREE, None, 1e9, 1),  # never paused: sent whole
        (FREE, 4e5, 1e6, 3),
        (PAUSING, None, 400_000.0, 1),
        (PAUSING, None, 400_001.0, 2),
        (PAUSING, None, 0.0, 1),
        (PAUSING, 1e6, 1e6, 1),
        (PAUSING, 5e5, 1e6, 2),
    ],
)
def test_a_message_comes_in_as_many_chunks_as_it_has_to(
    communication: str, chunk_bytes: float | None, num_bytes: float, chunks: int
) -> None:
    hand = Hand(communication, chunk_bytes=chunk_bytes)
    hand.ready("a", num_bytes=num_bytes, now_ns=3)
    assert hand.of("a").chunks == chunks
    hand.gate.decide(5)
    said = {"do": "send", "task": FIRST, "iteration": 0, "chunks": chunks}
    for rank in hand.jobs["a"].ranks:
        assert rank.told == [said | {"chunk": chunk} for chunk in range(min(chunks, 2))]  # type: ignore[attr-defined]
    for chunk in range(chunks):
        hand.sent("a", chunk, now_ns=9)
    assert hand.chunks("a") == [(FIRST, chunk) for chunk in range(chunks)]
    granted_ns = 5 if num_bytes else 3  # what crosses no link waits for nobody
    assert hand.rows == [SentRow("a", 0, "all-reduce-1", num_bytes, chunks, 3, granted_ns, 9)]


@pytest.mark.parametrize(("window", "told"), [(1, 1), (2, 2), (3, 3), (9, 5)])
def test_so_many_chunks_are_under_way_at_a_time(window: int, told: int) -> None:
    hand = Hand(chunk_bytes=2e5, window=window)
    hand.ready("a")
    hand.gate.decide(10)
    job = hand.jobs["a"]
    assert (hand.chunks("a"), hand.of("a").told_ns) == ([(FIRST, chunk) for chunk in range(told)], 10)
    hand.gate.sent(job, FIRST, 0, 0, 11)
    assert len(hand.chunks("a")) == told  # one rank has sent it, the other has not
    assert hand.of("a").columns.bytes_left[0] == 1e6
    hand.gate.sent(job, FIRST, 0, 0, 12)
    assert len(hand.chunks("a")) == min(told + 1, 5)
    assert hand.of("a").told_ns == (12 if told < 5 else 10)
    assert hand.of("a").columns.bytes_left[0] == 8e5
    for chunk in range(1, 5):
        hand.sent("a", chunk, now_ns=20)
    assert (len(hand.rows), hand.of("a").completed, hand.of("a").columns.bytes_left[0]) == (1, 5, 0.0)


def refused(act: Any, *given: Any) -> str:
    with pytest.raises(TestbedError) as error:
        act(*given)
    return str(error.value)


def test_what_ranks_may_not_be_ready_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_gate, "MOST_CHUNKS", 3)
    hand = Hand(chunk_bytes=1e3, gpus=3)
    job = hand.jobs["a"]
    hand.gate.ready(job, 2, FIRST, 0, 2e3, 0)
    hand.gate.ready(job, 0, FIRST, 0, 1e3, 0)
    assert hand.gate.waiting == []
    assert refused(hand.gate.ready, job, 1, FIRST, 0, 1e3, 0) == (
        "job 'a', all-reduce 'all-reduce-1': its ranks would send 1000, 1000, 2000 bytes; "
        "expected the same on every rank"
    )
    assert refused(hand.ready, "a", FIRST, 3001.0) == (
        "job 'a', all-reduce 'all-reduce-1': 3001 bytes in 4 chunks are ready; "
        "expected at most 3, once those of the iteration before have been sent"
    )
    hand.ready("a", num_bytes=3e3)
    assert refused(hand.ready, "a", FIRST, 1e3, 0, 1) == (
        "job 'a', all-reduce 'all-reduce-1': 1000 bytes in 1 chunks are ready; "
        "expected at most 3, once those of the iteration before have been sent"
    )
    assert transfer_gate.CHUNK_BYTES == 4e5
    assert Hand().gate._window == transfer_gate.WINDOW == 2


def test_a_million_chunks_are_not_too_many() -> None:
    hand = Hand(chunk_bytes=1.0)
    hand.ready("a", num_bytes=1e6)
    assert hand.of("a").chunks == 1_000_000
    assert "1e+06 bytes in 1,000,001 chunks are ready; expected at most 1,000,000" in refused(
        hand.ready, "a", SECOND, 1_000_000.5
    )


@pytest.mark.parametrize(("iteration", "chunk"), [(1, 0), (0, -1), (0, 2), (-1, 0)])
def test_what_nobody_told_ranks_to_send_is_refused(iteration: int, chunk: int) -> None:
    hand = Hand(chunk_bytes=2e5, window=2)
    hand.ready("a")
    hand.gate.decide(0)
    assert refused(hand.gate.sent, hand.jobs["a"], FIRST, iteration, chunk, 0) == (
        f"job 'a': chunk {chunk} of 'all-reduce-1', iteration {iteration}, was sent untold"
    )
    hand.gate.sent(hand.jobs["a"], FIRST, 0, 1, 0)


def test_an_all_reduce_waits_runs_and_ends_and_links_are_counted_meanwhile() -> None:
    hand = Hand(ALONE, jobs="ab")
    gate = hand.gate
    gate.ready(hand.jobs["a"], 0, FIRST, 0, 1e6, 1)
    assert (gate.waiting, gate.changed) == ([], False)
    gate.ready(hand.jobs["a"], 1, FIRST, 0, 1e6, 2)
    hand.ready("b", now_ns=4)
    assert (hand.are(active="", waiting="ab"), gate.changed, hand.counts()) == (True, True, [0, 0, 0, 0])
    assert hand.of("a").state == TransferState.WAITING
    gate.decide(5)
    assert (hand.are(active="a", waiting="b"), gate.changed, hand.counts()) == (True, False, [1, 1, 0, 0])
    assert (hand.of("a").state, hand.of("b").state) == (TransferState.ACTIVE, TransferState.WAITING)
    seen = gate.network()
    assert [one.job.job_id for one in seen.active] == ["a"]
    assert [one.job.job_id for one in seen.waiting] == ["b"]
    assert seen.now_s == 5e-9
    hand.sent("a", 0, now_ns=7)
    assert (hand.are(active="", waiting="b"), gate.changed, hand.counts()) == (True, True, [0, 0, 0, 0])
    ended = hand.of("a")
    assert (ended.state, ended.times_ended, ended.columns.bytes_left[0], ended.columns.rate[0]) == (
        TransferState.IDLE, 1, 0.0, 0.0,
    )  # fmt: skip
    gate.decide(8)
    hand.sent("b", 0, now_ns=9)
    assert hand.rows == [
        SentRow("a", 0, "all-reduce-1", 1e6, 1, 2, 5, 7),
        SentRow("b", 0, "all-reduce-1", 1e6, 1, 4, 8, 9),
    ]
    assert hand.of("a").heard == {}
    hand.ready("a", iteration=1, now_ns=10)
    gate.decide(11)
    hand.sent("a", 0, iteration=1, now_ns=12)
    assert (hand.rows[2].iteration, hand.of("a").times_ended) == (1, 2)


def test_what_crosses_no_link_is_sent_at_once_and_no_policy_is_asked() -> None:
    hand = Hand(ALONE, jobs="ab")
    hand.ready("a")
    hand.gate.decide(1)
    hand.ready("b", num_bytes=0.0, now_ns=2)
    assert (hand.gate.changed, hand.chunks("b"), hand.of("b").granted_ns) == (False, [(FIRST, 0)], 2)
    assert (hand.are(active="ab", waiting=""), hand.counts()) == (True, [1, 1, 0, 0])
    hand.ready("b", SECOND, now_ns=3)
    hand.gate.decide(3)  # b's message of no bytes is no candidate
    assert hand.of("b").columns.ns_per_byte[0] == NS_PER_BYTE
    assert hand.are(active="ab", waiting="b")
    hand.sent("b", 0)
    assert hand.are(active="a", waiting="b")


def test_a_shorter_job_pauses_a_longer_one_whose_chunks_arrive_meanwhile() -> None:
    hand = Hand(PAUSING, jobs="abc", chunk_bytes=25e4)  # four chunks
    hand.ready("b")
    hand.gate.decide(1)
    hand.ready("c", now_ns=2)
    hand.gate.decide(2)
    assert (hand.are(active="c", waiting="b"), hand.counts()) == (True, [0, 0, 1, 1])
    assert (hand.of("b").state, hand.of("b").columns.rate[0]) == (TransferState.WAITING, 0.0)
    hand.sent("b", 0)
    assert (hand.chunks("b"), hand.of("b").columns.bytes_left[0]) == ([(FIRST, 0), (FIRST, 1)], 75e4)  # told no more
    for chunk in range(4):
        hand.sent("c", chunk, now_ns=3)
    hand.gate.decide(4)
    assert (hand.are(active="b", waiting=""), hand.counts()) == (True, [0, 1, 1, 0])
    assert hand.chunks("b") == [(FIRST, chunk) for chunk in range(3)]
    hand.sent("b", 1)
    hand.ready("c", iteration=1)
    hand.gate.decide(5)
    hand.sent("b", 2)
    hand.sent("b", 3, now_ns=6)  # its last ones were under way as it was paused
    assert hand.are(active="c", waiting="")
    assert hand.rows[-1] == SentRow("b", 0, "all-reduce-1", 1e6, 4, 0, 1, 6)  # granted when it first was


def test_the_order_says_who_is_asked_about_first_then_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    hand, asked = Hand(jobs="abc"), list[tuple[str, int]]()
    choose = transfer_gate.choose_transfers

    def noted(policies: Any, views: Any, into: Any) -> None:
        asked.extend((view.job.job_id, view.number % (1 << 20)) for view in views)
        choose(policies, views, into)

    monkeypatch.setattr(transfer_gate, "choose_transfers", noted)
    for name, task in (("b", SECOND), ("c", SECOND), ("a", FIRST), ("b", FIRST)):
        hand.ready(name, task)
    hand.gate.decide(1)
    assert asked == [("c", SECOND), ("a", FIRST), ("b", FIRST), ("b", SECOND)]  # the least remaining work first
    assert hand.counts() == [1, 3, 3, 1]
    asked.clear()
    hand.ready("c", FIRST)
    hand.gate.decide(2)
    assert asked == [("c", FIRST)]  # what runs is not asked about: this policy pauses nothing
    assert hand.counts() == [1, 3, 4, 2]


def test_what_is_left_of_whole_messages_is_guessed_by_equal_shares() -> None:
    hand = Hand(jobs="ab")
    hand.ready("a")
    hand.gate.decide(1000)
    of_a = hand.of("a").columns
    assert (of_a.since_ns[0], of_a.ns_per_byte[0], of_a.rate[0]) == (1000, NS_PER_BYTE, 1e9 / NS_PER_BYTE)
    hand.ready("b", now_ns=201_000)
    hand.gate.decide(201_000)  # 200 us at 0.8 ns a byte; from now on b shares server 1
    assert of_a.bytes_left[0] == pytest.approx(1e6 - 250_000)
    assert [(one.columns.since_ns[0], one.columns.ns_per_byte[0]) for one in hand.gate.active] == [
        (201_000, 2 * NS_PER_BYTE), (201_000, 2 * NS_PER_BYTE),
    ]  # fmt: skip
    hand.gate.clock.now_ns[0] = 361_000
    assert hand.of("a").view.bytes_left == pytest.approx(1e6 - 250_000 - 100_000)
    hand.sent("b", 0, now_ns=361_000)
    hand.gate.decide(361_000)
    assert (of_a.ns_per_byte[0], of_a.bytes_left[0]) == (NS_PER_BYTE, pytest.approx(650_000))


def test_a_link_of_a_quarter_of_the_bandwidth_is_worth_a_quarter() -> None:
    """Of two that share a link of 10 Gbit/s one crosses another of 2.5 Gbit/s."""
    cards = [Server(gpus=1, nic_gbps=gbps) for gbps in (2.5, 10, 10, 10)]
    hand = Hand(jobs="ab", cluster=Cluster(servers=tuple(cards)))
    for name in "ab":
        hand.ready(name)
    hand.gate.decide(0)
    assert [hand.of(name).columns.ns_per_byte[0] for name in "ab"] == [4 * NS_PER_BYTE, 2 * NS_PER_BYTE]


def test_a_transfer_that_was_granted_at_0_and_paused_was_granted_at_0() -> None:
    hand = Hand(PAUSING, jobs="abc", chunk_bytes=1e6)
    hand.ready("b")
    hand.gate.decide(0)
    hand.ready("c")
    hand.gate.decide(1)
    hand.sent("c", 0)
    hand.gate.decide(2)
    assert hand.are(active="b", waiting="")
    hand.sent("b", 0, now_ns=3)
    assert hand.rows[-1] == SentRow("b", 0, "all-reduce-1", 1e6, 1, 0, 0, 3)


def test_of_messages_in_chunks_nothing_is_guessed() -> None:
    hand = Hand(chunk_bytes=5e5)
    hand.ready("a")
    hand.gate.decide(1000)
    columns = hand.of("a").columns
    assert (columns.bytes_left[0], columns.rate[0], columns.ns_per_byte[0]) == (1e6, 0.0, 0.0)
    hand.gate.decide(900_000)
    assert hand.of("a").view.bytes_left == 1e6


def test_a_job_that_is_gone_leaves_nothing() -> None:
    hand = Hand(ALONE, jobs="ab")
    for name, task in (("a", FIRST), ("b", FIRST), ("a", SECOND)):
        hand.ready(name, task)
    hand.gate.decide(1)
    hand.gate.forget(hand.jobs["a"])
    assert (hand.are(active="", waiting="b"), hand.gate.changed, hand.counts()) == (True, True, [0, 0, 0, 0])
    assert hand.of("a").state == hand.of("a", SECOND).state == TransferState.IDLE
    hand.gate.decide(2)
    assert hand.are(active="b", waiting="")
    hand.gate.forget(hand.jobs["a"])  # of what is idle nothing is taken off
    assert (hand.are(active="b", waiting=""), hand.rows) == (True, [])


def test_who_waits_is_told_with_links_and_with_whom_it_meets() -> None:
    hand = Hand(ALONE, jobs="abc")
    assert hand.gate.who_waits_for_whom(0) == []
    hand.ready("a", now_ns=500_000_000)
    assert hand.gate.who_waits_for_whom(2_000_000_000) == [
        "job 'a' has waited 1.5 s for server 0, server 1, which nobody else wants"
    ]
    hand.gate.decide(500_000_000)
    hand.ready("b", now_ns=1_000_000_000)
    hand.ready("c", now_ns=1_500_000_000)
    hand.ready("c", SECOND, now_ns=1_750_000_000)
    assert hand.gate.who_waits_for_whom(2_000_000_000) == [
        "job 'b' has waited 1.0 s for server 1, server 2, which jobs a, c want too",
        "job 'c' has waited 0.5 s for server 2, server 3, which jobs b, c want too",
        "job 'c' has waited 0.2 s for server 2, server 3, which jobs b, c want too",
    ]
