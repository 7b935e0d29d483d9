"""Real training processes that are killed, beside the simulation of the same failures: live_failures.py --runs 6.

``ddlsched live``'s manager trains ``elastic_training.py`` on processes of this machine. Nodes fail, jobs hang, and they
are noticed, repaired and replaced as drawn from a table of causes for a seed; checkpoints and recovery are the classes
that simulations ask. What a step, a commit and a start take is measured in a run before, and given to the simulation of
each run. ETTR: time of steps that count at the end / time since the first start. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.real.live.failing import FailingNodes
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.results.reliability import reliability_by_size
from ddlsched.workload.malleable.profiling import Candidate, JobMonitor

TRAINING = Path(__file__).with_name("elastic_training.py")
COUNTING = Path(__file__).with_name("live_counting.py")
NODES, RANKS, MANY = 5, 3, 1_000_000
STEP_S, SAVE_S = 0.6, 1.5
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


class OneJob:
    """Shares nodes out to the one job, if they are enough."""

    def __init__(self) -> None:
        self.monitor, self.advisor = JobMonitor(), self

    def counts(self, jobs: list[Candidate], num_nodes: int, now_s: float) -> list[int]:
        """Return all that it may have, or none."""
        return [job.max_nodes if num_nodes >= job.min_nodes else 0 for job in jobs]

    def wake_s(self) -> None:
        """Ask for no further look."""
        return


class Times(NamedTuple):
    """What a step, a commit and a start take, seconds; and when the first group began."""

    step_s: float
    write_s: float
    restart_s: float
    begin_s: float


def trained(script: Path, disturbances: Disturbances, checkpoint: str, seed: int, until_s: float) -> list[LiveEvent]:
    """Return what happened to one job of three ranks on five nodes."""
    events: list[LiveEvent] = []
    failing, sharer = FailingNodes(NODES, {"a": RANKS}, disturbances, seed), OneJob()
    with tempfile.TemporaryDirectory() as folder:
        manager = LiveManager(
            Path(folder),
            failing,
            sharer,
            1,
            events.append,
            failing=failing,
            checkpoint=checkpoint,
            fewest={"a": RANKS},
        )
        manager.store.submit("a", program=str(script), steps=MANY, max_nodes=RANKS)
        manager.run(until_s)
    return events


def begun(events: Sequence[LiveEvent]) -> float:
    """Return when the first group began."""
    return next(event.time_s for event in events if event.what in ("started", "regrouped"))


def measured(events: Sequence[LiveEvent]) -> Times:
    """Return what things took in a run in which processes were killed again and again."""
    steps = [event for event in events if event.what == "step"]
    gaps = [after.time_s - before.time_s for before, after in pairwise(steps) if after.step == before.step + 1]
    step_s = statistics.median(gaps)
    writes = [gap - step_s for gap in gaps if SAVE_S / 2 < gap - step_s < 2 * SAVE_S]
    starts: list[float] = []
    joined_s, formed = 0.0, False
    for event in events[events.index(steps[0]) :]:
        if event.what == "joining":
            joined_s, formed = event.time_s, False
        elif event.what in ("started", "regrouped"):
            formed = True
        elif event.what == "step" and joined_s and formed:  # else it is the last one of the group before
            starts.append(event.time_s - joined_s - step_s)
            joined_s = 0.0
    print(f"steps {len(gaps)}, commits {len(writes)}, starts {' '.join(f'{each:.2f}' for each in starts)} s")
    return Times(step_s, statistics.median(writes), statistics.mean(starts), begun(events))


def live_ettr(events: Sequence[LiveEvent], step_s: float, until_s: float) -> float:
    """Return the measured ETTR: steps that count at the end."""
    last = next(event.step for event in reversed(events) if event.what == "step")
    return last * step_s / (until_s - begun(events))


def simulated_ettr(given: Disturbances, checkpoint: str, times: Times, seed: int, until_s: float) -> float:
    """Return the ETTR of the simulated run of the same failures; what is read is part of a start."""
    step = ddlsched.DataParallelIteration(forward_s=0.0, backward_s=times.step_s, message_bytes=0)
    job = ddlsched.Job(
        job_id="a", arrival_s=times.begin_s, num_gpus=RANKS, iterations=MANY, iteration=step, gpu_memory_mb=1
    )
    disturbances = Disturbances(
        failures=given.failures,
        recovery=given.recovery,
        checkpoint=checkpoint,
        checkpoint_to="disk:gb_per_s=1",
        state_mb=1000 * times.write_s,
        restart_s=max(times.restart_s - times.write_s, 0.0),
    )
    cluster = ddlsched.Cluster(num_servers=NODES, gpus_per_server=1, exclusive=True)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        cluster,
        placement="first-fit",
        disturbances=disturbances,
        until_s=until_s,
        seed=seed,
    )
    return float(reliability_by_size(result)["ettr"].iloc[0])


def main() -> None:
    """Print both ratios of each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--faster", type=float, default=1.0, help="all times of causes are so many times as short")
    parser.add_argument("--counting", action="store_true", help="processes count: no PyTorch, and no hanging GPUs")
    given = parser.parse_args()
    script = COUNTING if given.counting else TRAINING
    os.environ |= {"PAUSE_S": str(STEP_S), "SAVE_S": str(SAVE_S)}
    until_s = 60 * given.minutes
    print(f"load of this machine {os.getloadavg()[0]:.1f}", flush=True)
    times = measured(trained(script, Disturbances(failures=OFTEN), "fixed:every_s=3", 0, 200.0))
    print(f"step {times.step_s:.3f} s, commit {times.write_s:.3f} s, start {times.restart_s:.2f} s", flush=True)
    causes = tuple(faster(cause, given.faster) for cause in CAUSES if not (given.counting and cause.per == "gpu"))
    apart = []
    for seed, (checkpoint, recovery) in enumerate(POLICIES[: given.runs], start=1):
        disturbances = Disturbances(failures=causes, recovery=recovery, checkpoint=checkpoint)
        events = trained(script, disturbances, checkpoint, seed, until_s)
        own = measured(events)
        live = live_ettr(events, times.step_s, until_s)
        before = times._replace(begin_s=own.begin_s)
        simulated, told = (simulated_ettr(disturbances, checkpoint, each, seed, until_s) for each in (before, own))
        apart.append(abs(live - simulated))
        hits = sum(event.what in ("lost a node", "a process died") for event in events)
        what = f"{checkpoint}, {recovery or 'queue'}: {hits} failures; ETTR live {live:.4f}, simulated {simulated:.4f}"
        further = f"{100 * (live - told):+.2f} with what starts and commits took in the run"
        print(f"seed {seed}, {what}, {100 * (live - simulated):+.2f} points; {further}", flush=True)
    print(f"largest difference {100 * max(apart):.2f} points; load {os.getloadavg()[0]:.1f}")


def faster(cause: FailureCause, times: float) -> FailureCause:
    """Return a cause all of whose times are so many times as short."""
    return FailureCause(
        cause=cause.cause,
        per=cause.per,
        takes=cause.takes,
        mtbf_s=cause.mtbf_s / times,
        noticed_s=cause.noticed_s / times,
        repair_s=cause.repair_s / times,
    )


if __name__ == "__main__":
    main()
