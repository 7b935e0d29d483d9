"""What a change of nodes costs a live job: ``live_changes.py regroup`` and ``live_changes.py sizes``.

The live manager trains a script with its processes on this machine.

``regroup [--hidden 64] [--seeds 5]``, with PyTorch (``--hidden 64 --seeds 3`` takes 6 minutes): the script
``elastic_training.py`` of the tests goes through a fixed list of changes: two nodes join, the one that commits leaves,
a process is killed, a node joins, all processes are killed, two nodes leave. A start from no process is what every
change cost when none of them survived one. Overhead of a change: seconds from the last step before it to the first
after it, less the median of ten steps of the group after it. Then the losses: for each seed of first weights a run
without changes, and the run with them, which must have trained on every sample once.

``sizes [--program count] [--rounds 5]``: MalleTrain's claim that growing takes four times as long as shrinking, of a
program that counts, or of a script that needs PyTorch, such as the same. One job goes from 1 to 2, 4, 2 and 1 nodes,
again and again. Two times of each change: from the decision to the first step at the new size, and for how long no step
ends meanwhile, less a usual step. While processes start the others go on, so that only the first has the start in it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import typer
from benchmark_tables import Table

from ddlsched.real.live.commits import committed_state, committed_steps
from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.workload.profiling import JobMonitor

app = typer.Typer(help=__doc__, result_callback=print)
SCRIPT = Path(__file__).parents[1] / "tests/torch_training/elastic_training.py"
STEPS, HIDDEN = 800, [64, 1024]
STEPS_BETWEEN = 25
PAUSE_S = "0.03"  # so that the steps last for all changes
SIZES = (2, 4, 2, 1)
FORMED = ("started", "regrouped")


class Nodes:
    """A scavenger and a sharer: those nodes that are said to be there, of which the one job has ``size`` at most."""

    def __init__(self, names: set[str], size: int, *, again_s: float | None = None) -> None:
        self.there, self.size, self._again_s = frozenset(names), size, again_s
        self.monitor, self.advisor = JobMonitor(), self

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes."""
        return self.there

    def counts(self, jobs: list, num_nodes: int, now_s: float) -> list[int]:
        """Return the nodes for the one job."""
        return [min(self.size, job.max_nodes, num_nodes) for job in jobs]

    def wake_s(self) -> float | None:
        """Ask to be asked again, at every turn with 0."""
        return self._again_s


class Run:
    """One job under a manager, which is driven from here."""

    def __init__(self, folder: Path, nodes: Nodes, program: str, steps: int) -> None:
        self.folder, self.nodes, self.events = folder / "a", nodes, list[LiveEvent]()
        self.manager = LiveManager(folder, nodes, nodes, 1, self.events.append)
        self.manager.store.submit("a", program=program, steps=steps, max_nodes=4)


class Regrouped(Run):
    """A run that trains, through the changes or without."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Nodes({"n0"}, 4), str(SCRIPT), STEPS)

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


class Sized(Run):
    """A run that never ends, on as many of four nodes as it is told."""

    def __init__(self, folder: Path, program: str) -> None:
        super().__init__(
            folder, Nodes({f"n{number}" for number in range(max(SIZES))}, 1, again_s=0.0), program, 1_000_000
        )

    def change(self, size: int) -> tuple[float, float]:
        """Change the size; return the seconds from the decision to the first step there, and those without a step."""
        self.nodes.size, decided_s, before = size, self.manager.now_s, len(self.events)
        while len(after := self._steps_at(size, before)) < STEPS_BETWEEN:
            self.manager.turn()
        last = [event.time_s for event in self.events if event.what == "step" and event.time_s < after[0]]
        usual_s = statistics.median(b - a for a, b in pairwise(after))
        return after[0] - decided_s, (after[0] - last[-1] - usual_s) if last else after[0] - decided_s

    def _steps_at(self, size: int, before: int) -> list[float]:
        """Return when steps ended in the group that was formed last, if it has this size."""
        formed = [n for n, event in enumerate(self.events) if event.what in FORMED and n >= before]
        if not formed:
            return []
        return [e.time_s for e in self.events[formed[-1] :] if e.what == "step" and e.nodes == size]


def overheads_s(events: list[LiveEvent]) -> dict[str, list[float]]:
    """Return the overhead of each change, by its kind."""
    found = defaultdict(list)
    steps = [place for place, event in enumerate(events) if event.what == "step"]
    for place, event in enumerate(events):
        if event.what in FORMED and steps[0] < place < steps[-1]:
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
    import torch

    sys.path.append(str(SCRIPT.parent))
    from elastic_training import BATCH

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
            calm.append(Regrouped(Path(one)).undisturbed())
            os.environ["PAUSE_S"] = PAUSE_S
            run = Regrouped(Path(other))
            changed.append(run.disturbed())
            exact = samples_are_exact(run.folder)
        most = max(abs(a - b) / a for a, b in zip(calm[-1], changed[-1], strict=True))
        text = f"  seed {seed}: loss {end(calm[-1]):.6f} undisturbed, {end(changed[-1]):.6f} with changes"
        print(f"{text}; steps differ by {most:.1e} at most; each sample once: {'yes' if exact else 'NO'}", flush=True)
        for name, found in overheads_s(run.events).items():
            all_overheads[name] += found
    low, high = min(map(end, calm)), max(map(end, calm))
    apart = max(abs(end(a) - end(b)) for a, b in zip(calm, changed, strict=True))
    print(f"  spread of undisturbed runs: {low:.6f} to {high:.6f}; changes move a run by at most {apart:.1e}")
    return all_overheads


@app.command()
def regroup(hidden: list[int] = HIDDEN, seeds: int = 5) -> Table:
    """Return the overheads of changes, and print the losses."""
    rows: list[tuple[str | int | float, ...]] = []
    for size in hidden:
        os.environ["HIDDEN"] = str(size)
        print(f"hidden {size}; load of this machine {os.getloadavg()[0]:.1f}", flush=True)
        overheads = sorted(losses(seeds).items())
        rows += [(name, size, len(found), statistics.median(found), max(found)) for name, found in overheads]
    columns = ("change", "hidden", "changes", "overhead, median s", "largest, s")
    note = "To reach: less than 1 s where processes survive."
    return Table(title="\nWhat a change of nodes costs", columns=columns, rows=rows, notes=[note])


def changed(program: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return both times of every change of size, by kind."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            run = Sized(Path(folder), program)
            try:
                for before, after in pairwise((0, 1, *SIZES)):
                    what = f"{'grow' if after > before else 'shrink'} {before} to {after}" if before else "start"
                    found.setdefault(what, []).append(run.change(after))
            finally:
                run.manager.close()
    return found


@app.command()
def sizes(program: str = "count", rounds: int = 5) -> Table:
    """Return both times of changes of size, and how much longer growing takes."""
    found = changed(program, rounds)
    rows = []
    for name, times in found.items():
        decided, stood = (list(each) for each in zip(*times, strict=True))
        rows.append((name, len(times), *(f(each) for each in (decided, stood) for f in (statistics.median, max))))
    both = [[s for name, t in found.items() if name.startswith(what) for s in t] for what in ("grow", "shrink")]
    ratios = [
        statistics.median(g) / statistics.median(s)
        for g, s in zip(*(zip(*each, strict=True) for each in both), strict=True)
    ]
    columns = ("change", "changes", "to the first step, median s", "largest", "without a step, median s", "largest ")
    notes = [
        f"Growing takes {ratios[0]:.1f} times as long as shrinking to the first step, {ratios[1]:.1f} without a step.",
        f"{program}; load of this machine {os.getloadavg()[0]:.1f}.",
    ]
    return Table(title="What a change of size takes", columns=columns, rows=rows, notes=notes)


if __name__ == "__main__":
    app()
