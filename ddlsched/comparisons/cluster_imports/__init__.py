"""Queues, servers and jobs from the files of schedulers in use (Kueue, Volcano, KAI, Slurm), and files made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ddlsched.cluster.cluster import Server
from ddlsched.cluster.cluster_files import write_tenants
from ddlsched.cluster.tenants import Queue, Tenants
from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.io.files import made_folder, replacing
from ddlsched.plugins import IMPORT_CONTENTION
from ddlsched.plugins.names import resolve
from ddlsched.workload.traces.trace_models import OF_REPORT, JobRule
from ddlsched.workload.traces.traced import TracedJob


@dataclass(frozen=True, kw_only=True)
class ImportedCluster:
    """Queues, servers and jobs.

    Parameters
    ----------
    queues, servers, jobs
        As they were told; perhaps none.
    admission
        The policy that decides as the scheduler does, with its parameters.
    notes
        What was left out, and why, a line each.
    """

    queues: tuple[Queue, ...]
    servers: tuple[Server, ...]
    jobs: tuple[TracedJob, ...]
    admission: str
    notes: list[str] = field(default_factory=list)


def write_imported(imported: ImportedCluster, folder: Path, default_s: float | None) -> tuple[int, list[str]]:
    """Write ``queues.yaml``, ``servers.csv``, ``jobs.csv``, of what there is; return how many jobs, and a run's flags.

    Parameters
    ----------
    imported, folder
        What was told, and where the files go.
    default_s
        For how long jobs run of which it is not known, seconds; None: they are left out.

    Raises
    ------
    InputError
        There are no queues, or no jobs whose duration is known, or the folder cannot be written.
    """
    if not imported.queues:
        why = "the files hold no queues; expected those that jobs are submitted to"
        raise InputError(": ".join((why, *imported.notes[:1])))
    made_folder(folder, "the tables")
    write_tenants(Tenants(queues=imported.queues), folder / "queues.yaml")
    flags = [f"--queues {folder / 'queues.yaml'}", f"--admission {imported.admission}"]
    tables = {"jobs.csv": _jobs_table(imported, default_s)}
    if imported.servers:
        tables["servers.csv"] = _servers_table(imported.servers)
        flags.append(f"--server-table {folder / 'servers.csv'}")
        # Durations are the log's where jobs of several servers share no card.
        flags.append(f"--placement {'kueue-topology' if imported.servers[0].levels else 'whole-servers'}")
    else:
        imported.notes.append("no servers with GPUs are told; give --servers and --gpus-per-server")
    for name, table in tables.items():
        with replacing(folder / name, "table") as file:
            table.to_csv(file, index=False, lineterminator="\n")
    return len(tables["jobs.csv"]), [str(folder / "jobs.csv"), *flags]


def _servers_table(servers: tuple[Server, ...]) -> pd.DataFrame:
    rows = [
        {"gpus": server.gpus, "gpu_memory_mb": f"{server.gpu_memory_mb:g}", "exclusive": 1, "gpu_kind": server.gpu_kind}
        | {f"level {name}": unit for name, unit in server.levels}
        for server in servers
    ]
    return pd.DataFrame(rows).dropna(axis="columns", how="all")  # the kinds, where none is told


def _jobs_table(imported: ImportedCluster, default_s: float | None) -> pd.DataFrame:
    """Return a workload's table; what jobs compute and send is that of the models of traces."""
    default_s = math.nan if default_s is None else default_s
    jobs = [job._replace(duration_s=default_s) if math.isnan(job.duration_s) else job for job in imported.jobs]
    known = sorted((job for job in jobs if not math.isnan(job.duration_s)), key=lambda job: job.arrival_s)
    if left_out := len(jobs) - len(known):
        imported.notes.append(f"{left_out} jobs left out, of which no duration is known; give --default-s")
    if not known:
        why = "the files hold no job whose duration is known; expected finished ones, or --default-s"
        raise InputError(": ".join((why, *imported.notes[:1])))
    first_s = known[0].arrival_s
    rows = [job._replace(arrival_s=round(job.arrival_s - first_s, 3)) for job in known]
    traced = pd.DataFrame(rows).astype({"model": object, "user": object, "queue": object})
    made = JobRule(contention=resolve("contention", IMPORT_CONTENTION), gpus_per_server=8, seed=1).apply(traced)
    for name in ("required_levels", "preferred_levels"):
        made[name] = [getattr(job, name) for job in known]
    optional = ("user", "time_limit_s", "required_levels", "preferred_levels")
    unused = [name for name in optional if made[name].isna().all()]
    return made.drop(columns=[*OF_REPORT, *unused])
