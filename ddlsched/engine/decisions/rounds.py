"""What is asked in a round of decisions, for whoever carries it out: a simulated run, real processes, or Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.policies.views import ClusterView, JobQueue, JobView, NetworkView, TransferView


class StartsJobs(Protocol):
    """Carries out where jobs run."""

    def next_fitting(self, queue: JobQueue, place: int) -> int:
        """Return the first place in a queue, from ``place`` on, of a job that enough GPUs have room for, or -1."""

    def put(self, number: int, gpus: list[int]) -> None:
        """Start a job on GPUs, in placement order; it counts at once in what policies see."""


class StopsJobs(Protocol):
    """Carries out which jobs stop."""

    def leave(self, number: int) -> None:
        """Take a job off its GPUs."""


class SendsTransfers(Protocol):
    """Carries out who sends."""

    def network(self) -> NetworkView:
        """Return what a communication policy sees of the network now."""

    def start(self, transfer: TransferView) -> None:
        """Let a transfer send; it counts at once in what policies see."""

    def pause(self, transfer: TransferView) -> None:
        """Let a transfer that sends wait; it keeps its bytes."""


def start_queued(policies: CheckedPolicies, queue: JobQueue, cluster: ClusterView, acts: StartsJobs) -> list[int]:
    """Ask who of a queue starts, and where; return who did, by number."""
    started = []
    for number, gpus in _starts(policies, queue, cluster, acts):
        acts.put(number, gpus)
        started.append(number)
    return started


def _starts(
    policies: CheckedPolicies, queue: JobQueue, cluster: ClusterView, acts: StartsJobs
) -> Iterator[tuple[int, list[int]]]:
    """Yield who starts; a policy that goes job by job is asked for those, in order, that GPUs have room for."""
    if policies.placement_has_rounds:
        if len(queue):
            yield from policies.place_round(queue, cluster)
        return
    place = 0
    while place < len(queue) and (place := acts.next_fitting(queue, place)) >= 0:
        job = queue[place]
        gpus = policies.place(job, cluster)
        if gpus is not None:
            yield job.number, gpus
        place += 1


def stop_running(
    policies: CheckedPolicies, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView, acts: StopsJobs
) -> list[int]:
    """Ask the order which running jobs, by number, stop for those that wait; return who did."""
    if not policies.order_stops or not len(queue) or not running:
        return []
    stopped = policies.stops(running, queue, cluster)
    for number in stopped:
        acts.leave(number)
    return stopped


def choose_transfers(policies: CheckedPolicies, candidates: Sequence[TransferView], acts: SendsTransfers) -> None:
    """Ask which of the ready transfers send, all of them in ascending order."""
    network, form = acts.network(), policies.communication_form
    if form == "admit":
        for transfer in candidates:
            if policies.admit(transfer, network):
                acts.start(transfer)
                network = acts.network()
        return
    ask = policies.select_by_key if form == "transfer_key" else policies.select
    selected = ask(candidates, network) if candidates else set()
    for transfer in candidates:
        if transfer.is_active and transfer.number not in selected:
            acts.pause(transfer)
        elif transfer.number in selected and not transfer.is_active:
            acts.start(transfer)
