"""``ddlsched slurm-trial``: a Slurm of many nodes on this host, to try things on."""

from __future__ import annotations

import contextlib
import signal
from typing import Annotated

import typer

from ddlsched.cli.numbers import whole
from ddlsched.cli.output import emit, notice
from ddlsched.errors import InputError

__all__ = ["slurm_trial"]

_MOST_NODES = 200


def slurm_trial(
    nodes: Annotated[int, typer.Option(parser=whole, help="Nodes, called n1, n2, ...", metavar="N")] = 4,
    gpus_per_node: Annotated[int, typer.Option(parser=whole, help="GPUs of each, in name only.", metavar="N")] = 4,
) -> None:
    """Start a Slurm of its own on this host, in a temporary folder, and end it with Ctrl-C.

    Prints what to type in another terminal so that sbatch, squeue and ddlsched slurm-agent reach it. Partitions: main,
    and idle, whose jobs those of main preempt. Needs Debian's packages slurmctld slurmd slurm-client munge.
    """
    from ddlsched.real.slurm.local_cluster import LocalSlurm

    for flag, count in (("--nodes", nodes), ("--gpus-per-node", gpus_per_node)):
        if not 1 <= count <= _MOST_NODES:
            raise InputError(f"{flag} is {count}; expected a whole number from 1 to {_MOST_NODES}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), LocalSlurm(nodes, gpus_per_node) as slurm:
        emit(f"export SLURM_CONF={slurm.folder / 'slurm.conf'}\n")
        notice(f"{nodes} nodes are ready; Ctrl-C ends them")
        while True:
            signal.pause()
