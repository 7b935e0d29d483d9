"""Decisions per CPU second of the learning environments, beside gpu-choochoo's and hpcsim's.

    python -m venv rivals && rivals/bin/pip install gpu-choochoo==0.1.0 hpcsim==0.3.1
    python benchmarks/env_steps.py --rivals rivals/bin/python

Resets count. Everybody takes the first action that is allowed. The rivals simulate no iterations and no network: a job
has a duration. So 200 such jobs, the same ones in every episode, are run by gpu-choochoo and here; then the same
environments with jobs that train iterations on a network, the same ones or new ones in every episode. hpcsim runs jobs
of its own. gpu-choochoo asks also when nobody waits, at least once a simulated minute, and has no action mask; "while a
job waits" counts only its other steps. What comes first (compiling, a place's first run) is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from typing import Any

import numpy as np
from benchmark_tables import Table

import ddlsched.envs
from ddlsched import Cluster, Job, Workload
from ddlsched.envs import SchedulingEnv
from ddlsched.envs.vector_env import SchedulingVectorEnv
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import ComputeTask, IterationDag
from ddlsched.workload.workload_files import workload_of

RIVALS = """
import contextlib, io, json, sys, time
import numpy as np
from gpu_choochoo.envs.scheduler_env import GPUSchedulerEnv
from hpcsim.rl.env import EnvConfig, HPCGreenEnv

arrivals_s, gpus, durations_s = json.loads(sys.argv[1])

def choochoo():
    nodes = [dict(node_id=f"n{n}", gpu_type="A100", total_gpus=4, total_vram_gb=320) for n in range(16)]
    jobs = [dict(job_id=f"j{n}", arrival_time=at, gpus_required=count, vram_required_gb=10.0, duration_sec=duration)
            for n, (at, count, duration) in enumerate(zip(arrivals_s, gpus, durations_s))]
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
for run, times in (choochoo, 5), (hpcsim, 1):
    with contextlib.redirect_stdout(io.StringIO()):
        run()
        begin_s = time.process_time()
        for _ in range(times):
            counted = run()
    cpu_s = (time.process_time() - begin_s) / times
    found |= {name: (steps, cpu_s) for name, steps in counted.items()}
print(json.dumps(found))
"""
NUM_JOBS = 200
RNG = np.random.default_rng(1)
ARRIVALS_S = np.cumsum(RNG.exponential(60, NUM_JOBS)).tolist()
GPUS = RNG.choice([1, 2, 4], NUM_JOBS).tolist()
DURATIONS_S = RNG.lognormal(7, 1, NUM_JOBS).tolist()
STREAM, MICROSOFT, ELASTIC = (
    "stream:load=0.9,num_jobs=200,scale=0.05",
    "microsoft-160:scale=0.01",
    "elastic-mix:hours=1",
)


def durations() -> Workload:
    """Return the jobs that gpu-choochoo gets, each of one task."""
    jobs = []
    for number, (arrival_s, num_gpus, duration_s) in enumerate(zip(ARRIVALS_S, GPUS, DURATIONS_S, strict=True)):
        iteration = IterationDag((ComputeTask(name="run", duration_ns=ns_from_s(duration_s)),))
        given = {"job_id": f"j{number}", "arrival_s": arrival_s, "num_gpus": num_gpus, "iteration": iteration}
        jobs.append(Job(**given, iterations=1, gpu_memory_mb=1e4))
    return Workload.of(jobs)


A_DURATION = "a duration, given"
TRAINING, GIVEN_TRAINING = "iterations on a network, drawn", "iterations on a network, given"
ELASTIC_TRAINING, GIVEN_ELASTIC_TRAINING = "samples on any GPUs, drawn", "samples on any GPUs, given"
JOBS: dict[tuple[str, str], Workload | str] = {
    ("Order", A_DURATION): durations(),
    ("Placement", A_DURATION): durations(),
    ("Order", TRAINING): STREAM,
    ("Placement", TRAINING): STREAM,
    ("Communication", TRAINING): MICROSOFT,
    ("Allocation", ELASTIC_TRAINING): ELASTIC,
    ("Order", GIVEN_TRAINING): workload_of(STREAM, 1),
    ("Placement", GIVEN_TRAINING): workload_of(STREAM, 1),
    ("Allocation", GIVEN_ELASTIC_TRAINING): workload_of(ELASTIC, 1),
}


def environment(door: str, job: str, *together: int) -> Any:
    """Return the environment of a door, or so many runs of it."""
    kind = getattr(ddlsched.envs, f"{door}{'VectorEnv' if together else 'Env'}")
    given = {"cluster": Cluster(exclusive=True)} if door in ("Order", "Placement") else {}
    return kind(*together, JOBS[door, job], **given)


def measured(env: SchedulingEnv) -> tuple[int, float]:
    """Return the decisions of an episode, and the CPU seconds that it took with its reset."""
    begin_s = time.process_time()
    seen, _ = env.reset(options={"seed": 1})
    steps, ended = 0, False
    while not ended:
        seen, _, ended, _, _ = env.step(int(seen["action_mask"].argmax()))
        steps += 1
    return steps, time.process_time() - begin_s


def measured_together(env: SchedulingVectorEnv, episodes: int) -> tuple[int, float]:
    """Return the decisions of some episodes of each run after its first, and their CPU seconds."""
    seen, _ = env.reset(seed=1)
    num_ended, to_end = 0, env.num_envs
    begin_s, steps, ended = 0.0, 0, np.zeros(env.num_envs, bool)
    while num_ended < to_end:
        steps += env.num_envs - int(ended.sum())  # whose run has ended only begins anew
        seen, _, ended, _, _ = env.step(seen["action_mask"].argmax(axis=1))
        num_ended += int(ended.sum())
        if num_ended >= to_end and not begin_s:
            begin_s, steps, to_end = time.process_time(), 0, num_ended + episodes * env.num_envs
    cpu_s = time.process_time() - begin_s
    env.close()
    return steps, cpu_s


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", help="a Python that has the rivals")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--together", type=int, default=32, help="runs of the vectorised environment")
    parser.add_argument("--episodes", type=int, default=2, help="of each run of a vectorised environment")
    asked = parser.parse_args()
    runs: dict[tuple[str, str], list[tuple[int, float]]] = {}
    drawn = [key for key in JOBS if key[1] not in (GIVEN_TRAINING, GIVEN_ELASTIC_TRAINING)]
    for key in drawn:
        measured(environment(*key))  # What is compiled is compiled now.
    for _ in range(asked.repeats):
        for door, job in drawn:
            runs.setdefault((f"{door}Env", job), []).append(measured(environment(door, job)))
        for door, job in JOBS:
            found = measured_together(environment(door, job, asked.together), asked.episodes)
            runs.setdefault((f"{door}VectorEnv, {asked.together} runs", job), []).append(found)
        for rival, found in rivals(asked.rivals).items():
            runs.setdefault((rival, A_DURATION), []).append(found)
    rates = {key: statistics.median(steps / cpu_s for steps, cpu_s in own) for key, own in runs.items()}

    beside = [rates.get((rival, A_DURATION)) for rival in ("gpu-choochoo", "hpcsim")]
    rows = [
        (*key, runs[key][0][0], round(rate), *(rate / other if other else None for other in beside))
        for key, rate in rates.items()
    ]
    notes = [f"Load average: {os.getloadavg()[0]:.1f}. To reach: 10 times the rivals'."]
    columns = ("environment", "a job is", "decisions", "a CPU second", "x gpu-choochoo", "x hpcsim")
    print(Table(title="Decisions per CPU second, resets included", columns=columns, rows=rows, notes=notes))


def rivals(python: str | None) -> dict[str, tuple[int, float]]:
    """Return the steps of each rival's episode, and the CPU seconds that it took."""
    if not python:
        return {}
    jobs = json.dumps([ARRIVALS_S, GPUS, DURATIONS_S])
    done = subprocess.run([python, "-c", RIVALS, jobs], capture_output=True, text=True, check=True)
    return {name: tuple(found) for name, found in json.loads(done.stdout).items()}


if __name__ == "__main__":
    main()
