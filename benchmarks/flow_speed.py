"""The flow scenario: speed of ddlsched and of others, and their answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TypeAlias

from benchmark_tables import Table, say
from flow_rivals import heapq_loop, simpy_processes
from flow_scenario import CARD_BYTES_PER_S, Flow, FlowTimes, draw_flows, simulate_flows, wire_bytes

__all__ = ["tables"]

Runner: TypeAlias = Callable[[], FlowTimes]
Name: TypeAlias = tuple[str, str]  # simulator, sharing

ITERATIONS = 1000
REPEATS = {(12, 16): 9, (192, 256): 3}  # (jobs, servers)
STATED = {"equal share": (926.871, 1573.468), "max-min": (895.655, 1573.568)}
SYSTEM_PYTHON = "/usr/bin/python3"
SIMGRID_MISSING = "SimGrid: none (apt-get install python3-simgrid)"
SIMPY_MISSING = "SimPy: none (pip install simpy)"


def tables() -> Iterator[Table]:
    """Measure and yield the tables, the smaller cluster's first."""
    for (num_jobs, num_servers), repeats in REPEATS.items():
        yield speed(num_jobs, num_servers, repeats)


def speed(num_jobs: int, num_servers: int, repeats: int) -> Table:
    flows = draw_flows(num_jobs=num_jobs, num_servers=num_servers)
    runners = contenders(flows, num_servers)
    runs: dict[Name, list[FlowTimes]] = {name: [] for name in runners}
    for repeat in range(repeats):
        for name, run in runners.items():
            say(f"{num_jobs} jobs, {', '.join(name)}: run {repeat + 1} of {repeats}")
            runs[name].append(run())
    rows: list[Sequence[str | float | int | None]] = list(speed_rows(runs))
    if num_jobs == 12:
        rows += [("stated", sharing, None, None, *answer) for sharing, answer in STATED.items()]
    return Table(
        title=f"(b) {num_jobs} jobs on {num_servers} servers, {ITERATIONS} iterations: medians of {repeats} runs",
        columns=("", "sharing", "1000 iterations/s", "speed: ddlsched / this", "average JCT, s", "makespan, s"),
        rows=rows,
        notes=missing(),
    )


def speed_rows(runs: Mapping[Name, Sequence[FlowTimes]]) -> Iterator[tuple[str, str, float, float, float, float]]:
    seconds = {name: median(run.seconds for run in of_name) for name, of_name in runs.items()}
    for (simulator, sharing), of_name in runs.items():
        run = of_name[0]
        per_s = len(run.finish_s) * ITERATIONS / seconds[simulator, sharing]
        ratio = seconds[simulator, sharing] / seconds["ddlsched", sharing]
        yield simulator, sharing, per_s / 1e3, ratio, run.average_jct_s, run.makespan_s


def contenders(flows: Sequence[Flow], num_servers: int) -> dict[Name, Runner]:
    ours = partial(simulate_flows, flows, num_servers=num_servers, iterations=ITERATIONS)
    ours(contention="max-min")  # loads the compiled loop
    runners: dict[Name, Runner] = {("ddlsched", "equal share"): partial(ours, contention="equal-share")}
    runners["heapq loop in Python", "equal share"] = partial(heapq_loop, flows, iterations=ITERATIONS)
    if has_simpy():
        runners["SimPy", "equal share"] = partial(simpy_processes, flows, iterations=ITERATIONS)
    runners["ddlsched", "max-min"] = partial(ours, contention="max-min")
    if has_simgrid():
        runners["SimGrid, Python", "max-min"] = partial(run_simgrid, flows)
    return runners


def missing() -> list[str]:
    return [SIMPY_MISSING] * (not has_simpy()) + [SIMGRID_MISSING] * (not has_simgrid())


def has_simpy() -> bool:
    return find_spec("simpy") is not None


def has_simgrid() -> bool:
    if not Path(SYSTEM_PYTHON).exists():
        return False
    return subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, check=False).returncode == 0


def run_simgrid(flows: Sequence[Flow]) -> FlowTimes:
    scenario = {
        "iterations": ITERATIONS,
        "bandwidth": CARD_BYTES_PER_S,
        "flows": [(flow.servers, flow.compute_s, wire_bytes(flow)) for flow in flows],
    }
    command = [SYSTEM_PYTHON, str(Path(__file__).with_name("flow_simgrid.py"))]
    done = subprocess.run(command, input=json.dumps(scenario), check=True, capture_output=True, text=True)
    return FlowTimes(**json.loads(done.stdout))
