"""Decisions per CPU second of the learning environments, beside gpu-choochoo's and hpcsim's.

    python -m venv rivals && rivals/bin/pip install gpu-choochoo==0.1.0 hpcsim==0.3.1
    python benchmarks/env_steps.py --rivals rivals/bin/python

Resets count. Everybody takes the first action that is allowed. The rivals simulate no iterations and no network: a job
has a duration. gpu-choochoo asks also when nobody waits, at least once a simulated minute, and has no action mask;
"while a job waits" counts only its other steps. The second table has what runs of the same jobs take that ask nobody.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable

import numpy as np
from benchmark_tables import Table

from ddlsched import Cluster, simulate
from ddlsched.envs import (
    AllocationEnv,
    CommunicationEnv,
    CommunicationVectorEnv,
    OrderEnv,
    PlacementEnv,
    SchedulingEnv,
)

RIVALS = """
import contextlib, io, json, time
import numpy as np
from gpu_choochoo.envs.scheduler_env import GPUSchedulerEnv
from hpcsim.rl.env import EnvConfig, HPCGreenEnv

def choochoo():
    rng = np.random.default_rng(1)
    arrivals_s = np.cumsum(rng.exponential(60, 200)).tolist()
    nodes = [dict(node_id=f"n{n}", gpu_type="A100", total_gpus=4, total_vram_gb=320) for n in range(16)]
    jobs = [dict(job_id=f"j{n}", arrival_time=at, gpus_required=int(rng.choice([1, 2, 4])), vram_required_gb=10.0,
                 duration_sec=float(rng.lognormal(7, 1))) for n, at in enumerate(arrivals_s)]
    env = GPUSchedulerEnv(nodes, jobs, max_queue_obs=16, max_nodes=16)
    seen, _ = env.reset(seed=1)
    steps, waiting, ended = 0, 0, False
    while not ended:
        some = min(int(seen["queue_size"][0]), 1)
        seen, _, terminated, truncated, _ = env.step(some)
        steps, waiting, ended = steps + 1, waiting + some, terminated or truncated
    return {"gpu-choochoo": steps, "gpu-choochoo, while a job waits": waiting}

def hpcsim():
    env = HPCGreenEnv(EnvConfig(seed=1))
    env.reset()
    steps, ended = 0, False
    while not ended:
        _, _, ended, *_ = env.step(int(np.argmax(env.action_mask1())))
        steps += 1
    return {"hpcsim": steps}

found = {}
for run in (choochoo, hpcsim):
    begin_s = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        counted = run()
    cpu_s = time.process_time() - begin_s
    found |= {name: (steps, cpu_s) for name, steps in counted.items()}
print(json.dumps(found))
"""
EXCLUSIVE = Cluster(exclusive=True)
STREAM, MICROSOFT, ELASTIC = (
    "stream:load=0.9,num_jobs=200,scale=0.05",
    "microsoft-160:scale=0.01",
    "elastic-mix:hours=1",
)
ENVIRONMENTS: dict[str, Callable[[], SchedulingEnv]] = {
    "order": lambda: OrderEnv(STREAM, cluster=EXCLUSIVE),
    "placement": lambda: PlacementEnv(STREAM, cluster=EXCLUSIVE),
    "communication": lambda: CommunicationEnv(MICROSOFT),
    "allocation": lambda: AllocationEnv(ELASTIC),
}
UNASKED: dict[str, Callable[[], object]] = {
    "order and placement": lambda: simulate(STREAM, EXCLUSIVE, seed=1),
    "communication": lambda: simulate(MICROSOFT, communication="bounded-overlap:limit=1", seed=1),
}


def measured(env: SchedulingEnv) -> tuple[int, float]:
    """Return the decisions of an episode, and the CPU seconds that it took with its reset."""
    begin_s = time.process_time()
    seen, _ = env.reset(options={"seed": 1})
    steps, ended = 0, False
    while not ended:
        seen, _, ended, _, _ = env.step(int(seen["action_mask"].argmax()))
        steps += 1
    return steps, time.process_time() - begin_s


def measured_together(num_envs: int) -> tuple[int, float]:
    """Return the decisions of an episode each of several runs, and the CPU seconds that they took with their resets."""
    begin_s = time.process_time()
    env = CommunicationVectorEnv(num_envs, MICROSOFT)
    seen, _ = env.reset(options={"seed": 1})
    steps, ended = 0, np.zeros(num_envs, bool)
    while not ended.all():
        seen, _, ended, _, _ = env.step(seen["action_mask"].argmax(axis=1))
        steps += num_envs
    return steps, time.process_time() - begin_s


def cpu_ms(run: Callable[[], object]) -> float:
    """Return the CPU time of a run, ms, the median of 5."""
    times_s = []
    for _ in range(5):
        begin_s = time.process_time()
        run()
        times_s.append(time.process_time() - begin_s)
    return 1e3 * statistics.median(times_s)


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", help="a Python that has the rivals")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--together", type=int, default=32, help="runs of the vectorised environment")
    asked = parser.parse_args()
    runs: dict[str, list[tuple[int, float]]] = {}
    for make in ENVIRONMENTS.values():
        measured(make())  # What is compiled is compiled now.
    measured_together(2)
    for _ in range(asked.repeats):
        for name, make in ENVIRONMENTS.items():
            runs.setdefault(f"ddlsched, {name}", []).append(measured(make()))
        together = f"ddlsched, communication, {asked.together} at once"
        runs.setdefault(together, []).append(measured_together(asked.together))
        if asked.rivals:
            done = subprocess.run([asked.rivals, "-c", RIVALS], capture_output=True, text=True, check=True)
            for name, found in json.loads(done.stdout).items():
                runs.setdefault(name, []).append(tuple(found))
    rows = [(name, own[0][0], statistics.median(steps / cpu_s for steps, cpu_s in own)) for name, own in runs.items()]
    notes = [f"Load average: {os.getloadavg()[0]:.1f}. To reach: 10 times the rivals'."]
    columns = ("environment", "decisions", "a CPU second")
    print(Table(title="Decisions per CPU second, resets included", columns=columns, rows=rows, notes=notes))
    rows = [(name, cpu_ms(run)) for name, run in UNASKED.items()]
    print(Table(title="A run without decisions", columns=("environment", "CPU ms"), rows=rows))


if __name__ == "__main__":
    main()
