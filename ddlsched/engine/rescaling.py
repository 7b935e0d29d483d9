"""What elastic jobs hold, and what the allocation policy decides of them: stops, resizes, starts and drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.field_values import JobState
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.from_python import stop_job
from ddlsched.engine.records import Columns
from ddlsched.engine.run_state import RunState
from ddlsched.policies.doors import DROP, Allocation, Drop
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView, free_by_server, take_nearest
from ddlsched.policies.views import GpuId
from ddlsched.units import s_from_ns
from ddlsched.workload.elastic_job import ElasticJob, Rescale
from ddlsched.workload.job import Workload


@dataclass
class GpuHolding:
    """An elastic job and what it holds.

    ``had`` are the GPUs of before this instant; ``gpus`` those left of them. ``hold_until_ns`` is when an earlier
    change ends, and ``samples_lost`` what a loss of servers at this instant cost. ``queued_view`` is
    what a policy sees of a job that waits, kept since most jobs wait most of the time.
    """

    job: ElasticJob
    number: int
    had: tuple[GpuId, ...] = ()
    gpus: tuple[GpuId, ...] = ()
    batch: int = 0
    hold_until_ns: int = -1
    started_ns: int = -1
    samples_lost: int = 0
    compute_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    queued_view: ElasticJobView | None = None

    def compute_ns_at(self, num_gpus: int, batch: int) -> int:
        """Return the compute time of an iteration; the curve is asked once for each size."""
        if (num_gpus, batch) not in self.compute_ns:
            self.compute_ns[num_gpus, batch] = self.job.compute_ns_at(num_gpus, batch)
        return self.compute_ns[num_gpus, batch]


class SizeChange(NamedTuple):
    """What a job has from now on: so many GPUs (0: none, ``gpus`` says which if the policy does), so large a batch."""

    holding: GpuHolding
    num_gpus: int
    batch: int
    gpus: tuple[GpuId, ...] | None


class ElasticJobs:
    """Those that have arrived and are neither finished nor dropped, in the order of arrival."""

    def __init__(self, workload: Workload, columns: Columns) -> None:
        self._columns = columns
        jobs = [(job.arrival_ns, n, job) for n, job in enumerate(workload) if isinstance(job, ElasticJob)]
        self._all = [GpuHolding(job, number) for _, number, job in sorted(jobs, key=lambda job: job[:2])][::-1]
        self._to_come = [*self._all]
        self.there: dict[int, GpuHolding] = {}
        """By number."""
        self._num_jobs = self._seen_left = len(workload)

    @property
    def all_jobs(self) -> list[ElasticJob]:
        """All of the run, in no order."""
        return [holding.job for holding in self._all]

    def __bool__(self) -> bool:
        return bool(self.there or self._to_come)

    def begin_again(self) -> None:
        """Put all back to before the first arrival."""
        self._to_come = [GpuHolding(held.job, held.number, compute_ns=held.compute_ns) for held in self._all]
        self.there, self._seen_left = {}, self._num_jobs

    def take_in(self, now_ns: int, finished: int, num_jobs_left: int) -> None:
        """Take in the arrivals until now and let those go whose state is ``finished``."""
        state = self._columns.state
        if num_jobs_left != self._seen_left:
            self.there = {n: holding for n, holding in self.there.items() if state.item(n) != finished}
            self._seen_left = num_jobs_left
        while self._to_come and self._to_come[-1].job.arrival_ns <= now_ns:
            holding = self._to_come.pop()
            self.there[holding.number] = holding

    def samples_left(self, number: int, now_ns: int) -> int:
        """Return the samples of iterations that have not ended."""
        columns = self._columns
        ended = columns.start_iterations_left.item(number) - columns.iterations_left.item(number)
        if columns.dormant.item(number):
            ended += (now_ns - columns.dormant_since_ns.item(number)) // columns.period_ns.item(number)
        samples: int = columns.samples_left.item(number) - ended * columns.batch.item(number)
        return max(samples, 0)

    def views(self, now_ns: int) -> list[ElasticJobView]:
        """Return what a policy sees of them."""
        return [holding.queued_view or self._view(holding, now_ns) for holding in self.there.values()]

    def _view(self, holding: GpuHolding, now_ns: int) -> ElasticJobView:
        view = ElasticJobView(
            job=holding.job,
            number=holding.number,
            samples_left=self.samples_left(holding.number, now_ns),
            gpus=holding.gpus,
            batch=holding.batch,
            lost_gpus=len(holding.had) - len(holding.gpus),
            rescaling_left_s=s_from_ns(max(holding.hold_until_ns - now_ns, 0)) if holding.gpus else 0.0,
            start_s=s_from_ns(holding.started_ns) if holding.started_ns >= 0 else None,
        )
        if not holding.had:
            holding.queued_view = view
        return view

    def lose(self, stopped: Iterable[int], gone: frozenset[GpuId]) -> None:
        """Note that jobs were stopped because some of their GPUs are gone."""
        lost_samples = self._columns.lost_samples
        for number in stopped:
            if holding := self.there.get(number):
                holding.gpus = tuple(gpu for gpu in holding.gpus if gpu not in gone)
                holding.samples_lost += lost_samples.item(number)
                lost_samples[number] = 0

    def changes(self, answer: Mapping[str, Allocation | Drop]) -> list[SizeChange]:
        """Return what an answer changes."""
        changes = []
        for holding in self.there.values():
            given = answer.get(holding.job.job_id)
            if not isinstance(given, Allocation):
                if holding.had:
                    changes.append(SizeChange(holding, 0, holding.batch, None))
                continue
            batch = holding.job.largest_batch(given.num_gpus) if given.batch is None else int(given.batch)
            gpus = None if given.gpus is None else tuple(sorted(int(gpu) for gpu in given.gpus))
            same = holding.had == holding.gpus if gpus is None else holding.had == gpus
            if not same or len(holding.had) != given.num_gpus or holding.batch != batch:
                changes.append(SizeChange(holding, int(given.num_gpus), batch, gpus))
        return changes


def choose_gpus(
    changes: Sequence[SizeChange], free: Iterable[GpuId], server_of: Callable[[GpuId], int]
) -> dict[int, tuple[GpuId, ...]]:
    """Return each changed job's GPUs, by its number, ascending.

    Those that a policy names come first. A job that shrinks keeps its GPUs on the servers on which it has the most
    (ties: lower GPUs). Then jobs that grow, the one that grows most first, add free GPUs
    (:func:`~ddlsched.policies.elastic_views.take_nearest`).

    Parameters
    ----------
    changes
        Of jobs that have more than 0 GPUs from now on.
    free
        GPUs that are free once these jobs have left theirs.
    server_of
        Server of each GPU.
    """
    chosen = {change.holding.number: change.gpus for change in changes if change.gpus is not None}
    taken = {gpu for gpus in chosen.values() for gpu in gpus}
    rest = [change for change in changes if change.gpus is None]
    kept = {}
    for change in rest:
        held = [gpu for gpu in change.holding.gpus if gpu not in taken]
        kept[change.holding.number] = _keep(held, change.num_gpus, server_of)
        taken.update(kept[change.holding.number])
    pool = free_by_server([gpu for gpu in free if gpu not in taken], server_of)
    for change in sorted(rest, key=lambda c: (len(kept[c.holding.number]) - c.num_gpus, c.holding.number)):
        mine = kept[change.holding.number]
        added = take_nearest(pool, change.num_gpus - len(mine), mine, server_of)
        chosen[change.holding.number] = tuple(sorted(mine + added))
    return chosen


def _keep(held: list[GpuId], count: int, server_of: Callable[[GpuId], int]) -> list[GpuId]:
    if count >= len(held):
        return held
    on_server = Counter(server_of(gpu) for gpu in held)
    return sorted(held, key=lambda gpu: (-on_server[server_of(gpu)], gpu))[:count]


class Rescaling:
    """Resizes the elastic jobs of a run; ``rescales`` are job, change and its cost (ns), in order of time."""

    def __init__(self, state: RunState, asker: CheckedPolicies, placing: JobPlacement) -> None:
        self._state, self._asker, self._placing = state, asker, placing
        self.jobs = ElasticJobs(state.workload, state.jobs)
        self.rescales: list[tuple[int, Rescale, int]] = []

    def allocate(self) -> None:
        """Ask the policy and carry out its answer."""
        state, elastic = self._state, self.jobs
        self.take_in()
        self.carry_out(self._asker.allocate(elastic.views(state.now_ns), self._capacity(), state.now_s))

    def take_in(self) -> None:
        """Take in the elastic jobs that have arrived, and let those go that have finished."""
        state = self._state
        self.jobs.take_in(state.now_ns, JobState.FINISHED, state.now.num_jobs_left.item(0))

    def carry_out(self, answer: Mapping[str, Allocation | Drop]) -> None:
        """Give the jobs what is answered, which was checked."""
        elastic = self.jobs
        self._carry_out(elastic.changes(answer))
        for number in [n for n, holding in elastic.there.items() if answer.get(holding.job.job_id) is DROP]:
            self._drop(number)
        for holding in elastic.there.values():
            holding.had, holding.samples_lost = holding.gpus, 0

    def begin_again(self) -> None:
        """Forget all that was carried out."""
        self.jobs.begin_again()
        self.rescales.clear()

    def _capacity(self) -> CapacityView:
        state = self._state
        held = {gpu for holding in self.jobs.there.values() for gpu in holding.gpus}
        free = state.free_gpus()
        queued = state.arrays.queue[: state.now.num_queued.item(0)].tolist()
        return CapacityView(
            num_gpus=len(held.union(free)),
            free_gpus=tuple(gpu for gpu in free if gpu not in held),
            cluster=state.cluster,
            queued=[state.views[number] for number in queued],
            network=state.network,
            all_reduce=self._placing.costs.all_reduce_s,
        )

    def _carry_out(self, changes: list[SizeChange]) -> None:
        """Stop every job that changes, then start those that have GPUs from now on."""
        state = self._state
        for change in changes:
            number = change.holding.number
            if state.jobs.state.item(number) == JobState.RUNNING:
                stop_job(state.arrays, number, 1)
                state.end_stay(number)
        going_on = [change for change in changes if change.num_gpus]
        chosen = choose_gpus(going_on, state.free_gpus() if going_on else (), state.server_of_gpu.__getitem__)
        for change in changes:
            self._resize(change, chosen.get(change.holding.number, ()))

    def _resize(self, change: SizeChange, gpus: tuple[int, ...]) -> None:
        """Give a job that is not running its GPUs and batch."""
        state, holding, number = self._state, change.holding, change.holding.number
        pending_ns = max(holding.hold_until_ns - state.now_ns, 0) if holding.had else 0
        rescale = state.rescale(
            number,
            holding.had,
            gpus,
            from_batch=holding.batch,
            to_batch=change.batch,
            lost_gpus=len(holding.had) - len(holding.gpus),
            is_first=holding.started_ns < 0,
            pending_s=s_from_ns(pending_ns),
            lost_samples=holding.samples_lost,
        )
        cost_ns = 0
        if gpus:
            cost_ns = self._asker.rescale_ns(holding.job, rescale)
            self._fit(holding, len(gpus), change.batch)
            self._placing.put_after(number, list(gpus), cost_ns)
            state.now.num_elastic_queued[0] -= 1
            holding.started_ns = state.jobs.start_ns.item(number)
        holding.gpus, holding.batch, holding.queued_view = gpus, change.batch, None
        holding.hold_until_ns = state.now_ns + cost_ns
        self.rescales.append((number, rescale, cost_ns))

    def _fit(self, holding: GpuHolding, num_gpus: int, batch: int) -> None:
        """Give the records of a job the size that it has from now on."""
        state, jobs, number = self._state, self._state.jobs, holding.number
        compute_ns = holding.compute_ns_at(num_gpus, batch)
        attained_ns = jobs.service_ns.item(number) - jobs.remaining_service_ns.item(number)
        left = -(-jobs.samples_left.item(number) // batch)
        remaining_ns = left * compute_ns * num_gpus
        state.refuse_service(number, attained_ns + remaining_ns)
        jobs.iterations[number] += left - jobs.iterations_left.item(number)
        jobs.iterations_left[number] = left
        jobs.num_gpus[number], jobs.batch[number], jobs.compute_ns[number] = num_gpus, batch, compute_ns
        jobs.service_ns[number], jobs.remaining_service_ns[number] = attained_ns + remaining_ns, remaining_ns
        first = jobs.first_task.item(number)
        state.tasks.duration_ns[first] = compute_ns
        if jobs.num_tasks.item(number) > 1:
            state.tasks.pending[first + 1] = num_gpus

    def _drop(self, number: int) -> None:
        """Turn a job away that has no GPUs."""
        state, jobs, now_ns = self._state, self._state.jobs, self._state.now_ns
        jobs.state[number] = JobState.DROPPED
        jobs.queueing_ns[number] += now_ns - jobs.since_ns.item(number)
        jobs.since_ns[number] = now_ns
        state.now.num_elastic_queued[0] -= 1
        state.now.num_jobs_left[0] -= 1
        del self.jobs.there[number]
