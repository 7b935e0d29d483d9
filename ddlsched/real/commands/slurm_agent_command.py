"""``ddlsched slurm-agent``: a real Slurm's held jobs, started by the simulator's policies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option, with_options
from ddlsched.cli.output import emit
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.real.slurm.agent import Event

__all__ = ["slurm_agent"]


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """How an agent is run."""

    state: Path | None = option(
        None, "Where the journal is kept.", metavar="DIR", shown="none, as --dry-run needs none"
    )
    facts: Path | None = option(
        None,
        "Facts of jobs whose comment has none, by the job's name: the columns name, iterations, and as in a comment.",
        metavar="FILE.csv",
        shown="none",
    )
    all_users: bool = option(False, "Start everybody's jobs, as an operator of Slurm may; otherwise only your own.")
    every_s: float = option(1.0, "Seconds from one look at Slurm to the next.")
    start_s: float = option(60.0, "Take back a job that Slurm does not start within so many seconds.")
    give_up_s: float = option(3600.0, "End when Slurm is out of reach for so many seconds.")
    dry_run: bool = option(False, "Print decisions and do nothing.")
    once: bool = option(False, "Look at Slurm once and end.")
    as_json: bool = option(False, "Print every event as a line of JSON.", flag="--json")


@with_options
def slurm_agent(
    partition: Annotated[str, typer.Argument(metavar="PARTITION", help="Whose held jobs are started; no other's.")],
    policies: Annotated[Given[RunOptions], Panel("Policies", only=("scheduler", "placement", "order"))],
    cluster: Annotated[Given[RunOptions], Panel("Nodes", only=("topology", "gpu_memory_mb"))],
    network: Annotated[Given[RunOptions], Panel("Nodes", only=("contention",))],
    agent: Annotated[Given[AgentOptions], Panel("What it does, and may touch")],
) -> None:
    """Start the held jobs of a partition of Slurm when and where the policies say, until Ctrl-C.

    Jobs are submitted with sbatch --hold --gpus=N --comment=ddlsched:iterations=1000,forward_s=0.1,backward_s=0.2
    (also message_bytes, gpu_memory_mb, resumes=true). Jobs without such a comment are left alone. An order that stops
    jobs has them requeued. Started again with the same DIR it goes on where it was, whatever ended it.
    """
    import contextlib
    import getpass

    from ddlsched.real.slurm.agent import AgentSettings, SlurmAgent
    from ddlsched.real.slurm.board import PolicyNames
    from ddlsched.real.slurm.commands import runner
    from ddlsched.real.slurm.facts import read_facts
    from ddlsched.real.slurm.journal import Journal
    from ddlsched.real.state_folder import Ownership, made_folder

    asked = agent.made()
    if (asked.state is None) != asked.dry_run:
        raise InputError("slurm-agent: expected --state DIR, or --dry-run without one")
    settings = AgentSettings(
        partition=partition,
        user=None if asked.all_users else getpass.getuser(),
        policies=PolicyNames(**policies.values, **cluster.values, **network.values),
        facts={} if asked.facts is None else read_facts(asked.facts),
        every_s=asked.every_s,
        start_s=asked.start_s,
        give_up_s=asked.give_up_s,
        dry_run=asked.dry_run,
    )
    with contextlib.ExitStack() as held:
        if asked.state is not None:
            held.callback(Ownership(made_folder(asked.state, "the journal")).close)
        journal = Journal(":memory:" if asked.state is None else asked.state / "agent.sqlite")
        held.callback(journal.close)
        started = SlurmAgent(settings, journal, runner(), lambda event: emit(_line(event, asked.as_json)))
        if asked.once:
            started.look()
        else:
            started.run(lambda: False)


def _line(event: Event, as_json: bool) -> str:
    if as_json:
        return json.dumps(vars(event)) + "\n"
    job = f"job {event.job_id}: " if event.job_id else ""
    return f"{event.what}: {job}{event.detail}\n"
