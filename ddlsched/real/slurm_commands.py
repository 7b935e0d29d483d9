"""``ddlsched slurm-agent`` and ``slurm-trial``: a real Slurm under the policies, and a Slurm to try it on."""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.real.slurm.settings import AgentEvent


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How an agent is run.

    Parameters
    ----------
    state
        Where the journal is kept.
    facts
        Facts of jobs whose comment has none, by the job's name: the columns name, iterations, and as in a comment.
    all_users
        Start everybody's jobs, as an operator of Slurm may; otherwise only your own.
    every_s
        Seconds from one look at Slurm to the next.
    start_s
        Take back a job that Slurm does not start within so many seconds.
    give_up_s
        End when Slurm is out of reach for so many seconds.
    dry_run
        Print decisions and do nothing.
    once
        Look at Slurm once and end.
    as_json
        Print every event as a line of JSON.
    """

    state: Path | None = option(None, metavar="DIR", shown="none, as --dry-run needs none")
    facts: Path | None = option(None, metavar="FILE.csv", shown="none")
    all_users: bool = False
    every_s: float = 1.0
    start_s: float = 60.0
    give_up_s: float = 3600.0
    dry_run: bool = False
    once: bool = False
    as_json: bool = False


def slurm_agent(
    partition: str,
    policies: Annotated[Given[RunOptions], Panel("Policies", only=("scheduler", "placement", "order"))],
    nodes: Annotated[Given[RunOptions], Panel("Nodes", only=("topology", "gpu_memory_mb", "contention"))],
    agent: Annotated[Given[AgentOptions], Panel("What it does, and may touch")],
) -> None:
    """Start the held jobs of a partition of Slurm when and where the policies say, until Ctrl-C.

    Jobs are submitted with sbatch --hold --gpus=N --comment=ddlsched:iterations=1000,forward_s=0.1,backward_s=0.2
    (also message_bytes, gpu_memory_mb, resumes=true). Jobs without such a comment are left alone. An order that stops
    jobs has them requeued. Started again with the same DIR it goes on where it was, whatever ended it.

    Parameters
    ----------
    partition
        Whose held jobs are started; no other's.
    """
    import getpass

    from ddlsched.io.files import made_folder
    from ddlsched.real.slurm.agent import SlurmAgent
    from ddlsched.real.slurm.commands import runner
    from ddlsched.real.slurm.journal import AgentJournal
    from ddlsched.real.slurm.settings import AgentSettings, read_facts
    from ddlsched.real.state_folder import Ownership

    asked = agent.made()
    if (asked.state is None) != asked.dry_run:
        raise InputError("slurm-agent: expected --state DIR, or --dry-run without one")
    settings = AgentSettings(
        partition=partition,
        user=None if asked.all_users else getpass.getuser(),
        policies=policies.values | nodes.values,
        facts={} if asked.facts is None else read_facts(asked.facts),
        every_s=asked.every_s,
        start_s=asked.start_s,
        give_up_s=asked.give_up_s,
        dry_run=asked.dry_run,
    )
    with contextlib.ExitStack() as held:
        if asked.state is not None:
            held.callback(Ownership(made_folder(asked.state, "the journal").resolve()).close)
        journal = AgentJournal(":memory:" if asked.state is None else asked.state / "agent.sqlite")
        held.callback(journal.close)
        started = SlurmAgent(settings, journal, runner(), lambda event: emit(_line(event, asked.as_json)))
        if asked.once:
            started.look()
        else:
            started.run(lambda: False)


def _line(event: AgentEvent, as_json: bool) -> str:
    if as_json:
        return json.dumps(vars(event)) + "\n"
    job = f"job {event.job_id}: " if event.job_id else ""
    return f"{event.what}: {job}{event.detail}\n"


_MOST_NODES = 200


def slurm_trial(*, nodes: int = 4, gpus_per_node: int = 4) -> None:
    """Start a Slurm of its own on this host, in a temporary folder, and end it with Ctrl-C.

    Prints what to type in another terminal so that sbatch, squeue and ddlsched slurm-agent reach it. Partitions: main,
    and idle, whose jobs those of main preempt. Needs Debian's packages slurmctld slurmd slurm-client munge.

    Parameters
    ----------
    nodes
        Nodes, called n1, n2, ...
    gpus_per_node
        GPUs of each, in name only.
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
        signal.pause()
