"""What ends a run: ranks that die, hang or fail, links that are cut, and policies that nobody ever gets past."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any

import in_process_ranks
import pytest
from in_process_ranks import Exchange, LocalReducer, ThreadCrew, quick_job, run_jobs, settings

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InvalidDecisionError, PluginError, TestbedError
from ddlsched.real.channel import Channel, ChannelEndedError
from ddlsched.real.gate import loop
from ddlsched.real.gate.live_jobs import GateRank
from ddlsched.real.testbed.gloo import Ended

TWO = Cluster(num_servers=2, gpus_per_server=1)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask ranks often, and lose patience soon."""
    monkeypatch.setattr(loop, "PING_S", 0.05)
    monkeypatch.setattr(loop, "HANG_S", 0.7)
    monkeypatch.setattr(loop, "STALL_S", 1.1)


@dataclass(frozen=True, kw_only=True)
class Nobody:
    """Starts no transfer."""

    def admit(self, transfer: Any, network: Any) -> bool:
        return False


@pytest.mark.usefixtures("hasty")
def test_a_policy_that_admits_nobody_is_told_as_deadlock_with_who_waits_for_whom() -> None:
    jobs = [quick_job("a", gpus=2), quick_job("b", gpus=2)]
    with pytest.raises(TestbedError) as error:
        run_jobs(jobs, settings(TWO, communication=Nobody()), ThreadCrew(Exchange()))
    text = str(error.value)
    assert text.startswith("deadlock: communication Nobody() starts no transfer, nothing else will happen: ")
    assert "job 'a' has waited " in text
    assert "for server 0, server 1, which jobs b want too" in text
    assert "which jobs a want too" in text


@dataclass(frozen=True, kw_only=True)
class Later:
    """Starts transfers from a time on, and asks to be woken then."""

    from_s: float = 0.3

    def admit(self, transfer: Any, network: Any) -> bool:
        return bool(network.now_s >= self.from_s)

    def wake_s(self, now_s: float) -> float | None:
        return self.from_s if now_s < self.from_s else None


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_a_policy_that_asks_to_be_woken_is_no_deadlock() -> None:
    outcome = run_jobs([quick_job("a", gpus=2)], settings(TWO, communication=Later()), ThreadCrew(Exchange()))
    assert outcome.rows[0].granted_ns >= 0.3e9


@dataclass(frozen=True, kw_only=True)
class Nowhere:
    """Places no job."""

    def place(self, job: Any, cluster: Any) -> None:
        return None


@pytest.mark.usefixtures("hasty")
def test_a_placement_that_waits_for_ever_is_told() -> None:
    with pytest.raises(TestbedError, match=r"deadlock: placement Nowhere\(\) keeps waiting with jobs 'a', and nothing"):
        run_jobs([quick_job("a", gpus=2)], settings(TWO, placement=Nowhere()), ThreadCrew(Exchange()))


class Dying(LocalReducer):
    """A rank whose process ends as it is to send."""

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        raise ChannelEndedError("killed")  # upon which the worker closes its end, as the kernel does


def test_a_rank_that_dies_ends_the_run_at_once_and_is_named() -> None:
    begin = time.monotonic()
    with pytest.raises(TestbedError, match=r"worker of job 'a' on server [01] (has died|is gone): "):
        run_jobs([quick_job("a", gpus=2)], settings(TWO), ThreadCrew(Exchange(), Dying))
    assert time.monotonic() - begin < 5


class Failing(LocalReducer):
    """A rank whose collective fails."""

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        ended("connection reset by peer")


def test_an_all_reduce_that_fails_ends_the_run_with_its_error() -> None:
    expected = r"job 'a', server [01]: ConnectionError: an all-reduce failed: connection reset by peer"
    with pytest.raises(TestbedError, match=expected):
        run_jobs([quick_job("a", gpus=2)], settings(TWO), ThreadCrew(Exchange(), Failing))


class Hanging(LocalReducer):
    """A rank that no longer does anything, as one that was stopped."""

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        if self.rank == 1:
            time.sleep(1.4)


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_a_rank_that_hangs_is_found_out() -> None:
    with pytest.raises(TestbedError, match=r"worker of job 'a' on server 1 hangs: nothing heard for \d\.\d s"):
        run_jobs([quick_job("a", gpus=2)], settings(TWO), ThreadCrew(Exchange(), Hanging))


class Forming(LocalReducer):
    """A rank that waits for the others, of which one is slow, as the group forms."""

    def join(self, host: str, port: int, address: str, rank: int, size: int, threads: int) -> None:
        if rank == 0:
            time.sleep(1.4)
        super().join(host, port, address, rank, size, threads)


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_a_rank_that_forms_its_group_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [quick_job("a", gpus=2)]
    assert run_jobs(jobs, settings(TWO), ThreadCrew(Exchange(), Forming)).rows
    monkeypatch.setattr(loop, "GROUP_S", 0.1)
    with pytest.raises(TestbedError, match=r"worker of job 'a' on server 0 hangs: nothing heard for \d\.\d s"):
        run_jobs(jobs, settings(TWO), ThreadCrew(Exchange(), Forming))


class CutOff(LocalReducer):
    """A server that receives nothing any more; the all-reduce never ends."""

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        pass

    def received_bytes(self) -> int:
        return 5_000 if self.rank == 1 else super().received_bytes()

    def cards_down(self) -> list[str]:
        return ["eth0"] if self.rank == 1 else []


@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_a_link_that_goes_down_is_found_out() -> None:
    expected = r"server 1 has received nothing for \d\.\d s while an all-reduce of job 'a' .*\(down: eth0 of server 1\)"
    with pytest.raises(TestbedError, match=expected):
        run_jobs([quick_job("a", gpus=2)], settings(TWO), ThreadCrew(Exchange(), CutOff))


@dataclass(frozen=True, kw_only=True)
class Twice:
    """Places every worker on the same GPU."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return [0] * int(job.num_gpus)


def test_a_decision_that_cannot_be_is_refused_as_in_a_simulation() -> None:
    with pytest.raises(InvalidDecisionError, match=r"Twice\(\) at .*, job 'a': place answered GPU 0 twice"):
        run_jobs([quick_job("a", gpus=2)], settings(TWO, placement=Twice()), ThreadCrew(Exchange()))


@dataclass(frozen=True, kw_only=True)
class Broken:
    """Raises."""

    def key(self, job: Any, now_s: float) -> int:
        raise RuntimeError("no key today")


def test_a_policy_that_raises_is_named() -> None:
    with pytest.raises(PluginError, match=r"order Broken\(\) raised RuntimeError at .*no key today"):
        run_jobs([quick_job("a", gpus=2)], settings(TWO, order=Broken()), ThreadCrew(Exchange()))


def test_a_rank_that_cannot_be_told_anything_is_named_with_its_last_words() -> None:
    ours, theirs = socket.socketpair()
    rank = GateRank(Channel(ours), 3, "")
    theirs.sendall(b'{"say":"failed","error":"OSError: no memory left"}\n')
    theirs.close()
    with pytest.raises(TestbedError, match="the worker on server 3 is gone: OSError: no memory left"):
        rank.send({"do": "ping"})
    with pytest.raises(TestbedError, match="the worker on server 3 is gone: a message could not be sent"):
        rank.send({"do": "ping"})
    ours.close()


class Deaf(LocalReducer):
    """A rank that lives, and whose all-reduces neither end nor stall."""

    def start(self, task: int, message_bytes: float, chunk: int, chunks: int, ended: Ended) -> None:
        pass


@pytest.mark.long
def test_a_run_that_never_ends_fails_in_place_of_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests run their jobs with notices it, should the gate not."""
    monkeypatch.setattr(in_process_ranks, "MOST_S", 0.5)
    with pytest.raises(AssertionError, match=r"the run did not end within 0\.5 s"):
        run_jobs([quick_job("a", gpus=2)], settings(TWO), ThreadCrew(Exchange(), Deaf))
