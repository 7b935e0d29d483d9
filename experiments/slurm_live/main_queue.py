"""A main queue on a Slurm of this host, while idle nodes have nobody, jobs that sleep, or training."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from counting import STEP_S, step_s

from ddlsched.cluster.idle_trace import expand_hosts
from ddlsched.errors import SimulationError
from ddlsched.real.live.worker import BATCH
from ddlsched.real.slurm.local_cluster import LocalSlurm

TRAINING = ("FreeTrain", "MalleTrain")
FILLERS = ("nobody", "sleeping", *TRAINING)
NODES = 8
TRAINED, MOST_NODES = ("wide-a", "narrow-b", "wide-c"), 4
_BEGIN_S = 12.0
"""Until whoever uses idle nodes has them."""
_LOOK_S = 0.5
_SLACK_S = 240.0
_STEPS = 1_000_000


def main_jobs(num_jobs: int, seed: int) -> pd.DataFrame:
    """Return the main queue's jobs: job, arrival and run time in seconds, whole nodes; about half are busy."""
    rng = np.random.default_rng(seed)
    nodes = rng.choice([1, 2, 3, 6], p=[0.4, 0.3, 0.2, 0.1], size=num_jobs)
    run_s = np.round(rng.uniform(4.0, 16.0, size=num_jobs), 1)
    arrival_s = np.round(np.cumsum(rng.exponential(5.0, size=num_jobs)), 2)
    return pd.DataFrame({"job": range(num_jobs), "arrival_s": arrival_s, "run_s": run_s, "nodes": nodes})


def run_beside(filler: str, num_jobs: int, seed: int, log: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return when each job of the main queue was submitted and started, and who had which node when.

    Raises
    ------
    SimulationError
        The jobs are not done four minutes after the last arrived, or training has ended.
    """
    jobs = main_jobs(num_jobs, seed)
    with LocalSlurm(NODES, 4) as slurm, _filled(slurm, filler, log):
        time.sleep(_BEGIN_S)
        stamps = slurm.folder / "stamps"
        stamps.touch()
        began_s, submitted_s, seen = time.time(), [], []
        told_before = log.read_text().count("\n") if log.exists() else 0
        until_s = began_s + float(jobs["arrival_s"].max()) + _SLACK_S
        while stamps.read_text().count("\n") < num_jobs or _main_runs(seen):
            if time.time() > until_s:
                raise SimulationError(f"{filler}: the main queue is not done; Slurm has {slurm.run('squeue')}")
            now_s = time.time() - began_s
            for row in jobs[len(submitted_s) :].itertuples():
                if row.arrival_s > now_s:
                    break
                _submit(slurm, row, stamps)
                submitted_s.append(time.time() - began_s)
            seen.append(_holders(slurm, round(now_s, 2)))
            time.sleep(max(_LOOK_S - (time.time() - began_s - now_s), 0.0))
        starts_s = {int(job): float(at) - began_s for job, at in map(str.split, stamps.read_text().splitlines())}
        steps, useful_s = trained(log, told_before) if filler in TRAINING else (0, 0.0)
    waits = jobs.assign(submit_s=submitted_s, start_s=jobs["job"].map(starts_s))
    waits = waits.assign(samples=steps * BATCH, useful_node_s=useful_s)
    return waits.assign(load=os.getloadavg()[1]).round(3), pd.concat(seen, ignore_index=True)


def _submit(slurm: LocalSlurm, row: object, stamps: Path) -> None:
    script = f"echo {row.job} $(date +%s.%N) >> {stamps}; sleep {row.run_s}"  # type: ignore[attr-defined]
    options = [f"--nodes={row.nodes}", "--exclusive", "--output=/dev/null"]  # type: ignore[attr-defined]
    slurm.run("sbatch", *options, f"--wrap={script}")


def _holders(slurm: LocalSlurm, time_s: float) -> pd.DataFrame:
    lines = slurm.run("squeue", "--noheader", "--states=RUNNING", "--format=%P|%i|%N").splitlines()
    held = {f"n{number}": ("", "") for number in range(1, NODES + 1)}
    for partition, job, nodes in (line.split("|") for line in lines):
        held |= dict.fromkeys(expand_hosts(nodes), (partition, job))
    rows = [(time_s, node, *holder) for node, holder in held.items()]
    return pd.DataFrame(rows, columns=["time_s", "node", "partition", "job"])


def _main_runs(seen: list[pd.DataFrame]) -> bool:
    return not seen or bool((seen[-1]["partition"] == "main").any())


@contextlib.contextmanager
def _filled(slurm: LocalSlurm, filler: str, log: Path) -> Iterator[None]:
    if filler == "sleeping":
        for _ in range(10 * NODES):  # requeued ones wait two minutes, so that there are more than nodes
            slurm.run("sbatch", "--partition=idle", "--exclusive", "--output=/dev/null", "--wrap=sleep 10000")
    if filler not in TRAINING:
        yield
        return
    shutil.copy(Path(__file__).with_name("counting.py"), slurm.folder)
    (slurm.folder / "jobs.csv").write_text(jobs_table(filler))
    command = [sys.executable, "-c", "from ddlsched.cli import main; main()", "live", str(slurm.folder / "jobs.csv")]
    options = ["--state", str(slurm.folder / "state"), "--slurm", "idle", "--listen", "127.0.0.1", "--json"]
    environment = {**slurm.environment, "PYTHONPATH": str(Path(__file__).parents[2])}
    with log.open("w") as events:
        live = subprocess.Popen([*command, *options, "--hold-s", "3"], env=environment, stdout=events)
    try:
        yield
        if live.poll() is not None:
            raise SimulationError(f"{filler}: ddlsched live ended with {live.returncode}")
    finally:
        live.terminate()
        live.wait()


def jobs_table(filler: str) -> str:
    """Return what ``ddlsched live`` is given: FreeTrain's users suppose that every node adds the speed of the first."""
    supposed = " ".join(f"{BATCH / STEP_S * nodes:g}" for nodes in range(1, MOST_NODES + 1))
    speeds = supposed if filler == "FreeTrain" else ""
    rows = "".join(f"{job},counting.py,{_STEPS},{MOST_NODES},{speeds}\n" for job in TRAINED)
    return f"job_id,program,steps,max_nodes,samples_per_s\n{rows}"


def trained(log: Path, told_before: int) -> tuple[int, float]:
    """Return how many steps were done, and the node-seconds that they take, by a live run's events but for the first.

    Steps that are told of only later count as they were committed, so that none is missing.
    """
    events = [json.loads(line) for line in log.read_text().splitlines()]
    last: dict[str, int] = {}
    steps, useful_s = 0, 0.0
    for number, event in enumerate(events):
        if event["what"] != "step":
            continue
        done = max(event["step"] - last.get(event["job"], 0), 0)
        last[event["job"]] = event["step"]
        if number >= told_before:
            steps, useful_s = steps + done, useful_s + done * step_s(event["job"], event["nodes"]) * event["nodes"]
    return steps, useful_s
