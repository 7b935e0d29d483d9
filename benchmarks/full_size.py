"""The 160-job workload at full size: ddlsched, and a compiled event loop.

Each run is a process of its own, ours and that of ``event_loop.cpp``, so that its peak memory is its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmark_tables import Table, in_a_process, peak_mb, say

import ddlsched
from ddlsched.cluster.cluster import Cluster
from ddlsched.network.contention import ten_gigabit_ethernet
from ddlsched.workload.generators.microsoft import microsoft_160
from ddlsched.workload.job import Job, Workload

HERE = Path(__file__).parent
SEED = 1
REPEATS = 5
OVERLAP_LIMIT = {"srsf-1": 1, "ada-srsf": 0}
"""The schedulers compared, and the number that stands for each in the input of ``event_loop.cpp``."""
COLUMNS = ("", "loop, s", "events", "1000 events/s", "peak MB", "time: ddlsched / this")
TO_REACH = "To reach: at most 0.71 of the time of the C++ event loop, and less than 400 MB."


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run: the time of its event loop, what it simulated, and the peak memory of its process."""

    seconds: float
    events: int
    peak_mb: float
    finish_ns: list[int]


def tables() -> Iterator[Table]:
    """Measure and yield the tables, those of full size first."""
    with tempfile.TemporaryDirectory() as folder:
        program = compile_event_loop(Path(folder))
        for scheduler in OVERLAP_LIMIT:
            yield full_size(scheduler, program)


def full_size(scheduler: str, program: Path | None) -> Table:
    workload = microsoft_160(seed=SEED)
    ours: list[Run] = []
    theirs: list[Run] = []
    for repeat in range(REPEATS):
        say(f"full size, {scheduler}: run {repeat + 1} of {REPEATS}")
        ours.append(in_a_process(run_ours, scheduler))
        if program is not None:
            theirs.append(run_event_loop(program, workload, scheduler))
    rows = [
        row("ddlsched", ours, ours),
        row("C++ event loop", theirs, ours) if theirs else ["no C++ compiler", *[None] * 5],
    ]
    agreement = [same_finishes(theirs[0], ours[0], "the C++ event loop")] if theirs else []
    title = f"(a) {len(workload)} jobs at full size, LWF-1, {scheduler}: medians of {REPEATS} runs in turn"
    return Table(title=title, columns=COLUMNS, rows=rows, notes=[*agreement, TO_REACH])


def row(name: str, runs: Sequence[Run], ours: Sequence[Run]) -> list[str | float | int | None]:
    seconds, our_seconds = (median(run.seconds for run in of_one) for of_one in (runs, ours))
    events, peak_mb = runs[0].events, max(run.peak_mb for run in runs)
    speed = round(events / seconds / 1e3)
    return [name, seconds, events, speed, round(peak_mb), our_seconds / seconds]


def same_finishes(other: Run, ours: Run, name: str) -> str:
    differing = sum(a != b for a, b in zip(other.finish_ns, ours.finish_ns, strict=True))
    agree = "identical to the nanosecond" if differing == 0 else f"DIFFERENT for {differing} jobs"
    return f"Finish times of ddlsched and {name}: {agree}."


def run_ours(scheduler: str) -> Run:
    """Simulate the jobs; interpreter, libraries and compiled code are part of the memory."""
    result = ddlsched.simulate(microsoft_160(seed=SEED), scheduler=scheduler)
    summary, finish_ns = result.summary(), result.finished.state.jobs.finish_ns.tolist()
    return Run(seconds=summary["engine_s"], events=summary["events"], peak_mb=peak_mb(), finish_ns=finish_ns)


def compile_event_loop(folder: Path) -> Path | None:
    """Return the compiled program, or None where there is no g++."""
    if shutil.which("g++") is None:
        return None
    program = folder / "event_loop"
    # Fused multiply-add, which some processors have by default, would round differently.
    options = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra"]
    subprocess.run(["g++", *options, str(HERE / "event_loop.cpp"), "-o", str(program)], check=True)
    return program


def run_event_loop(program: Path, workload: Workload, scheduler: str) -> Run:
    text = event_loop_input(workload, scheduler)
    done = subprocess.run([program], input=text, check=True, stdout=subprocess.PIPE, text=True)
    return Run(**json.loads(done.stdout))


def event_loop_input(workload: Workload, scheduler: str) -> str:
    cluster, model = Cluster(), ten_gigabit_ethernet()
    head = (cluster.num_servers, cluster.gpus_per_server, int(cluster.gpu_memory_bytes[0]))
    costs = (model.latency_s, model.per_byte_s, model.penalty_per_byte_s, OVERLAP_LIMIT[scheduler])
    first = " ".join(map(repr, head + costs))
    return "\n".join([first, str(len(workload)), *map(event_loop_line, workload)])


def event_loop_line(job: Job) -> str:
    forward, backward, reduce = job.dag.tasks
    durations = (forward.duration_ns, backward.duration_ns)
    values = (job.arrival_ns, job.num_gpus, job.iterations, *durations, reduce.message_bytes, job.gpu_memory_bytes)
    return " ".join(map(repr, values))
