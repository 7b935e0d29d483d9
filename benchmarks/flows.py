"""The flow scenario: jobs that compute and then send, over and over, on servers with one network card each.

Job by job, ``random.Random(seed)`` draws the number of servers n from 2 to 4, n of the servers with a free GPU
(in index order), the compute time, and the message M, of which each of the n cards carries 2 (n - 1) / n. Speed of
ddlsched and of a loop in Python, and their answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from benchmark_tables import Table, say
from flow_rivals import Flow, FlowTimes, heapq_loop

import ddlsched
from ddlsched.real.testbed.measuring import Pinned
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

GPUS_PER_SERVER = 4
ITERATIONS = 1000
REPEATS = {(12, 16): 9, (192, 256): 3}  # (jobs, servers)


def draw_flows(*, num_jobs: int, num_servers: int, seed: int = 1) -> list[Flow]:
    """Return the jobs of the scenario."""
    rng = random.Random(seed)
    free_gpus = [GPUS_PER_SERVER] * num_servers
    flows = []
    for _ in range(num_jobs):
        num = rng.randint(2, 4)
        servers = rng.sample([server for server, free in enumerate(free_gpus) if free > 0], num)
        for server in servers:
            free_gpus[server] -= 1
        compute_s = rng.uniform(0.040, 0.100)
        flows.append(Flow(servers=tuple(servers), compute_s=compute_s, message_bytes=rng.uniform(25e6, 500e6)))
    return flows


def simulate_flows(flows: Sequence[Flow], *, num_servers: int, iterations: int, contention: str) -> FlowTimes:
    """Run the scenario with ddlsched."""
    result = ddlsched.simulate(
        ddlsched.Workload.of([_job(number, flow, iterations) for number, flow in enumerate(flows)]),
        ddlsched.Cluster(num_servers=num_servers, gpus_per_server=GPUS_PER_SERVER),
        placement=Pinned(servers={str(number): flow.servers for number, flow in enumerate(flows)}),
        communication="bounded-overlap:limit=1000000",
        contention=contention,
    )
    return FlowTimes(finish_s=result.jobs["finish_s"].tolist(), seconds=result.finished.engine_s)


def _job(number: int, flow: Flow, iterations: int) -> ddlsched.Job:
    compute = ComputeTask(name="compute", duration_ns=ns_from_s(flow.compute_s))
    reduce = AllReduceTask(name="all-reduce", message_bytes=flow.message_bytes, after=("compute",))
    return ddlsched.Job(
        job_id=str(number),
        arrival_s=0.0,
        num_gpus=len(flow.servers),
        iterations=iterations,
        iteration=IterationDag((compute, reduce)),
        gpu_memory_mb=1.0,
    )


def tables() -> Iterator[Table]:
    """Measure and yield the tables, the smaller cluster's first."""
    for (num_jobs, num_servers), repeats in REPEATS.items():
        yield speed(num_jobs, num_servers, repeats)


def speed(num_jobs: int, num_servers: int, repeats: int) -> Table:
    flows = draw_flows(num_jobs=num_jobs, num_servers=num_servers)
    runners = contenders(flows, num_servers)
    runs: dict[str, list[FlowTimes]] = {name: [] for name in runners}
    for repeat in range(repeats):
        for name, run in runners.items():
            say(f"{num_jobs} jobs, {name}: run {repeat + 1} of {repeats}")
            runs[name].append(run())
    seconds = {name: median(run.seconds for run in of_name) for name, of_name in runs.items()}
    rows = [(name, num_jobs * ITERATIONS / own_s / 1e3, own_s / seconds["ddlsched"]) for name, own_s in seconds.items()]
    return Table(
        title=f"(b) {num_jobs} jobs on {num_servers} servers, {ITERATIONS} iterations: medians of {repeats} runs",
        columns=("", "1000 iterations/s", "speed: ddlsched / this"),
        rows=rows,
    )


def contenders(flows: Sequence[Flow], num_servers: int) -> dict[str, Callable[[], FlowTimes]]:
    """Return what runs the scenario, by simulator."""
    ours = partial(simulate_flows, flows, num_servers=num_servers, iterations=ITERATIONS, contention="equal-share")
    ours()  # loads the compiled loop
    return {"ddlsched": ours, "heapq loop in Python": partial(heapq_loop, flows, iterations=ITERATIONS)}
