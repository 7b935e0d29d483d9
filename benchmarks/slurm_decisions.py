"""What a real Slurm decides, and what ours decide in the same states: order, victims, nodes.

    python benchmarks/slurm_decisions.py run slurm.csv [--jobs 120]    # as root, some 10 minutes: a Slurm of 16 nodes
    python benchmarks/slurm_decisions.py compare slurm.csv

Four accounts with shares, three QOS that preempt each other, blocks of four nodes, jobs of 1 to 8 nodes. ``run`` writes
what happened, in the order of the controller's log: jobs that came, started and where, were preempted, left their
nodes, and the priorities of those that waited whenever these were reckoned. ``compare`` follows that, and asks ours at
each start and each such order. It needs Slurm 24.05 or later and ``mariadb-server slurmdbd``.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import typer
from scheduler_tables import State
from slurm_daemons import QOS, AccountedSlurm

from algorithms.admission.slurm_multifactor import SlurmMultifactor
from algorithms.admission.victims import Need
from algorithms.placement.slurm_backfill import SlurmBackfill
from ddlsched.cluster.idle_trace import expand_hosts
from ddlsched.cluster.tenants import Preemption, Queue, Tenants
from ddlsched.plugins.names import resolve
from ddlsched.policies.tenants_view import HeldQuota, TenantsView
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.testing.handmade import cluster_view, job_queue, job_view
from ddlsched.units import ns_from_s
from topologies.leaf_spine import LeafSpine

_NODES, _BLOCK = 16, 4
_ACCOUNTS = {"a": 1, "b": 2, "c": 3, "d": 4}
_CPUS, _LIMIT_MINUTES = 64, 5
_CALC_PERIOD_S = 60.0
_HALF_LIFE_S, _MAX_AGE_S = 1800.0, 900.0
_WEIGHTS = {"Age": 1000, "Fairshare": 10000, "JobSize": 500, "QOS": 2000}
_SETTINGS = {
    "PriorityType": "priority/multifactor",
    "PriorityFlags": "NO_FAIR_TREE",
    "PriorityCalcPeriod": "1",
    "PriorityDecayHalfLife": "0-00:30:00",
    "PriorityMaxAge": "0-00:15:00",
    "SlurmctldDebug": "debug2",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=2,bf_interval=10,defer",
} | {f"PriorityWeight{name}": str(weight) for name, weight in _WEIGHTS.items()}
_LOOK_S = 2.0
_EVENTS = {
    "order": re.compile(r"priority for job (\d+) is now (\d+)"),
    "start": re.compile(r"sched: Allocate JobId=(\d+) NodeList=(\S+)|Started JobId=(\d+) in main on (\S+)"),
    "preempted": re.compile(r"preempted JobId=(\d+) has been requeued to reclaim resources for JobId=(\d+)"),
    "left": re.compile(r"_slurm_rpc_epilog_complete: JobId=(\d+) Node=(\S+)|_job_complete: JobId=(\d+) done"),
}


class _Event(NamedTuple):
    time_s: float
    what: str
    job: int = -1
    told: str = ""


def _run(jobs: int, seed: int) -> pd.DataFrame:
    """Return what happened on a real Slurm, a row an event."""
    rng, events = np.random.default_rng(seed), list[_Event]()
    slurm = AccountedSlurm(_NODES, 1, _SETTINGS, accounts=_ACCOUNTS, block=_BLOCK)
    with slurm:
        submitted, next_s = 0, time.time()
        while submitted < jobs or slurm.run("squeue", "--noheader", "--states=PD"):
            while submitted < jobs and time.time() >= next_s:
                events.append(_submit(slurm, rng))
                submitted += 1
                next_s += float(rng.exponential(5.0)) if submitted > jobs // 4 else 0.2
            time.sleep(_LOOK_S)
        log = (slurm.folder / "slurmctld.log").read_text()
    return pd.DataFrame(sorted([*events, *_events(log)], key=lambda event: event.time_s))


def _submit(slurm: AccountedSlurm, rng: np.random.Generator) -> _Event:
    """Submit a job of a drawn account, QOS, size and length."""
    account, qos = rng.choice(list(_ACCOUNTS)), rng.choice(list(QOS), p=(0.6, 0.25, 0.15))
    nodes, length_s = (
        int(rng.choice([1, 2, 3, 4, 6, 8], p=(0.3, 0.25, 0.15, 0.15, 0.1, 0.05))),
        int(rng.integers(10, 50)),
    )
    who, size = (
        ["-A", str(account), f"--qos={qos}"],
        ["-N", str(nodes), f"--ntasks-per-node={_CPUS}", f"--time={_LIMIT_MINUTES}"],
    )
    now_s = time.time()  # it may start before the answer is here
    number = slurm.run("sbatch", "--parsable", "--output=/dev/null", *who, *size, "--wrap", f"sleep {length_s}")
    return _Event(now_s, "came", int(number), f"{account} {QOS[str(qos)]} {nodes}")


def _events(log: str) -> Iterator[_Event]:
    """Yield what the controller's log says, in its order."""
    for line in log.splitlines():
        for what, pattern in _EVENTS.items():
            if (found := pattern.search(line)) and line.startswith("["):
                job, *rest = (part for part in found.groups() if part is not None)
                time_s = datetime.fromisoformat(line[1 : line.index("]")]).timestamp()
                yield _Event(time_s, what, int(job), rest[0] if rest else "")


class _Followed(State):
    """The state of the real Slurm, as its events come, and how often ours decides the same."""

    def __init__(self, placement: str) -> None:
        rules = Preemption(within_queue="lower-priority", reclaim="lower-priority")
        shares = {"root": 1, **_ACCOUNTS}  # Slurm's user root has a share beside the accounts
        queues = [Queue(name=name, weight=weight, preemption=rules) for name, weight in shares.items()]
        super().__init__(Tenants(queues=tuple(queues)))
        self._nodes: dict[int, set[int]] = {}
        """Where jobs are, less the nodes that they have left."""
        weights = {"age": "Age", "fair_share": "Fairshare", "size": "JobSize", "qos": "QOS"}
        policy = SlurmMultifactor(
            **{f"{ours}_weight": float(_WEIGHTS[name]) for ours, name in weights.items()},
            highest_qos=max(QOS.values()),
            max_age_s=_MAX_AGE_S,
            half_life_s=_HALF_LIFE_S,
            calc_period_s=_CALC_PERIOD_S,
        )
        self._placement, self._backfill = resolve("placement", placement), SlurmBackfill(placement=placement)
        self._jobs: dict[int, JobView] = {}
        self._policy = policy.begin(self._cluster(0.0)._cluster, np.random.default_rng(0))
        self._gone: dict[int, set[int]] = {}
        self._theirs: dict[int, int] = {}
        """Slurm's priorities, as far as it has told them since they were reckoned."""
        self.counts: Counter[tuple[str, bool]] = Counter()
        self.differ: list[str] = []

    def _cluster(self, now_s: float, leaving: Collection[int] = ()) -> ClusterView:
        there = {job: nodes for job, nodes in self._nodes.items() if job not in leaving}
        residents = {node: [self._jobs[job]] for job, nodes in there.items() for node in nodes}
        racks = LeafSpine(servers_per_leaf=_BLOCK)
        named = {"num_servers": _NODES, "gpus_per_server": 1, "topology": racks, "exclusive": True}
        return cluster_view(**named, residents=residents, now_s=now_s)  # type: ignore[arg-type]

    def _view(self, now_s: float) -> TenantsView:
        jobs = self.pending, self.holdings, self.by_queue

        def place(job: JobView, leaving: Sequence[JobView]) -> Any:
            return self._placement.place(job, self._cluster(now_s, {each.number for each in leaving}))

        return TenantsView(self.tenants, self.quotas, *jobs, ns_from_s(now_s), 0, None, (), place)

    def follow(self, event: _Event, now_s: float) -> None:
        """Ask ours what the event decides, and let it happen."""
        if event.what != "order":
            self._count_pairs(now_s)
        if event.what != "preempted":
            self._tell_victims(now_s)
        getattr(self, f"_{event.what}")(event, now_s)

    def _came(self, event: _Event, now_s: float) -> None:
        account, priority, nodes = event.told.split()
        demand: dict[str, Any] = {"queue": account, "priority": int(priority), "time_limit_s": 60.0 * _LIMIT_MINUTES}
        job = job_view(number=event.job, num_gpus=int(nodes), arrival_s=now_s, **demand)
        self._jobs[event.job] = job
        self.pending.add(job)

    def _order(self, event: _Event, now_s: float) -> None:
        if now_s - self._policy._reckoned_s > _CALC_PERIOD_S / 2:
            self._policy.reckon(self._view(now_s), self.holdings.values())
        self._theirs[event.job] = int(event.told)

    def _count_pairs(self, now_s: float) -> None:
        """Compare our order with Slurm's, once it has told all priorities."""
        theirs, self._theirs = self._theirs, {}
        ours = self._policy.priorities(self._view(now_s), self._cluster(now_s)) if theirs else {}
        for first, second in combinations(sorted(ours, key=lambda job: (-ours[job], job.number)), 2):
            higher, lower = theirs.get(first.number), theirs.get(second.number)
            if higher is not None and lower is not None and higher != lower:
                self.counts["pairs", higher > lower] += 1

    def _start(self, event: _Event, now_s: float) -> None:
        job, theirs = self._jobs[event.job], {int(name[1:]) - 1 for name in expand_hosts(event.told)}
        ours = self._started(job, now_s)
        free = set(range(_NODES)).difference(*self._nodes.values())
        self._count(
            "start", ours is not None and set(ours) == theirs, f"{job.num_gpus} of {free}: {ours}, Slurm {theirs}"
        )
        self.pending.remove(job)
        holding = HeldQuota.of(job, "any", ns_from_s(now_s))
        self.holdings[event.job] = self.by_queue[holding.queue][event.job] = holding
        self._nodes[event.job] = theirs
        job._placed(tuple(theirs), tuple(theirs))

    def _started(self, job: JobView, now_s: float) -> Sequence[int] | None:
        """Return where ours starts a job now, with those that wait and go before it."""
        cluster = self._cluster(now_s, self._nodes.keys() - self.holdings.keys())
        waiting = self._policy.in_order(self._view(now_s), cluster)
        before = [each for each in waiting[: waiting.index(job)] if self._policy.begins_s(each) <= now_s]
        planner = self._backfill.begin(cluster._cluster, np.random.default_rng(0))
        planner._take_note(job_queue(*self._jobs.values()), cluster)
        for number, holding in self.holdings.items():
            planner._start(self._jobs[number], sorted(self._nodes[number]), holding.since_ns)
        starts = {each.number: nodes for each, nodes in planner.place_round(job_queue(*before, job), cluster)}
        return starts.get(job.number)

    def _preempted(self, event: _Event, now_s: float) -> None:
        self._gone.setdefault(int(event.told), set()).add(event.job)

    def _tell_victims(self, now_s: float) -> None:
        """Ask ours who gives way to whom others have given way, and let these wait."""
        for number, gone in self._gone.items():
            job = self._jobs[number]
            need = Need(job, self.quotas[str(job.queue)], "any")
            view, cluster = self._view(now_s), self._cluster(now_s)
            self._count("needed", view.place(job) is None, f"{job.num_gpus}: ours sees nodes that are free")
            ours = {each.job.number for each in self._policy._victims(need, view, cluster)}
            self._count("victims", ours == gone, f"{job.num_gpus}: {ours}, Slurm {gone}")
        for job in {job for gone in self._gone.values() for job in gone}:
            self._end(job)
            self.pending.add(self._jobs[job])
            self._policy.requeued([self._jobs[job]], float(int(now_s)))  # it counts seconds
        self._gone.clear()

    def _left(self, event: _Event, now_s: float) -> None:
        own = self._nodes.get(event.job, set())
        own.difference_update({int(name[1:]) - 1 for name in expand_hosts(event.told)} or set(own))
        self._jobs[event.job]._placed(tuple(own), tuple(own))
        self._end(event.job)

    def _end(self, job: int) -> None:
        if holding := self.holdings.pop(job, None):
            del self.by_queue[holding.queue][job]

    def _count(self, what: str, same: bool, told: str) -> None:
        self.counts[what, same] += 1
        if not same:
            self.differ.append(f"{what} {told}")


def _compare(events: pd.DataFrame, placement: str) -> None:
    followed, began_s = _Followed(placement), events["time_s"].min() // 60 * 60
    for event in events.fillna("").itertuples(index=False):
        followed.follow(_Event(*event), event.time_s - began_s)
    print(*followed.differ, sep="\n")
    for what, name in (
        ("pairs", "pairs of waiting jobs in order"),
        ("start", "starts on the same nodes"),
        ("needed", "somebody gives way, too"),
        ("victims", "the same victims, where somebody does"),
    ):
        same, differ = followed.counts[what, True], followed.counts[what, False]
        print(f"{name}: {same} of {same + differ} ({100 * same / max(same + differ, 1):.1f} %)")


def main(
    what: Literal["run", "compare"], table: Path, jobs: int = 120, seed: int = 0, placement: str = "slurm-block"
) -> None:
    """Run Slurm, or compare."""
    if what == "run":
        _run(jobs, seed).to_csv(table, index=False)
    else:
        _compare(pd.read_csv(table), placement)


if __name__ == "__main__":
    typer.run(main)
