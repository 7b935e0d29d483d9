"""Real training processes that are killed, beside the simulation of the same failures: live_failures.py --runs 6.

``ddlsched live``'s manager trains ``elastic_training.py`` on processes of this machine. Nodes fail, jobs hang, and they
are noticed, repaired and replaced as drawn from a table of causes for a seed; checkpoints and recovery are the classes
that simulations ask. What a step, a commit and a start take is measured in a run before, and given to the simulation of
each run. Each of these is at least so long (STEP_S, SAVE_S, READY_S), slept up to it, so that a loaded machine changes
little as long as it does the work in that time. ETTR: time of steps that count at the end / time since the first start.
Needs PyTorch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import IO, NamedTuple

import typer
from live_changes import FORMED, SCRIPT, Nodes
from numpy.random import Generator

import ddlsched
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.cluster.reliability_doors import RecoveryPolicy, StoppedJob, Wait
from ddlsched.plugins.names import resolve
from ddlsched.policies.cluster_view import ClusterView
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import GpuId
from ddlsched.real.live.failing import FailingNodes
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.real.live.nodes import LocalLauncher
from ddlsched.results.reliability import reliability_by_size
from ddlsched.workload.profiling import Candidate

NODES, RANKS, MANY = 5, 3, 1_000_000
LOST = ("lost a node", "a process died", "a group broke")
STEP_S, SAVE_S, READY_S = 0.6, 1.5, 30.0
CAUSES = (
    FailureCause(cause="node", per="server", mtbf_s=600.0, repair_s=60.0),
    FailureCause(cause="hang", per="gpu", mtbf_s=2400.0, noticed_s=20.0, repair_s=40.0),
    FailureCause(cause="software", per="job", mtbf_s=500.0, takes="job", noticed_s=10.0),
)
OFTEN = (FailureCause(cause="software", per="job", mtbf_s=25.0, takes="job"),)
POLICIES = (
    ("young", "spares:count=1"),
    ("fixed:every_s=20", "wait"),
    ("daly", None),
    ("fixed:every_s=60", "spares:count=2"),
    ("young", "wait"),
    ("fixed:every_s=10", None),
)


class Together(Nodes):
    """Shares nodes out to the one job, if they are enough."""

    def counts(self, jobs: list[Candidate], num_nodes: int, now_s: float) -> list[int]:
        """Return all that it may have, or none."""
        return [job.max_nodes if num_nodes >= job.min_nodes else 0 for job in jobs]


class FromItsStart(FailingNodes):
    """Fails from when the first group of its job has begun, as a simulated job begins at once."""

    begun_s = inf

    def idle(self, now_s: float) -> frozenset[str]:
        """Carry out what fails and comes back until now."""
        return super().idle(max(now_s - self.begun_s, 0.0))


class SlowLauncher(LocalLauncher):
    """Tells each process from when on it may join a group."""

    def start(self, node: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a process."""
        os.environ["READY_AT_S"] = str(time.monotonic() + READY_S)
        return super().start(node, log)


class Staying:
    """A recovery policy, or the queue, and then a placement on the nodes that the job still had, as live jobs have."""

    start_s = 0.0

    def __init__(self, recovery: str | None) -> None:
        self._recovery: RecoveryPolicy | None = None if recovery is None else resolve("recovery", recovery)
        self._had: Collection[int] = ()

    def begin(self, cluster: Cluster, rng: Generator) -> Staying:
        """Return itself: both doors have one memory, of one run."""
        return self

    def spares(self, num_servers: int, racks: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return those of the policy."""
        return () if self._recovery is None else self._recovery.spares(num_servers, racks)

    def recover(self, stopped: StoppedJob) -> Mapping[int, int] | Wait | int | None:
        """Return what the policy says."""
        self._had = set(stopped.servers) - set(stopped.lost)
        return None if self._recovery is None else self._recovery.recover(stopped)

    def place(self, job: JobView, cluster: ClusterView) -> Sequence[GpuId] | None:
        """Return GPUs of nodes, which have one each, that it had, then the first ones."""
        gpus = sorted(cluster.eligible_gpus(job), key=lambda gpu: (gpu not in self._had, gpu))
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


class Times(NamedTuple):
    """What a step, a commit and a start take, seconds."""

    step_s: float
    write_s: float
    restart_s: float


def trained(disturbances: Disturbances, checkpoint: str, seed: int, until_s: float) -> list[LiveEvent]:
    """Return what happened to one job of three ranks on five nodes."""
    events: list[LiveEvent] = []
    failing, sharer = FromItsStart(NODES, {"a": RANKS}, disturbances, seed), Together(set(), RANKS)

    def watch(event: LiveEvent) -> None:
        events.append(event)
        if event.what in FORMED:
            failing.begun_s = min(failing.begun_s, event.time_s)

    with tempfile.TemporaryDirectory() as folder:
        manager = LiveManager(
            Path(folder),
            failing,
            sharer,
            1,
            watch,
            launcher=SlowLauncher(),
            checkpoint=checkpoint,
            fewest={"a": RANKS},
        )
        manager.store.submit("a", program=str(SCRIPT), steps=MANY, max_nodes=RANKS)
        try:
            while manager.now_s < failing.begun_s + until_s and manager.turn():
                pass
        finally:
            manager.close()
    return events


def measured(events: Sequence[LiveEvent]) -> tuple[str, Times]:
    """Return what things took in a run in which processes were killed, and that in words."""
    steps = [event for event in events if event.what == "step"]
    gaps = [after.time_s - before.time_s for before, after in pairwise(steps) if after.step == before.step + 1]
    step_s = statistics.median(gaps)
    writes = [gap - step_s for gap in gaps if SAVE_S / 2 < gap - step_s < 2 * SAVE_S]
    starts: list[float] = []
    joined_s, formed = 0.0, False
    for event in events[events.index(steps[0]) :]:
        if event.what == "joining":
            joined_s, formed = event.time_s, False
        elif event.what in FORMED:
            formed = True
        elif event.what == "step" and joined_s and formed:  # else it is the last one of the group before
            starts.append(event.time_s - joined_s - step_s)
            joined_s = 0.0
    what = f"steps {len(gaps)}, commits {len(writes)}, starts {' '.join(f'{each:.2f}' for each in starts)} s"
    return what, Times(step_s, statistics.median(writes), statistics.mean(starts))


def live_ettr(events: Sequence[LiveEvent], step_s: float, until_s: float) -> float:
    """Return the measured ETTR: steps that count at the end, those of a group that trains or what is committed."""
    last = next(event.step for event in reversed(events) if event.what in ("step", *LOST))
    return last * step_s / until_s


def simulated_ettr(given: Disturbances, checkpoint: str, times: Times, seed: int, until_s: float) -> float:
    """Return the ETTR of the simulated run of the same failures; what is read is part of a start."""
    step = ddlsched.DataParallelIteration(forward_s=0.0, backward_s=times.step_s, message_bytes=0)
    job = ddlsched.Job(job_id="a", arrival_s=0.0, num_gpus=RANKS, iterations=MANY, iteration=step, gpu_memory_mb=1)
    assert given.recovery is None or isinstance(given.recovery, str)
    staying = Staying(given.recovery)
    disturbances = Disturbances(
        failures=given.failures,
        recovery=staying,
        checkpoint=checkpoint,
        checkpoint_to="disk:gb_per_s=1",
        state_mb=1000 * times.write_s,
        restart_s=max(times.restart_s - times.write_s, 0.0),
    )
    cluster = ddlsched.Cluster(num_servers=NODES, gpus_per_server=1, exclusive=True)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        cluster,
        placement=staying,
        disturbances=disturbances,
        until_s=until_s,
        seed=seed,
    )
    return float(reliability_by_size(result)["ettr"].iloc[0])


def main(runs: int = 6, together: int = 1, minutes: float = 20.0) -> None:
    """Print both ratios of each run, ``together`` of them at a time."""
    os.environ |= {"STEP_S": str(STEP_S), "SAVE_S": str(SAVE_S)}
    print(f"load of this machine {os.getloadavg()[0]:.1f}", flush=True)
    _, times = measured(trained(Disturbances(failures=OFTEN), "fixed:every_s=3", 0, 300.0))
    print(f"step {times.step_s:.3f} s, commit {times.write_s:.3f} s, start {times.restart_s:.2f} s", flush=True)
    compared = partial(compare, times, 60 * minutes)
    apart = []
    with ProcessPoolExecutor(together) as pool:
        for told, points in pool.map(compared, range(1, runs + 1)):
            print(told, flush=True)
            apart.append(abs(points))
    print(f"largest difference {max(apart):.2f} points; load {os.getloadavg()[0]:.1f}")


def compare(times: Times, until_s: float, seed: int) -> tuple[str, float]:
    """Return what to tell of a live run and its simulation, and by how many points the live ETTR is above."""
    checkpoint, recovery = POLICIES[seed - 1]
    disturbances = Disturbances(failures=CAUSES, recovery=recovery, checkpoint=checkpoint)
    events = trained(disturbances, checkpoint, seed, until_s)
    what, _ = measured(events)
    live = live_ettr(events, times.step_s, until_s)
    simulated = simulated_ettr(disturbances, checkpoint, times, seed, until_s)
    hits = sum(event.what in LOST[:2] for event in events)
    ratios = f"{hits} failures; ETTR live {live:.4f}, simulated {simulated:.4f}, {100 * (live - simulated):+.2f} points"
    return f"{what}\nseed {seed}, {checkpoint}, {recovery or 'queue'}: {ratios}", 100 * (live - simulated)


if __name__ == "__main__":
    typer.run(main)
