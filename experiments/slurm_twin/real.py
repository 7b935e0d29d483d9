"""Runs a stream of jobs on a Slurm of 32 nodes on this host."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from predictions import SPARED_S
from scenarios import BACKFILL_S, Scenario
from stream import CLUSTER

from ddlsched.errors import SimulationError
from ddlsched.real.slurm.local_cluster import LocalSlurm
from ddlsched.real.slurm.settings import JobFacts
from ddlsched.workload.job import Job, Workload

_SETTINGS = {
    "SchedulerParameters": f"batch_sched_delay=0,sched_interval=5,bf_interval={BACKFILL_S:.0f},bf_resolution=1"
}
_SCRIPT = """#!/bin/sh
echo "$SLURM_JOB_NAME,start,$(date +%s.%N),$SLURM_JOB_NODELIST" >> {stamps}
sleep {sleep_s}
echo "$SLURM_JOB_NAME,end,$(date +%s.%N)," >> {stamps}
"""
_SLACK_S = 600.0


def run_for_real(workload: Workload, scenario: Scenario, log: Path) -> pd.DataFrame:
    """Return job, arrival, first decision, start, end and when that was seen, seconds, nodes, and the machine's load.

    Parameters
    ----------
    workload
        Each job sleeps for its time less what Slurm takes to start and to end it.
    scenario
        Who decides.
    log
        The agent's events are written there.

    Raises
    ------
    SimulationError
        Jobs are not done ten minutes after the time in which one could do them one after the other at this load.
    """
    with LocalSlurm(CLUSTER.num_servers, CLUSTER.gpus_per_server, _SETTINGS) as slurm, _agent(slurm, scenario, log):
        stamps = slurm.folder / "stamps"
        stamps.touch()
        began_s = math.ceil(time.time() / scenario.every_s) * scenario.every_s  # when the agent looks
        arrived_s, names = {}, {}
        for job in workload:
            time.sleep(max(began_s + job.arrival_s - time.time(), 0.0))
            names[_submit(slurm, job, stamps, held=scenario.options is not None)] = job.job_id
            arrived_s[job.job_id] = time.time() - began_s
        until_s = time.time() + _SLACK_S + sum(job.service_ns for job in workload) / 1e9 / CLUSTER.num_gpus
        while stamps.read_text().count(",end,") < len(workload):
            if time.time() > until_s:
                raise SimulationError(f"{scenario.name}: jobs are not done; Slurm has {slurm.run('squeue')}")
            time.sleep(0.5)
        if scenario.options is not None:
            time.sleep(3 * scenario.every_s)  # the agent sees the last end
        table = _table(stamps.read_text(), arrived_s, began_s)
        for column, what in (("decided_s", "start"), ("seen_end_s", "end")):
            table[column] = table["job_id"].map(_told(log, what, names, began_s))
    return table.assign(load=round(os.getloadavg()[2], 2)).round(3)


def _submit(slurm: LocalSlurm, job: Job, stamps: Path, *, held: bool) -> int:
    """Submit a job and return Slurm's number for it."""
    run_s = job.service_ns / 1e9 / job.num_gpus
    facts = JobFacts(iterations=job.iterations, forward_s=run_s / job.iterations)
    script = _SCRIPT.format(stamps=stamps, sleep_s=f"{run_s - SPARED_S:.3f}")
    assert job.time_limit_s is not None
    options = [f"--job-name={job.job_id}", f"--gpus={job.num_gpus}", f"--time={job.time_limit_s / 60:.0f}"]
    options += ["--output=/dev/null", *(["--hold", f"--comment={facts.comment()}"] if held else [])]
    command = ["sbatch", "--parsable", *options]
    done = subprocess.run(command, input=script, text=True, env=slurm.environment, check=True, capture_output=True)
    return int(done.stdout)


@contextlib.contextmanager
def _agent(slurm: LocalSlurm, scenario: Scenario, log: Path) -> Iterator[None]:
    if scenario.options is None:
        yield
        return
    command = [sys.executable, "-c", "from ddlsched.cli import main; main()", "slurm-agent", "main", "--json"]
    command += ["--state", str(slurm.folder / "agent"), f"--every-s={scenario.every_s}", *scenario.options]
    with log.open("w") as events:
        agent = subprocess.Popen(command, env=slurm.environment, stdout=events)
    time.sleep(5.0)  # it has imported everything, and looked
    try:
        yield
        if agent.poll() is not None:
            raise SimulationError(f"{scenario.name}: the agent ended with {agent.returncode}")
    finally:
        agent.kill()
        agent.wait()


def _table(stamps: str, arrived_s: dict[str, float], began_s: float) -> pd.DataFrame:
    rows = [line.split(",", 3) for line in stamps.splitlines()]
    times = {what: {job: float(at) - began_s for job, kind, at, _ in rows if kind == what} for what in ("start", "end")}
    nodes = {job: names for job, kind, _, names in rows if kind == "start"}
    table = pd.DataFrame({"job_id": list(arrived_s), "arrival_s": list(arrived_s.values())})
    table["start_s"], table["end_s"] = table["job_id"].map(times["start"]), table["job_id"].map(times["end"])
    table["nodes"] = table["job_id"].map(nodes)
    return table


def _told(log: Path, what: str, names: dict[int, str], began_s: float) -> dict[str, float]:
    """Return when a log first tells so of each job."""
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    told = [event for event in reversed(events) if event["what"] == what]
    return {names[event["job_id"]]: event["time_s"] - began_s for event in told}
