"""Preemption of messages in chunks, worked out by hand: what is under way of a paused transfer still ends."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ddlsched
from ddlsched.errors import InputError
from ddlsched.plugins.names import resolve
from ddlsched.policies.views import NetworkView, TransferView
from ddlsched.real.testbed.measuring import Pinned
from ddlsched.real.testbed.run_models import InChunks

SHORTEST = resolve("communication", "preemptive:by=time")


def finishes(communication: Any, contention: str = "max-min:per_byte_s=1e-9") -> list[float]:
    """Return when a and b end, on the same two servers whose cards carry 1e9 bytes/s.

    Both compute for a second. Then a sends 1e9 bytes from 1.0 s on, and b 2e8 from 1.25 s on, for which it pauses a.
    """
    sizes = {"a": (0.0, 1e9), "b": (0.25, 2e8)}
    jobs = [
        ddlsched.Job(
            job_id=name,
            arrival_s=arrival_s,
            num_gpus=2,
            iterations=1,
            iteration=ddlsched.DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=size),
            gpu_memory_mb=1,
        )
        for name, (arrival_s, size) in sizes.items()
    ]
    result = ddlsched.simulate(
        ddlsched.Workload.of(jobs),
        ddlsched.Cluster(num_servers=2, gpus_per_server=2),
        placement=Pinned(servers=dict.fromkeys(sizes, (0, 1))),
        order="srsf",
        communication=communication,
        contention=contention,
    )
    ends: list[float] = result.jobs["finish_s"].tolist()
    return ends


@pytest.mark.long
def test_a_pause_waits_for_the_chunks_under_way() -> None:
    """Of ten chunks a has sent 2.5 and has two under way: it sends up to the fourth beside b, until 1.55 s.

    By then b has sent 1.5e8 bytes; alone it ends 0.05 s later, and a's other 6e8 bytes 0.6 s after that.
    """
    assert finishes(SHORTEST) == pytest.approx([2.2, 1.45])
    assert finishes(InChunks(policy=SHORTEST, chunk_bytes=1e8, window=2)) == pytest.approx([2.2, 1.6], abs=2e-4)


@pytest.mark.long
def test_a_window_of_one_pauses_sooner() -> None:
    """The third chunk alone is under way: half of it is left, and takes until 1.35 s."""
    assert finishes(InChunks(policy=SHORTEST, chunk_bytes=1e8, window=1)) == pytest.approx([2.2, 1.5], abs=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("chunk_bytes", [5e8, 1e9, 4e9])
def test_a_message_of_no_more_chunks_than_are_under_way_is_never_paused(chunk_bytes: float) -> None:
    windows = (2, 1) if chunk_bytes > 5e8 else (2,)
    for window in windows:
        in_chunks = InChunks(policy=SHORTEST, chunk_bytes=chunk_bytes, window=window)
        assert finishes(in_chunks) == pytest.approx([2.2, 1.65])


@pytest.mark.long
def test_what_steps_cost_is_no_message() -> None:
    """Two chunks of 5e8 bytes are all of a's message, though it moves 1.2e9 bytes: it is not paused.

    From 1.25 s on, 0.25e9 of them sent, it shares with b, whose 4e8 bytes then take 0.8 s.
    """
    steps = "size-shares:per_byte_s=1e-9,exponent=0,step_s=0.1"
    assert finishes(InChunks(policy=SHORTEST, chunk_bytes=5e8), steps) == pytest.approx([2.6, 2.05])


@dataclass(frozen=True, kw_only=True)
class SmallestOnly:
    """The transfer with the fewest bytes left; asks to be woken."""

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> list[TransferView]:
        return [min(transfers, key=lambda transfer: transfer.bytes_left)]

    def wake_s(self, now_s: float) -> float:
        return 7.0


@pytest.mark.long
def test_a_policy_that_selects_is_asked_too() -> None:
    chunked = InChunks(policy=SmallestOnly(), chunk_bytes=1e8, window=2)
    assert finishes(chunked) == pytest.approx([2.2, 1.6], abs=2e-4)
    agent = chunked.begin(ddlsched.Cluster(num_servers=2), np.random.default_rng(0))
    assert agent.wake_s(0.0) == 7.0


def test_a_paused_transfer_of_a_job_without_collectives_is_in_chunks_of_what_it_moves() -> None:
    """Of 1e9 bytes 2.5 chunks are sent: the third and fourth are under way, so 1.5e8 bytes go on beside the other's."""
    dag = ddlsched.IterationDag(tasks=(ddlsched.ComputeTask(name="compute", duration_ns=1),))
    shared = {"job": types.SimpleNamespace(dag=dag), "servers": (0, 1)}
    views: Any = [
        types.SimpleNamespace(
            **shared, number=number, is_active=sent > 0, bytes_sent=sent, bytes_left=size - sent, message_bytes=size
        )
        for number, (size, sent) in enumerate([(1e9, 2.5e8), (2e8, 0.0)])
    ]
    network: Any = types.SimpleNamespace(per_byte_s=1e-9, now_s=1.25)
    chunked = InChunks(policy=SmallestOnly(), chunk_bytes=1e8)
    agent = chunked.begin(ddlsched.Cluster(num_servers=2), np.random.default_rng(0))
    assert [view.number for view in agent.select(views, network)] == [1, 0]
    assert agent.wake_s(1.25) == pytest.approx(1.25 + 0.15)


def test_a_policy_that_never_pauses_is_refused() -> None:
    with pytest.raises(InputError, match="expected one with transfer_key or select"):
        InChunks(policy=resolve("communication", "adadual"))
