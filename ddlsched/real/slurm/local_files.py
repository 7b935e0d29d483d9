"""The configuration of a Slurm of many nodes on one host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["gres_conf", "slurm_conf"]

_CPUS = 64
_MEMORY_MB = 64000


def slurm_conf(
    folder: Path,
    user: str,
    host: str,
    ports: range,
    gpus_per_node: int,
    settings: Mapping[str, str],
    gpu_kinds: Sequence[str] = (),
) -> str:
    """Return ``slurm.conf``.

    Parameters
    ----------
    folder
        Where everything lies.
    user, host
        Who runs the daemons, and where.
    ports
        The controller's, then one a node.
    gpus_per_node
        GPUs of each node.
    settings
        Further settings, or other values of those here.
    gpu_kinds
        Of each node's GPUs, if they have kinds.
    """
    nodes = len(ports) - 1
    lines = {
        "ClusterName": "ddlsched",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmUser": user,
        "SlurmdUser": user,
        "SlurmctldPort": str(ports[0]),
        "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder / 'munge.socket'}",
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": str(folder / "spool" / "%n"),
        "SlurmctldPidFile": str(folder / "slurmctld.pid"),
        "SlurmdPidFile": str(folder / "slurmd-%n.pid"),
        "SlurmctldLogFile": str(folder / "slurmctld.log"),
        "SlurmdLogFile": str(folder / "slurmd-%n.log"),
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": "2",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",
        "GresTypes": "gpu",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "KillWait": "2",
        "JobCompType": "jobcomp/filetxt",
        "JobCompLoc": str(folder / "jobs.txt"),
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,bf_interval=5",
    } | dict(settings)
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    for name, port, kind in _groups(nodes, ports, gpu_kinds):
        text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
        text += f"CPUs={_CPUS} RealMemory={_MEMORY_MB} Gres=gpu{kind}:{gpus_per_node} State=UNKNOWN\n"
    text += "PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF State=UP\n"
    return text + "PartitionName=idle Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP\n"


def _groups(nodes: int, ports: range, gpu_kinds: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return names and ports of nodes with GPUs of a kind, and the kind as ``Gres`` has it; all without kinds."""
    if not gpu_kinds:
        return [(f"n[1-{nodes}]", f"[{ports[1]}-{ports[-1]}]", "")]
    return [
        (f"n{n}", str(port), f":{kind}") for n, (port, kind) in enumerate(zip(ports[1:], gpu_kinds, strict=True), 1)
    ]


def gres_conf(folder: Path, nodes: int, gpus_per_node: int, gpu_kinds: Sequence[str] = ()) -> str:
    """Return ``gres.conf``; Slurm counts GPUs as files."""
    files = f"File={folder}/gpu[0-{gpus_per_node - 1}]\n"
    if not gpu_kinds:
        return f"NodeName=n[1-{nodes}] Name=gpu {files}"
    return "".join(f"NodeName=n{n} Name=gpu Type={kind} {files}" for n, kind in enumerate(gpu_kinds, 1))
