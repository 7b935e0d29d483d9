"""What an agent is told: what to do, and what users say of their jobs, in ``--comment`` or in a table by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError, abbreviated
from ddlsched.io.tables import csv_rows, located, readable
from ddlsched.plugins.names import made_of_pairs, made_of_text
from ddlsched.ranges import Checked, ranged
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job

_LABEL = "ddlsched"
PREFIX = f"{_LABEL}:"


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """A job's work, as its user describes it.

    Parameters
    ----------
    iterations
        How often the iteration runs.
    forward_s, backward_s
        Compute of one iteration on a GPU, seconds.
    message_bytes
        What its GPUs reduce in one iteration, bytes.
    gpu_memory_mb
        Memory taken on each GPU, MB.
    resumes
        Whether a job that was stopped goes on where it was (it writes checkpoints); otherwise it begins anew.
    """

    iterations: int
    forward_s: float = 0.0
    backward_s: float = 0.0
    message_bytes: float = 0.0
    gpu_memory_mb: float = 0.0
    resumes: bool = False

    def __post_init__(self) -> None:
        self.job("job", arrival_s=0.0, num_gpus=1, user="user", time_limit_s=1.0)  # which checks every range
        if self.forward_s + self.backward_s < 1e-9:
            raise InputError("its iteration computes for less than 1 ns; expected forward_s or backward_s above that")

    def job(self, job_id: str, *, arrival_s: float, num_gpus: int, user: str, time_limit_s: float) -> Job:
        """Return the job as policies are shown it.

        Raises
        ------
        InputError
            A value out of range.
        """
        iteration = DataParallelIteration(
            forward_s=self.forward_s, backward_s=self.backward_s, message_bytes=self.message_bytes
        )
        return Job(
            job_id=job_id,
            arrival_s=arrival_s,
            num_gpus=num_gpus,
            iterations=self.iterations,
            iteration=iteration,
            gpu_memory_mb=self.gpu_memory_mb,
            user=user,
            time_limit_s=time_limit_s,
        )

    def comment(self) -> str:
        """Return the text for ``sbatch --comment``."""
        return PREFIX + ",".join(f"{field.name}={_text(getattr(self, field.name))}" for field in fields(self))


def facts_of_comment(comment: str) -> JobFacts:
    """Return what a comment says.

    Parameters
    ----------
    comment
        ``ddlsched:iterations=1000,forward_s=0.1,backward_s=0.2,message_bytes=1e8``; all but ``iterations`` may be
        left out.

    Raises
    ------
    InputError
        It says something else.
    """
    where = f"comment {abbreviated(comment)}"
    if not comment.startswith(PREFIX):
        raise InputError(f"{where}: expected {PREFIX}iterations=1000,forward_s=0.1,...")
    return located(where, lambda: made_of_text(_LABEL, JobFacts, comment.removeprefix(PREFIX)))


def read_facts(path: Path) -> dict[str, JobFacts]:
    """Return the facts in a CSV table by the name of the job: ``name,iterations`` and further fields, a row a name.

    Raises
    ------
    InputError
        The file or a row cannot be used.
    """
    return readable(path, "a table of jobs' facts", _table)


def _table(path: Path) -> dict[str, JobFacts]:
    optional = [field.name for field in fields(JobFacts) if field.name != "iterations"]
    table: dict[str, JobFacts] = {}
    for where, row in csv_rows(path, ["name", "iterations"], optional):
        name = row.pop("name")
        if not name or name in table:
            raise InputError(f"{where}: name is {abbreviated(name)}; expected a job's name, once")
        pairs = [(key, value) for key, value in row.items() if value]
        table[name] = located(where, lambda: made_of_pairs(_LABEL, JobFacts, pairs))  # noqa: B023
    return table


def _text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.12g}"


@dataclass(frozen=True, kw_only=True)
class AgentSettings(Checked, who="slurm-agent"):
    """What an agent does, and what it may touch.

    Parameters
    ----------
    partition
        Only jobs of this one.
    user
        Only jobs of this user; None for those of everybody, which takes an operator's rights.
    policies
        Who decides: the names of :class:`~ddlsched.real.slurm.board.Board`.
    facts
        Facts of jobs by name, for those whose comment has none.
    every_s
        Seconds from one look at Slurm to the next; looks are at multiples of it by the clock.
    start_s
        A job that Slurm does not start within so many seconds of its release is held again.
    give_up_s
        For how long Slurm may be out of reach, seconds.
    dry_run
        Decide, and do nothing.
    """

    partition: str
    user: str | None
    policies: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, JobFacts] = field(default_factory=dict)
    every_s: float = ranged(1.0, 0.0, 1e7, above=True)
    start_s: float = ranged(60.0, 0.0, 1e7, above=True)
    give_up_s: float = ranged(3600.0, 0.0, 1e7, above=True)
    dry_run: bool = False


@dataclass(frozen=True)
class AgentEvent:
    """What an agent did: ``start``, ``stop``, ``end``, ``take back``, ``take apart``, ``refuse``, ``fail``."""

    time_s: float
    what: str
    job_id: int
    detail: str
