"""Takes measurements: asks the agents of all hosts for rings of each size and number, and collects their times."""

from __future__ import annotations

import csv
import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.errors import InputError, MeasurementError
from ddlsched.real.calibration.agent import ITEM_BYTES, MAX_HOSTS, MAX_JOBS, MAX_REPEATS, STALL_S
from ddlsched.real.calibration.measurements import Measurements
from ddlsched.real.wire.channel import Address, Channel, connect
from ddlsched.units import is_whole

__all__ = ["MeasurePlan", "Measured", "measure", "write_measurements"]


class Measured(NamedTuple):
    """A row of what was measured."""

    concurrent_jobs: int
    message_bytes: int
    transfer_s: float
    servers: int
    repeat: int


@dataclass(frozen=True, kw_only=True)
class MeasurePlan:
    """What to measure.

    Parameters
    ----------
    hosts
        Addresses of the agents, in the order of the ring, as the agents themselves reach each other.
    jobs
        Numbers of all-reduces at a time.
    message_bytes
        Sizes; rounded down to whole float32 items.
    repeats
        Of each number and size.
    seed
        Of the order in which they are measured, so that a network that slowly changes does not look like a constant.
    """

    hosts: tuple[Address, ...]
    jobs: tuple[int, ...]
    message_bytes: tuple[int, ...]
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= len(set(self.hosts)) == len(self.hosts) <= MAX_HOSTS:
            raise InputError(f"hosts are {', '.join(map(str, self.hosts))}; expected 2 to {MAX_HOSTS}, each once")
        for name, values, at_least, at_most in (
            ("jobs", self.jobs, 1, MAX_JOBS),
            ("message_bytes", self.message_bytes, ITEM_BYTES * len(self.hosts), 2**40),
            ("repeats", (self.repeats,), 1, MAX_REPEATS),
        ):
            for value in values:
                if not is_whole(value, at_least, at_most):
                    raise InputError(f"{name} is {value}; expected whole numbers from {at_least} to {at_most}")

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Jobs and bytes of each measurement, in the order of measuring."""
        sizes = sorted({size - size % ITEM_BYTES for size in self.message_bytes})
        runs = list(itertools.product(sorted(set(self.jobs)), sizes))
        order = np.random.default_rng(self.seed).permutation(len(runs))
        return [runs[number] for number in order]

    @property
    def planned(self) -> Measurements:
        """What is to be measured, with times of 1 s."""
        return self.measurements([Measured(jobs, size, 1.0, len(self.hosts), 1) for jobs, size in self.runs])

    def measurements(self, rows: Sequence[Measured]) -> Measurements:
        """Return the rows as the fits take them."""
        jobs, sizes, seconds, servers, _ = np.array(rows, np.float64).T
        return Measurements(jobs, sizes, seconds, servers)


def measure(settings: MeasurePlan, token: bytes) -> Iterator[list[Measured]]:
    """Yield the rows of each measurement, one after the other.

    Raises
    ------
    MeasurementError
        A host cannot be reached, does not know the token, is busy, or broke off; the message names it.
    """
    with ExitStack() as stack:
        agents = [stack.enter_context(connect(host, token, {"kind": "control"})) for host in settings.hosts]
        for jobs, size in settings.runs:
            request = {"run": secrets.token_hex(16), "hosts": settings.hosts, "jobs": jobs, "message_bytes": size}
            for rank, agent in enumerate(agents):
                _tell(settings.hosts[rank], agent, {**request, "rank": rank, "repeats": settings.repeats})
            for reached, answer in (("known", "connect"), ("ready", "start")):
                _collect(settings, agents, reached)
                for host, agent in zip(settings.hosts, agents, strict=True):
                    _tell(host, agent, {"kind": answer})
            seconds = _collect(settings, agents, "done")[0]["seconds"]
            if not isinstance(seconds, list) or len(seconds) != settings.repeats:
                raise MeasurementError(
                    f"{settings.hosts[0]}: {str(seconds)[:80]} came; expected {settings.repeats} times"
                )
            yield [Measured(jobs, size, float(s), len(agents), repeat) for repeat, s in enumerate(seconds, 1)]


def write_measurements(rows: Sequence[Measured], path: Path) -> None:
    """Write rows as the CSV file that ``ddlsched calibrate`` reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Measured._fields)
        for row in sorted(rows, key=lambda row: (row.concurrent_jobs, row.message_bytes, row.repeat)):
            writer.writerow([*row[:2], f"{row.transfer_s:.9g}", *row[3:]])


def _tell(host: Address, agent: Channel, message: dict[str, Any]) -> None:
    try:
        agent.send(message)
    except MeasurementError as error:
        raise MeasurementError(f"{host}: broke off ({error})") from None


def _collect(settings: MeasurePlan, agents: Sequence[Channel], kind: str) -> list[dict[str, Any]]:
    """Return every agent's answer, which is to be of this kind."""
    answers = []
    for host, agent in zip(settings.hosts, agents, strict=True):
        try:
            answers.append(agent.next((settings.repeats + 3) * STALL_S))
        except MeasurementError as error:
            raise MeasurementError(f"{host}: broke off ({error})") from None
        if answers[-1].get("kind") != kind:
            raise MeasurementError(f"{host}: {str(answers[-1].get('message', answers[-1]))[:300]}")
    return answers
