"""The oracle's elastic jobs: what a policy's answer changes and on which GPUs, deliberately slow and simple.

It shares no code with the engine. Given to it from outside are the allocation policy and the cost of changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ddlsched.policies.doors import DROP
from ddlsched.workload.elastic_job import ElasticJob, Rescale

if TYPE_CHECKING:
    from reference_simulator import RunningJob, Simulation

NS_PER_S = 1e9


class Elastic:
    """The elastic jobs of a run, and who decides about them."""

    def __init__(self, policy: Any, cost_s: Callable[[Rescale], float]) -> None:
        self.policy, self.cost_s = policy, cost_s
        self.had: dict[int, tuple[int, ...]] = {}  # of jobs that have GPUs, or had until this instant
        self.left: dict[int, tuple[int, ...]] = {}  # what is left of them
        self.lost_samples: dict[int, int] = {}
        self.wake_ns: int | None = None
        self.changes: list[tuple[int, Rescale, int]] = []
        self.dropped: set[int] = set()

    def lose(self, sim: Simulation, state: RunningJob, lost_samples: int) -> None:
        """A job was stopped because a server left."""
        if not isinstance(state.job, ElasticJob):
            return
        self.left[state.number] = tuple(gpu for gpu in self.had[state.number] if sim.server(gpu) not in sim.down)
        self.lost_samples[state.number] = self.lost_samples.get(state.number, 0) + lost_samples

    def decide(self, sim: Simulation) -> None:
        there = [s for s in sim.residents + sim.queue if isinstance(s.job, ElasticJob)]
        there.sort(key=lambda s: (s.job.arrival_ns, s.number))
        for state in there:
            self.had.setdefault(state.number, ())
            self.left.setdefault(state.number, ())
        held = {gpu for state in there for gpu in self.left[state.number]}
        free = self.free(sim)
        capacity = SimpleNamespace(num_gpus=len(held | free), free_gpus=tuple(sorted(free - held)))
        now_s = sim.now_ns / NS_PER_S
        views = [self.view(sim, state) for state in there]
        answer = self.policy.allocate(views, capacity, now_s)
        self.carry_out(sim, there, answer)
        for state in there:
            if answer.get(state.job.job_id) is DROP:
                sim.queue.remove(state)
                self.dropped.add(state.number)
        self.had, self.lost_samples = dict(self.left), {}
        wake_s = self.policy.wake_s(now_s)
        if wake_s is not None and wake_s > now_s:
            wake_ns = round(wake_s * NS_PER_S)
            wake_ns += wake_ns / NS_PER_S < wake_s
            self.wake_ns = wake_ns if self.wake_ns is None else min(wake_ns, self.wake_ns)

    def free(self, sim: Simulation) -> set[int]:
        taken = {gpu for state in sim.residents for gpu in state.gpus}
        return {gpu for gpu in range(sim.cluster.num_gpus) if sim.server(gpu) not in sim.down} - taken

    def view(self, sim: Simulation, state: RunningJob) -> SimpleNamespace:
        left = self.left[state.number]
        return SimpleNamespace(
            job=state.job,
            job_id=state.job.job_id,
            number=state.number,
            samples_left=state.samples_left,
            gpus=left,
            num_gpus=len(left),
            batch=state.batch,
            lost_gpus=len(self.had[state.number]) - len(left),
            rescaling_left_s=max(state.hold_until_ns - sim.now_ns, 0) / NS_PER_S if left else 0.0,
            start_s=None if state.start_ns < 0 else state.start_ns / NS_PER_S,
        )

    def carry_out(self, sim: Simulation, there: list[RunningJob], answer: Any) -> None:
        wanted: list[tuple[RunningJob, int, int, tuple[int, ...] | None]] = []
        for state in there:
            given = answer.get(state.job.job_id)
            had, left = self.had[state.number], self.left[state.number]
            if given is None or given is DROP:
                if had:
                    wanted.append((state, 0, state.batch, ()))
                continue
            batch = state.job.largest_batch(given.num_gpus) if given.batch is None else given.batch
            named = None if given.gpus is None else tuple(sorted(given.gpus))
            keeps = had == left if named is None else had == named
            if not (keeps and len(had) == given.num_gpus and batch == state.batch):
                wanted.append((state, given.num_gpus, batch, named))
        for state, *_ in wanted:
            if state in sim.residents:
                sim.stop(state, 1)
        gpus = self.assign(sim, wanted)
        for state, num_gpus, batch, _ in wanted:
            self.resize(sim, state, gpus[state.number] if num_gpus else (), batch)

    def resize(self, sim: Simulation, state: RunningJob, gpus: tuple[int, ...], batch: int) -> None:
        had = self.had[state.number]
        change = Rescale(
            job_id=state.job.job_id,
            time_s=sim.now_ns / NS_PER_S,
            from_gpus=len(had),
            to_gpus=len(gpus),
            from_batch=state.batch,
            to_batch=batch,
            lost_gpus=len(had) - len(self.left[state.number]),
            added_gpus=len(set(gpus) - set(had)),
            removed_gpus=len(set(had) - set(gpus)),
            to_servers=len({sim.server(gpu) for gpu in gpus}),
            is_first=state.start_ns < 0,
            pending_s=max(state.hold_until_ns - sim.now_ns, 0) / NS_PER_S if had else 0.0,
            lost_samples=self.lost_samples.get(state.number, 0),
        )
        hold_ns = 0
        if gpus:
            hold_ns = round((state.job.rescale_cost or self.cost_s)(change) * NS_PER_S)
            state.fit(len(gpus), batch)
            sim.queue.remove(state)
            sim.place(state, list(gpus), hold_ns)
        self.changes.append((state.number, change, hold_ns))
        state.batch, state.hold_until_ns = batch, sim.now_ns + hold_ns
        self.left[state.number] = gpus

    def assign(self, sim: Simulation, wanted: list[Any]) -> dict[int, tuple[int, ...]]:
        """Who gets which GPUs: those named; then what is kept; then what is added, GPU by GPU where possible."""
        chosen = {state.number: set(named) for state, n, _, named in wanted if n and named is not None}
        rest = [(state, n) for state, n, _, named in wanted if n and named is None]
        for state, n in rest:
            kept = set(self.left[state.number]).difference(*chosen.values())
            while len(kept) > n:  # give up the highest GPU on the server with the fewest of them
                on = {
                    gpu: sum(sim.server(other) == sim.server(gpu) for other in self.left_of(state, chosen))
                    for gpu in kept
                }
                kept.remove(max(kept, key=lambda gpu: (-on[gpu], gpu)))
            chosen[state.number] = kept
        for state, n in sorted(rest, key=lambda pair: (len(chosen[pair[0].number]) - pair[1], pair[0].number)):
            mine = chosen[state.number]
            own = {
                server: sum(sim.server(gpu) == server for gpu in mine) for server in {sim.server(gpu) for gpu in mine}
            }
            for server in sorted(own, key=lambda server: (-own[server], server)):
                mine |= set(self.on(sim, server, chosen)[: n - len(mine)])
            while len(mine) < n:
                free = {server: self.on(sim, server, chosen) for server in range(sim.cluster.num_servers)}
                enough = [server for server in free if len(free[server]) >= n - len(mine)]
                if enough:
                    best = min(enough, key=lambda server: (len(free[server]), server))
                else:
                    best = min(free, key=lambda server: (-len(free[server]), server))
                mine |= set(free[best][: n - len(mine)])
        return {number: tuple(sorted(gpus)) for number, gpus in chosen.items()}

    def left_of(self, state: RunningJob, chosen: dict[int, set[int]]) -> set[int]:
        others = [gpus for number, gpus in chosen.items() if number != state.number]
        return set(self.left[state.number]).difference(*others)

    def on(self, sim: Simulation, server: int, chosen: dict[int, set[int]]) -> list[int]:
        free = self.free(sim).difference(*chosen.values())
        return sorted(gpu for gpu in free if sim.server(gpu) == server)


def iterations_for(samples: int, batch: int) -> int:
    return math.ceil(samples / batch) if batch else 0
