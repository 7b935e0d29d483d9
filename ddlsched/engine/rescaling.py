"""Gives elastic jobs what the allocation policy decides: stops, resizes, starts and drops them."""

from __future__ import annotations

from collections.abc import Mapping

from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.elastic_holdings import ElasticJobs, GpuHolding, SizeChange, choose_gpus, rescale_of
from ddlsched.engine.job_placement import JobPlacement
from ddlsched.engine.loop.from_python import stop_job
from ddlsched.engine.records.field_values import JobState
from ddlsched.engine.run_state import RunState
from ddlsched.policies.doors import DROP, Allocation, Drop
from ddlsched.policies.elastic_views import CapacityView
from ddlsched.workload.rescale import Rescale

__all__ = ["Rescaling"]


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
        num_servers = len({state.server_of_gpu[gpu] for gpu in gpus})
        rescale = rescale_of(change, gpus, num_servers, state.now_ns)
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
