"""``ddlsched import-cluster``: a scheduler's own files become queues, servers and jobs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import real
from ddlsched.cli.reporting import emit, notice
from ddlsched.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from ddlsched.comparisons.cluster_imports import ImportedCluster

__all__ = ["import_cluster"]

_SCHEDULERS = ("kueue", "volcano", "kai", "slurm")


def import_cluster(
    scheduler: Annotated[str, typer.Argument(metavar="SCHEDULER", help=f"One of {', '.join(_SCHEDULERS)}.")],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILES",
            help="Folder or file with what 'kubectl get -o yaml' (or json) prints; for slurm a folder with 'sacctmgr "
            "show assoc -P', 'sacct -P' and 'scontrol show node'.",
            readable=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for queues.yaml, servers.csv and jobs.csv.", metavar="DIR")] = Path(
        "imported"
    ),
    default_s: Annotated[
        float | None,
        typer.Option(
            help="For how long jobs run of which no duration is known, seconds.",
            metavar="SECONDS",
            parser=real,
            show_default="they are left out",
        ),
    ] = None,
) -> None:
    """Make queues, servers and jobs of the files of Kueue, Volcano, KAI or Slurm, and print the run with them.

    What jobs compute and send, which such files do not say, is that of the models of 'workload import'.
    """
    from ddlsched.comparisons.cluster_imports import write_imported

    imported = _read(scheduler, source)
    arguments = write_imported(imported, out, default_s)
    for note in imported.notes:
        notice(note)
    counts = f"{len(imported.queues)} queues, {len(imported.servers)} servers, {len(imported.jobs)} jobs in {out}"
    emit(f"{counts}\nddlsched simulate {' '.join(arguments)}\n")


def _read(scheduler: str, source: Path) -> ImportedCluster:
    if scheduler == "kueue":
        from ddlsched.comparisons.cluster_imports.kueue import read_kueue

        return read_kueue(source)
    if scheduler == "slurm":
        from ddlsched.comparisons.cluster_imports.slurm import read_slurm

        return read_slurm(source)
    if scheduler in _SCHEDULERS:
        from ddlsched.comparisons.cluster_imports import volcano_kai

        return volcano_kai.read_volcano(source) if scheduler == "volcano" else volcano_kai.read_kai(source)
    raise UnknownNameError(f"no scheduler is named {scheduler!r}.{did_you_mean(scheduler, _SCHEDULERS)}")
