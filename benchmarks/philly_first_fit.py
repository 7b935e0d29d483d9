"""First-fit on the whole Philly trace, where nearly all jobs of several GPUs contend: how far it gets, what it counts.

``philly_first_fit.py [--until-s S ...] [--whole] [--servers N] [--philly FILE] [--out FILE]``: 82,247 jobs, GPUs used
exclusively, SRSF, one transfer a link at a time. One row for each simulated time up to which the trace is run;
``--whole`` adds the run to its end, which takes long. What contends and is neither jumped over nor skipped is computed
iteration by iteration: for those there is no exact shortcut.

Once a minute stderr is told how far the run is, and the table so far is written to FILE: SIGINT and SIGTERM end the
run, and what was counted until then is printed.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmark_tables import Table, say
from scale import PHILLY, import_philly
from scale_run import GPUS_PER_SERVER, MEMORY_MB, exclusive

import ddlsched
from ddlsched.engine.run_progress import RunProgress

UNTIL_S = (1_800_000.0, 2_000_000.0, 2_300_000.0)
COLUMNS = (
    "simulated s",
    "wall, s",
    "CPU, s",
    "jobs done",
    "skipped, 1e6",
    "contended, 1e6",
    "jumped, 1e6",
    "one by one, 1e6",
    "1e6 of these a CPU second",
)
POLICIES = {"placement": "first-fit", "order": "srsf", "communication": "bounded-overlap:limit=1"}
TOLD_EVERY_S = 60.0


@dataclass
class Watch:
    """Keeps the row of what a run has counted; ``pause_s`` after the last time, tells it and has it written."""

    rows: Rows
    pause_s: float = TOLD_EVERY_S
    begin_s: float = field(default_factory=time.perf_counter)
    begin_cpu_s: float = field(default_factory=time.process_time)
    told_s: float = field(default_factory=time.perf_counter)
    last: tuple[float, int] = (0.0, 0)

    def __call__(self, progress: RunProgress) -> None:
        """Note the counts; tell and write them if it is time."""
        self.rows.now = self.row(
            progress.now_s,
            progress.jobs_done,
            progress.skipped_iterations,
            progress.contended_iterations,
            progress.jumped_iterations,
        )
        if time.perf_counter() - self.told_s >= self.pause_s:
            self.told_s = time.perf_counter()
            self.tell(progress)
            self.rows.write()

    def row(self, simulated_s: float, done: int, *iterations: int) -> list[str | float | int | None]:
        """Return the row of a run; ``iterations`` are those skipped, contended and jumped."""
        _, contended, jumped = iterations
        cpu_s, one_by_one = time.process_time() - self.begin_cpu_s, (contended - jumped) / 1e6
        millions = [round(count / 1e6, 1) for count in iterations]
        times_s = [time.perf_counter() - self.begin_s, cpu_s]
        return [f"{simulated_s:,.0f}", *times_s, done, *millions, one_by_one, one_by_one / cpu_s]

    def tell(self, progress: RunProgress) -> None:
        """Tell where the run is, the pace since the last time, and what shares the cluster now."""
        cpu_s = time.process_time() - self.begin_cpu_s
        one_by_one = progress.contended_iterations - progress.jumped_iterations
        pace = (one_by_one - self.last[1]) / 1e6 / max(cpu_s - self.last[0], 1e-9)
        self.last = (cpu_s, one_by_one)
        say(
            f"{progress.now_s:,.0f} s simulated, {100 * progress.share:.1f} % of iterations, {cpu_s:,.0f} s of CPU; "
            f"{progress.contended_iterations / 1e6:,.1f} million contended, {pace:.3f} million one by one a CPU s; "
            f"{progress.jobs_done:,} jobs done, {progress.running_jobs:,} run, {progress.sharing_jobs:,} of them share "
            f"links, {progress.queued_jobs:,} queue; {progress.active_transfers:,} transfers run, "
            f"{progress.waiting_transfers:,} wait"
        )


@dataclass
class Rows:
    """The table as it grows: rows of runs that have ended, and that of the run under way."""

    title: str
    notes: list[str]
    file: Path
    ended: list[list[str | float | int | None]] = field(default_factory=list)
    now: list[str | float | int | None] | None = None

    def __str__(self) -> str:
        unfinished = [] if self.now is None else [self.now]
        notes = [*self.notes, *(["The last row is of a run under way."] if unfinished else [])]
        return str(Table(title=self.title, columns=COLUMNS, rows=[*self.ended, *unfinished], notes=notes))

    def write(self) -> None:
        """Write the table to the file."""
        self.file.write_text(f"{self}\n", encoding="utf-8")

    def end(self, row: list[str | float | int | None]) -> None:
        """Add the row of a run that has ended."""
        self.ended.append(row)
        self.now = None
        self.write()


def run(workload: ddlsched.Workload, cluster: ddlsched.Cluster, until_s: float | None, rows: Rows) -> None:
    """Run the trace up to a simulated time, or to its end, and add its row."""
    watch = Watch(rows)
    result = ddlsched.simulate(workload, cluster, until_s=until_s, watch=watch, **POLICIES)
    state, summary = result.finished.state.run[0], result.summary()
    iterations = (state.skipped_iterations, state.contended_iterations, state.jumped_iterations)
    done = summary["jobs"] - summary["unfinished_jobs"]
    rows.end(watch.row(result.finished.end_ns / 1e9, int(done), *map(int, iterations)))


def trace(philly: Path) -> ddlsched.Workload:
    """Return the trace's jobs, none of which shares its GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "philly.parquet"
        say("importing the trace")
        import_philly(philly, path)
        return ddlsched.Workload.of([exclusive(job) for job in ddlsched.read_workload(path).jobs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--until-s", type=float, nargs="*", default=UNTIL_S)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--servers", type=int, default=300)
    parser.add_argument("--philly", type=Path, default=PHILLY, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("build/philly_first_fit.txt"), metavar="FILE")
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background jobs ignore the first
        signal.signal(number, signal.default_int_handler)
    workload = trace(given.philly)
    several = sum(job.iterations for job in workload if job.num_gpus > 1)
    title = f"Philly, first-fit, {given.servers} servers of {GPUS_PER_SERVER} GPUs used exclusively, SRSF(1)"
    note = (
        f"Jobs of several GPUs have {several / 1e6:,.0f} million iterations: no more can contend. "
        f"The last job arrives at {max(job.arrival_s for job in workload):,.0f} s."
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    rows = Rows(title, [note], given.out)
    cluster = ddlsched.Cluster(num_servers=given.servers, gpus_per_server=GPUS_PER_SERVER, gpu_memory_mb=MEMORY_MB)
    try:
        ddlsched.simulate(ddlsched.Workload.of(workload.jobs[:1]), cluster, **POLICIES)  # loads the compiled code
        for until_s in [*given.until_s, *([None] if given.whole else [])]:
            say("the whole trace" if until_s is None else f"up to {until_s:,.0f} s")
            run(workload, cluster, until_s, rows)
    except KeyboardInterrupt:
        rows.write()
        say(f"interrupted; {given.out} has the table")
    print(rows)


if __name__ == "__main__":
    main()
