"""Jobs save their state: a stop at the end of an iteration and a start on the same GPUs, with the traffic between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import inf

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import failures_per_s
from ddlsched.cluster.reliability_doors import CheckpointedJob, CheckpointPolicy
from ddlsched.engine.field_values import JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.from_python import plan_move, stop_job
from ddlsched.engine.outcome import Residency
from ddlsched.engine.run_state import RunState
from ddlsched.engine.state_transfers import StateTransfer, StateTransfers
from ddlsched.errors import PluginError, guarded, label
from ddlsched.units import MAX_NS, NS_PER_S, ns_from_s
from ddlsched.workload.elastic_job import ElasticJob

SAVED = "saved its state"


class Checkpointing:
    """Has the jobs of a run save their state when a policy says, where and how large ``disturbances`` say.

    Parameters
    ----------
    state, placing, transfers
        The run, who puts jobs on GPUs, and who sends state.
    at
        Has something called at a time, nanoseconds.
    """

    def __init__(
        self,
        state: RunState,
        disturbances: Disturbances,
        policy: CheckpointPolicy,
        placing: JobPlacement,
        transfers: StateTransfers,
        at: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._state, self._disturbances, self._placing = state, disturbances, placing
        self._policy, self._transfers, self._at = policy, transfers, at
        self._store = disturbances.checkpoint_store
        self._due: set[int] = set()
        self._write_ns: dict[int, int] = {}
        servers = state.cluster.num_servers
        self._storage = range(max(servers - self._store.servers, 0), servers)
        state.now.asks_moves[0] = 1
        placing.started.append(self._plan_next)

    # --- when

    def _plan_next(self, number: int) -> None:
        """Ask for how long a job that has just been placed trains until it saves its state."""
        state, stay = self._state, self._state.stays[-1]
        job = state.workload[number]
        if isinstance(job, ElasticJob):
            return
        servers = len({state.server_of_gpu[gpu] for gpu in stay.gpus})
        rate = failures_per_s(self._disturbances.causes, len(stay.gpus), servers)
        seen = CheckpointedJob(
            job_id=job.job_id,
            num_gpus=len(stay.gpus),
            write_s=self._write_ns.get(number, self._stall_ns(stay.gpus, number)) / NS_PER_S,
            restart_s=self._placing.restart_ns(number) / NS_PER_S,
            time_to_failure_s=1 / rate if rate else inf,
            now_s=state.now_s,
        )
        name = f"checkpoint {label(self._policy)}: interval_s"
        interval_s = guarded(name, lambda: self._policy.interval_s(seen))
        if not isinstance(interval_s, int | float) or not interval_s > 0:
            raise PluginError(f"{name} answered {interval_s!r} for job {job.job_id!r}; expected seconds > 0")
        if interval_s < MAX_NS / NS_PER_S / 2:
            least_ns = self._alone_ns(stay.gpus, number) if self._store.background_share else 1
            interval_ns, begin_ns = max(ns_from_s(interval_s), least_ns), state.now_ns + stay.hold_ns
            self._at(begin_ns + interval_ns, lambda: self._save_soon(number, stay, interval_ns))

    def _save_soon(self, number: int, stay: Residency, interval_ns: int) -> None:
        """Have a job save its state at the end of its iteration, if it is still there and has trained for so long."""
        state, jobs = self._state, self._state.jobs
        if jobs.state.item(number) != JobState.RUNNING or state.stays[jobs.stay.item(number)] is not stay:
            return
        again = partial(self._save_soon, number, stay, interval_ns)
        begin_ns = state.begin_of_work_ns(number, stay)
        if jobs.restarting.item(number):  # its state is on its way; half an iteration on, none can have ended
            self._at(state.now_ns + max(interval_ns, self._least_iteration_ns(number, stay) // 2), again)
        elif state.now_ns < begin_ns + interval_ns:
            self._at(begin_ns + interval_ns, again)
        elif jobs.flows_left.item(number):  # what it saved before is still on its way
            self._at(state.now_ns + interval_ns, again)
        elif not jobs.leaving.item(number):  # else a policy moves it, with its state
            plan_move(state.arrays, number)
            self._due.add(number)

    def _least_iteration_ns(self, number: int, stay: Residency) -> int:
        """Return what an iteration takes at least on a job's GPUs, in nanoseconds."""
        state = self._state
        slowness = state.gpus.slowness[list(stay.gpus)].min() / state.arrays.speeds.max(initial=1.0)
        return int(state.jobs.compute_ns.item(number) * slowness * state.arrays.jitter.min())

    def carry_out(self) -> None:
        """Save the state of jobs whose iteration has ended; forget those that have finished or were stopped."""
        leaving = self._state.jobs.leaving
        for number in sorted(self._due):
            if leaving.item(number) == 1:
                continue
            self._due.remove(number)
            if leaving.item(number) == 2:
                self._save(number)

    # --- what it takes

    def _save(self, number: int) -> None:
        state = self._state
        before = state.stays[state.jobs.stay.item(number)]
        stop_job(state.arrays, number, 1)
        state.end_stay(number, SAVED)
        if before.saved and not self._store.background_share:
            self._write_ns[number] = before.begin_ns - before.from_ns
        state.now.num_queued[0] -= 1  # it has joined the queue last
        in_background = self._store.background_share > 0
        sends = self._writes(number, before.gpus)
        hold_ns = self._stall_ns(before.gpus, number) if in_background or not self._store.sends else 0
        self._placing.put_after(number, list(before.gpus), hold_ns, sends, in_background=in_background)
        state.jobs.restarts[number] -= 1  # which counts what is no restart
        stay = state.stays[-1]
        stay.saved = True
        if in_background:
            stay.safe_ns = MAX_NS if sends else state.now_ns + self._alone_ns(before.gpus, number)

    def _stall_ns(self, gpus: Sequence[int], number: int) -> int:
        """Return for how long a checkpoint holds a job up on a free network."""
        share = self._store.background_share
        return round(self._alone_ns(gpus, number) * share) if share else self._alone_ns(gpus, number)

    def _alone_ns(self, gpus: Sequence[int], number: int) -> int:
        """Return after how long the state is where it goes, on a free network."""
        if not self._store.sends:
            return self._disk_ns(gpus, number)
        sent: Counter[int] = Counter()
        for transfer in self._writes(number, gpus):
            sent.update(dict.fromkeys(transfer.links, transfer.size_bytes))
        links = self._state.network.links
        return max((round(sent[link] / links[link].bandwidth_bytes_per_s * NS_PER_S) for link in sent), default=0)

    def _disk_ns(self, gpus: Sequence[int], number: int) -> int:
        """Return what it takes a server with the most workers to write or read their state, nanoseconds."""
        most = max(Counter(self._state.server_of_gpu[gpu] for gpu in gpus).values())
        return round(most * self._worker_bytes(number, len(gpus)) / self._store.gb_per_s)

    def _worker_bytes(self, number: int, num_gpus: int) -> int:
        """Return a worker's part of a job's state; a job that has shrunk has as much in all."""
        job = self._state.workload[number]
        return self._disturbances.state_bytes(job.gpu_memory_bytes) * job.num_gpus // num_gpus

    def _writes(self, number: int, gpus: Sequence[int]) -> list[StateTransfer]:
        """Return what goes over the network when a job on GPUs saves its state."""
        if not self._store.sends:
            return []
        servers = [self._state.server_of_gpu[gpu] for gpu in gpus]
        targets = self._holders(servers)
        return self._transfers.between(list(zip(servers, targets, strict=True)), self._worker_bytes(number, len(gpus)))

    def _holders(self, servers: Sequence[int]) -> list[int]:
        """Return for each worker, by its server, the server that has its state after a checkpoint."""
        if self._store.to == "storage":
            return [self._storage[worker % len(self._storage)] for worker in range(len(servers))]
        if self._store.to == "disk":
            return list(servers)
        own = sorted(set(servers))
        after = own[0] if len(own) > 1 else (own[0] + 1) % self._state.cluster.num_servers
        peers = dict(pairwise([*own, after]))
        return [peers[server] for server in servers]

    # --- going on after a failure

    def fall_back(self, number: int, since_ns: int) -> int:
        """Take a job that has just been stopped, or waits, back to its last whole checkpoint up to ``since_ns``.

        Its next start reads its state. Returns the time of the work lost, nanoseconds.
        """
        state, lost_ns, last = self._state, 0, self._state.stays_of[number][-1]
        for stay in reversed(state.stays_of[number]):
            if not stay.lost:
                lost_ns += stay.worked_ns
                stay.lost = True
            if stay.from_ns <= since_ns and stay.began_whole:
                self._set_left(number, stay.iterations_left)
                break
        self._read_later(number, last.gpus)
        return lost_ns

    def _set_left(self, number: int, iterations: int) -> None:
        jobs = self._state.jobs
        jobs.iterations_left[number] = jobs.start_iterations_left[number] = iterations
        iteration_ns = jobs.compute_ns.item(number) * jobs.num_gpus.item(number)
        if jobs.grouped.item(number):
            iteration_ns = jobs.service_ns.item(number) // jobs.iterations.item(number)
        jobs.cut_service_ns[number] += iterations * iteration_ns - jobs.remaining_service_ns.item(number)
        jobs.remaining_service_ns[number] = iterations * iteration_ns

    def _read_later(self, number: int, gpus: Sequence[int]) -> None:
        """Have a job read its state when it is placed next: from a disk, or over the network from who has it."""
        state = self._state
        if not self._store.sends:
            self._placing.reading_ns[number] = self._disk_ns(gpus, number)
            return
        servers = [state.server_of_gpu[gpu] for gpu in gpus]
        holders = self._holders(servers)
        if self._store.to == "peer":  # what is in a server's own memory need not be sent
            holders = [own if state.is_present(own) else peer for own, peer in zip(servers, holders, strict=True)]
        self._placing.state_at[number] = tuple(holders)
