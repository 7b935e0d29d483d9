"""What a change of nodes costs a live job, and what it does to its loss.

``live_regroup.py [--hidden 64 1024] [--seeds 5]``, with PyTorch (``--hidden 64 --seeds 3`` takes 6 minutes). The live
manager trains the script ``elastic_training.py``, with its processes on this machine, through a fixed list of changes:
two nodes join, the one that commits leaves, a process is killed, a node joins, all processes are killed, two nodes
leave. A start from no process is what every change cost when none of them survived one. Overhead of a change: seconds
from the last step before it to the first after it, less the median of ten steps of the group after it.

Then the losses: for each seed of first weights a run without changes, and the run with them, which must have trained on
every sample once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import torch
from benchmark_tables import Table
from elastic_training import BATCH

from ddlsched.real.live.commits import committed_state, committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.workload.malleable.profiling import JobMonitor

SCRIPT = Path(__file__).with_name("elastic_training.py")
STEPS = 800
STEPS_BETWEEN = 25
PAUSE_S = "0.03"  # so that the steps last for all changes


class Nodes:
    """A scavenger and a sharer: those nodes that the list of changes says, all of them for the one job."""

    def __init__(self) -> None:
        self.there = frozenset({"n0"})
        self.monitor, self.advisor = JobMonitor(), self

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes."""
        return self.there

    def counts(self, jobs: list, num_nodes: int, now_s: float) -> list[int]:
        """Return all nodes for the one job."""
        return [min(job.max_nodes, num_nodes) for job in jobs]

    def wake_s(self) -> None:
        """Ask for no further look."""
        return


class Run:
    """One job under a manager, which is driven from here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes, self.events = folder / "a", Nodes(), []
        self.manager = LiveManager(folder, self.nodes, self.nodes, 1, self.events.append)
        self.manager.store.submit("a", program=str(SCRIPT), steps=STEPS, max_nodes=4)

    def undisturbed(self) -> list[float]:
        """Return the losses of a run on one node."""
        self.manager.run()
        return committed_steps(self.folder)

    def disturbed(self) -> list[float]:
        """Return the losses of a run through the changes."""
        self._train(1)
        self._change({"n0", "n1", "n2"}, 3)
        self._change({"n1", "n2"}, 2)
        self._kill(1)
        self._train(2)
        self._change({"n1", "n2", "n3"}, 3)
        self._kill(3)
        self._train(3)
        self._change({"n3"}, 1)
        self.manager.run()
        return committed_steps(self.folder)

    def _change(self, nodes: set[str], size: int) -> None:
        self.nodes.there = frozenset(nodes)
        self._train(size)

    def _kill(self, count: int) -> None:
        for process in self.manager.running["a"].processes[-count:]:
            process.kill()
        while not any(event.what == "a process died" for event in self.events[-20:]):
            self._turn()

    def _turn(self) -> None:
        if not self.manager.turn():
            raise RuntimeError(f"the job ended before all changes were made; see {self.folder}")

    def _train(self, size: int) -> None:
        """Go on until a group of that size has done some steps."""
        while not (self.manager.running and len(self.manager.running["a"].group) == size):
            self._turn()
        until = len(committed_steps(self.folder)) + STEPS_BETWEEN
        while len(committed_steps(self.folder)) < until:
            self._turn()


def overheads_s(events: list[LiveEvent]) -> dict[str, list[float]]:
    """Return the overhead of each change, by its kind."""
    found = defaultdict(list)
    steps = [place for place, event in enumerate(events) if event.what == "step"]
    for place, event in enumerate(events):
        if event.what in ("started", "regrouped") and steps[0] < place < steps[-1]:
            last = max(step for step in steps if step < place)
            after = [events[step].time_s for step in steps if step > place]
            step_s = statistics.median(b - a for a, b in pairwise(after[:11]))
            found[kind(event, events[last:place])].append(after[0] - events[last].time_s - step_s)
    return found


def kind(event: LiveEvent, before: list[LiveEvent]) -> str:
    what = [each.what for each in before]
    if event.what == "started":
        return "all processes killed, started again"
    if "lost a node" in what:
        return "nodes left, others stay"
    return "a process was killed, others stay" if "a process died" in what else "nodes joined"


def samples_are_exact(folder: Path) -> bool:
    times = torch.load(committed_state(folder, STEPS), weights_only=True)["seen"]["times"]
    order = torch.randperm(len(times), generator=torch.Generator().manual_seed(1))
    return bool((times[order[: BATCH * STEPS]] == 1).all() and (times.sum() == BATCH * STEPS))


def end(losses: list[float]) -> float:
    return statistics.mean(losses[-50:])


def losses(seeds: int) -> dict[str, list[float]]:
    """Print undisturbed and disturbed runs side by side, and return the overheads of the latter, by kind."""
    all_overheads = defaultdict(list)
    calm, changed = [], []
    for seed in range(seeds):
        os.environ["SEED"] = str(seed)
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            os.environ["PAUSE_S"] = "0"
            calm.append(Run(Path(one)).undisturbed())
            os.environ["PAUSE_S"] = PAUSE_S
            run = Run(Path(other))
            changed.append(run.disturbed())
            exact = samples_are_exact(run.folder)
        most = max(abs(a - b) / a for a, b in zip(calm[-1], changed[-1], strict=True))
        text = f"  seed {seed}: loss {end(calm[-1]):.6f} undisturbed, {end(changed[-1]):.6f} with changes"
        print(f"{text}; steps differ by {most:.1e} at most; each sample once: {'yes' if exact else 'NO'}", flush=True)
        for name, found in overheads_s(run.events).items():
            all_overheads[name] += found
            print(f"    {name}: {', '.join(f'{each:.3f}' for each in found)} s", flush=True)
    low, high = min(map(end, calm)), max(map(end, calm))
    apart = max(abs(end(a) - end(b)) for a, b in zip(calm, changed, strict=True))
    print(f"  spread of undisturbed runs: {low:.6f} to {high:.6f}; changes move a run by at most {apart:.1e}")
    return all_overheads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rows: list[tuple[str | int | float, ...]] = []
    for hidden in options.hidden:
        os.environ["HIDDEN"] = str(hidden)
        print(f"hidden {hidden}; load of this machine {os.getloadavg()[0]:.1f}", flush=True)
        overheads = sorted(losses(options.seeds).items())
        rows += [(name, hidden, len(found), statistics.median(found), max(found)) for name, found in overheads]
    columns = ("change", "hidden", "changes", "overhead, median s", "largest, s")
    note = "To reach: less than 1 s where processes survive."
    print(Table(title="\nWhat a change of nodes costs", columns=columns, rows=rows, notes=[note]))


if __name__ == "__main__":
    main()
