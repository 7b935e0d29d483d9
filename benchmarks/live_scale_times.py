"""How long a live job takes to start, to grow and to shrink: MalleTrain's claim that growing takes four times as long.

``live_scale_times.py [--program count] [--rounds 5]``; ``--program benchmarks/elastic_training.py`` needs PyTorch. The
live manager takes one job from 1 to 2, 4, 2 and 1 nodes, which are processes on this machine, again and again. Two
times of each change: from the decision to the first step at the new size, and for how long no step ends meanwhile, less
a usual step. While processes start the others go on, so that only the first has the start in it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmark_tables import Table

from ddlsched.real.live.manager import LiveEvent, LiveManager
from ddlsched.workload.malleable.profiling import JobMonitor

SIZES = (2, 4, 2, 1)
STEPS_BETWEEN = 20


class Sizes:
    """A scavenger and a sharer: four nodes, of which the one job has as many as it is told."""

    def __init__(self) -> None:
        self.size = 1
        self.monitor, self.advisor = JobMonitor(), self

    def idle(self, now_s: float) -> frozenset[str]:
        """Return the nodes."""
        return frozenset(f"n{number}" for number in range(max(SIZES)))

    def counts(self, jobs: list, num_nodes: int, now_s: float) -> list[int]:
        """Return the size."""
        return [self.size for _ in jobs]

    def wake_s(self) -> float:
        """Ask to be asked at every turn."""
        return 0.0


class Run:
    """One job under a manager, which is driven from here."""

    def __init__(self, folder: Path, program: str) -> None:
        self.sizes, self.events = Sizes(), list[LiveEvent]()
        self.manager = LiveManager(folder, self.sizes, self.sizes, 1, self.events.append)
        self.manager.store.submit("a", program=program, steps=1_000_000, max_nodes=max(SIZES))

    def change(self, size: int) -> tuple[float, float]:
        """Change the size; return the seconds from the decision to the first step there, and those without a step."""
        self.sizes.size, decided_s, before = size, self.manager.now_s, len(self.events)
        while len(after := self._steps_at(size, before)) < STEPS_BETWEEN:
            self.manager.turn()
        last = [event.time_s for event in self.events if event.what == "step" and event.time_s < after[0]]
        usual_s = statistics.median(b - a for a, b in pairwise(after))
        return after[0] - decided_s, (after[0] - last[-1] - usual_s) if last else after[0] - decided_s

    def _steps_at(self, size: int, before: int) -> list[float]:
        """Return when steps ended in the group that was formed last, if it has this size."""
        formed = [n for n, event in enumerate(self.events) if event.what in ("started", "regrouped") and n >= before]
        if not formed:
            return []
        return [e.time_s for e in self.events[formed[-1] :] if e.what == "step" and e.nodes == size]


def kind(before: int, after: int) -> str:
    if before == 0:
        return "start"
    return f"{'grow' if after > before else 'shrink'} {before} to {after}"


def measured(program: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return both times of every change, by kind."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(Path(folder), program)
            try:
                for before, after in pairwise((0, 1, *SIZES)):
                    found.setdefault(kind(before, after), []).append(run.change(after))
            finally:
                run.manager.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="count")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found = measured(options.program, options.rounds)
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
        f"{options.program}; load of this machine {os.getloadavg()[0]:.1f}.",
    ]
    print(Table(title="What a change of size takes", columns=columns, rows=rows, notes=notes))


if __name__ == "__main__":
    main()
