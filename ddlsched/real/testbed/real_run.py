"""One run of a workload for real: its settings from names, as ``simulate`` takes them, and its tables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.deferred import pd
from ddlsched.engine.build_tasks import free_memory_bytes
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.errors import InputError
from ddlsched.io.files import made_folder, replacing
from ddlsched.real.gate.gate import Gate, GateSettings, begun_policies
from ddlsched.real.gate.live_jobs import GateRank, SentRow
from ddlsched.real.gate.loop import run_gate
from ddlsched.real.testbed.cabling import refuse_inside
from ddlsched.real.testbed.crews import WorkerCrew
from ddlsched.real.testbed.machine import MachineWatch, ahead_of_others
from ddlsched.units import MAX_NS, NS_PER_S
from ddlsched.workload.dag import AllReduceTask, ComputeTask
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Workload
from ddlsched.workload.tasks import Task

_MOST_READY = 8


def gate_settings(cluster: Cluster, *, contention: Any = "max-min", **given: Any) -> GateSettings:
    """Return the settings of a gate before a cluster, as :meth:`GateSettings.by_name`, that a testbed can have.

    Raises
    ------
    InputError
        A value out of range.
    UnknownNameError
        A name that nobody has registered.
    """
    settings = GateSettings.by_name(cluster, contention=contention, **given)
    if settings.slots and settings.train:
        raise InputError("--slots with --train: training computes when it can; expected one of the two")
    refuse_inside(settings.costs.network)
    _refuse_stops_and_moves(begun_policies(settings))
    return settings


def _refuse_stops_and_moves(policies: CheckedPolicies) -> None:
    for kind, method in (("order", "stops"), ("placement", "moves")):
        if hasattr(getattr(policies, kind), method):
            text = (
                f"{kind} {policies.label(kind)} {method} running jobs, and a real job keeps its processes until its end"
            )
            raise InputError(f"{text}; expected one without {method}() on the testbed (ddlsched simulate runs it)")


@dataclass(frozen=True)
class RealRun:
    """What was measured.

    Parameters
    ----------
    jobs
        A row a job: job_id, arrival_s, start_s (placed), began_s (its ranks had formed their group), finish_s,
        setup_s (from start_s to began_s), jct_s (finish - arrival - setup), iterations, servers.
    transfers
        A row an all-reduce: job_id, iteration, task, message_bytes, chunks, ready_s, granted_s, ended_s.
    machine
        Whether the machine kept up: :meth:`~ddlsched.real.testbed.machine.MachineWatch.summary`.
    """

    jobs: pd.DataFrame
    transfers: pd.DataFrame
    machine: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """Return mean JCT, makespan, and whether the machine kept up."""
        return {
            "jobs": len(self.jobs),
            "average_jct_s": float(self.jobs.jct_s.mean()),
            "makespan_s": float(self.jobs.finish_s.max()),
            "transfers": len(self.transfers),
            **self.machine,
        }

    def write(self, folder: Path) -> None:
        """Write ``jobs.parquet`` and ``transfers.parquet``."""
        made_folder(folder, "tables")
        for name, table in (("jobs", self.jobs), ("transfers", self.transfers)):
            with replacing(folder / f"{name}.parquet", "--out") as file:
                table.to_parquet(file, index=False)


def run_for_real(workload: Workload, settings: GateSettings, crew: WorkerCrew, *, realtime: bool = True) -> RealRun:
    """Run a workload on a crew to the end of its last job.

    Parameters
    ----------
    workload, settings, crew
        What runs, who decides, who does it.
    realtime
        Whether the gate, too, runs ahead of other processes where that is allowed.

    Raises
    ------
    InputError
        A job that the testbed cannot run.
    TestbedError
        A worker or a link failed, or nothing will ever happen again.
    PluginError, InvalidDecisionError
        A policy raised, or answered what cannot be.
    """
    refuse_unfit(workload, settings)
    if crew.on_this_machine:
        refuse_too_large(workload, settings.cluster.num_servers, free_memory_bytes() or MAX_NS)
    rows: list[SentRow] = []
    gate = Gate(workload, settings, crew, rows.append)
    for server in range(settings.cluster.num_servers):
        crew.prepare(server, min(len(workload), _MOST_READY))
    watch = MachineWatch()

    def note(rank: GateRank, message: dict[str, Any]) -> None:
        if message.get("say") == "computed" and rank in gate.seats:
            task = gate.seats[rank][0].job.dag.tasks[message["task"]]
            if isinstance(task, ComputeTask):
                watch.computed(task.duration_ns, message["late_ns"])

    with ahead_of_others(realtime):
        run_gate(gate, crew, note)
    return RealRun(_jobs_table(gate), _transfers_table(rows), watch.summary())


def _jobs_table(gate: Gate) -> pd.DataFrame:
    rows = []
    for job in gate.jobs:
        start_s, began_s, finish_s = (ns / NS_PER_S for ns in (job.placed_ns, job.began_ns, job.finished_ns))
        setup_s = began_s - start_s
        rows.append(
            {
                "job_id": job.job.job_id,
                "arrival_s": job.job.arrival_s,
                "start_s": start_s,
                "began_s": began_s,
                "finish_s": finish_s,
                "setup_s": setup_s,
                "jct_s": finish_s - job.job.arrival_s - setup_s,
                "iterations": job.job.iterations,
                "servers": ",".join(map(str, sorted(job.view.servers))),
            }
        )
    return pd.DataFrame(rows)


def _transfers_table(rows: list[SentRow]) -> pd.DataFrame:
    columns = [field.name for field in dataclasses.fields(SentRow)]
    table = pd.DataFrame([dataclasses.astuple(row) for row in rows], columns=columns)
    for name in ("ready", "granted", "ended"):
        table[f"{name}_s"] = table.pop(f"{name}_ns") / NS_PER_S
    return table


def refuse_unfit(workload: Workload, settings: GateSettings) -> None:
    """Raise InputError for a job that the testbed cannot run, or that would wait for ever."""
    cluster = settings.cluster
    for number, job in enumerate(workload):
        where = f"{workload.where(number)}: job {job.job_id!r}"
        if isinstance(job, ElasticJob):
            raise InputError(f"{where} is elastic; expected jobs of a fixed number of GPUs on the testbed")
        for task in job.dag.tasks:
            if lacks := _lacks_for(task):
                raise InputError(
                    f"{where}, task {task.name!r}: the testbed {lacks}; expected compute tasks and all-reduces of all "
                    "workers (ddlsched simulate runs the others)"
                )
        room = int((cluster.gpu_memory_bytes >= job.gpu_memory_bytes).sum())
        if job.num_gpus > room:
            raise InputError(
                f"{where} wants {job.num_gpus} GPUs with {job.gpu_memory_mb:g} MB; expected at most {room}, which the "
                "testbed has"
            )


def _lacks_for(task: Task) -> str:
    """Return what the testbed has not that a task needs; an empty text if it has all."""
    if task.group is not None:
        return f"has a process a server and no ranks of single GPUs, of which group {task.group!r} would be made"
    if isinstance(task, ComputeTask | AllReduceTask):
        return ""
    algorithm = "" if task.algorithm == "ring" else f"{task.algorithm} "
    return f"has no {algorithm}{task.kind}: its ranks only all-reduce in one ring"


def refuse_too_large(workload: Workload, num_servers: int, free_bytes: float) -> None:
    """Raise InputError for messages that would not fit into the memory of one machine for all servers."""
    wanted = most_memory_bytes(workload, num_servers)
    if wanted > free_bytes:
        raise InputError(
            f"{workload.source or 'workload'}: the messages of all jobs would take {wanted / 1e6:,.0f} MB on all "
            f"servers together; expected at most {free_bytes / 1e6:,.0f} MB, which this machine has free"
        )


def most_memory_bytes(workload: Workload, num_servers: int) -> float:
    """Return what the messages of all jobs take at most, if each is on as many servers as it can be."""
    return sum(
        min(job.num_gpus, num_servers) * task.message_bytes
        for job in workload
        for task in job.dag.tasks
        if isinstance(task, AllReduceTask)
    )
