"""Measured times of concurrent all-reduces: taken by the agents of all hosts, in a CSV table, and what they reach."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlsched.deferred import pd
from ddlsched.errors import FaultyInputError, InputError, MeasurementError
from ddlsched.io.tables import Row, cell_number, cell_whole, check_columns, csv_rows, readable
from ddlsched.real.calibration.agent import ITEM_BYTES, MAX_HOSTS, MAX_JOBS, MAX_REPEATS, STALL_S
from ddlsched.real.channel import Address, Channel, connect
from ddlsched.units import MAX_MESSAGE_BYTES, is_whole

COLUMNS = ("concurrent_jobs", "message_bytes", "transfer_s")
MICROSECONDS = "mean_latency_us"
"""What published measurements have in place of ``transfer_s``."""
OPTIONAL = ("servers", "repeat")
MAX_CONCURRENT = 1_000_000
_MAX_S = 1e6
_MOST = {"message_bytes": MAX_MESSAGE_BYTES, COLUMNS[2]: _MAX_S, MICROSECONDS: _MAX_S * 1e6}
"""Of the columns whose numbers are above 0."""
_LEAST = {"concurrent_jobs": 1, "servers": 2}
"""Of the columns whose numbers are whole."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Times of all-reduces, a row a measurement.

    Parameters
    ----------
    jobs
        All-reduces that shared the network, each with a ring over the same servers; 1 is alone.
    message_bytes
        Size of each of them.
    seconds
        Mean time of one of them.
    servers
        Servers of the rings; None if it was not said.
    """

    jobs: np.ndarray
    message_bytes: np.ndarray
    seconds: np.ndarray
    servers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def all_alone(self) -> bool:
        """Whether no two all-reduces shared the network in any row, so that no row tells a penalty."""
        return bool((self.jobs == 1).all())

    def rows(self, chosen: np.ndarray) -> Measurements:
        """Return some of the rows, by a mask or by numbers."""
        servers = None if self.servers is None else self.servers[chosen]
        return Measurements(self.jobs[chosen], self.message_bytes[chosen], self.seconds[chosen], servers)

    @property
    def settings(self) -> np.ndarray:
        """Number of each row's setting: rows alike in all but time repeat one measurement."""
        keys = [self.jobs, self.message_bytes] + ([] if self.servers is None else [self.servers])
        return np.unique(np.column_stack(keys), axis=0, return_inverse=True)[1].reshape(-1)


def read_measurements(path: Path) -> Measurements:
    """Read a CSV file with the columns ``concurrent_jobs, message_bytes, transfer_s`` and perhaps ``servers, repeat``.

    ``mean_latency_us`` (microseconds) may stand in place of ``transfer_s`` (seconds).

    Raises
    ------
    FaultyInputError
        Rows that cannot be used, all of them, each with its row, column, value and what was expected.
    InputError
        The file cannot be read, or holds no rows.
    """
    return readable(path, "measurements (.csv)", _read)


def _read(path: Path) -> Measurements:
    faults: list[str] = []
    parsed = [values for row in _rows(path, faults) if (values := _parsed(row, faults)) is not None]
    if faults:
        raise FaultyInputError(faults)
    if not parsed:
        raise InputError(f"{path}: holds no rows; expected measurements in the columns {', '.join(COLUMNS)}")
    jobs, sizes, seconds, servers = np.array(parsed, np.float64).T
    return Measurements(jobs, sizes, seconds, None if np.isnan(servers).any() else servers)


def _rows(path: Path, faults: list[str]) -> Iterable[Row]:
    rows = list(csv_rows(path, COLUMNS[:2], (COLUMNS[2], MICROSECONDS, *OPTIONAL), faults=faults))
    if rows and sum(name in rows[0][1] for name in (*COLUMNS, MICROSECONDS)) != len(COLUMNS):
        header = [name for name in rows[0][1] if name != MICROSECONDS]
        check_columns(path, header, COLUMNS, OPTIONAL)
        raise InputError(f"{path}: has both {COLUMNS[2]!r} and {MICROSECONDS!r}; expected one of them")
    return rows


def _parsed(row: Row, faults: list[str]) -> tuple[float, float, float, float] | None:
    """Return jobs, bytes, seconds and servers (or NaN) of a row; every cell that is none is added to the faults."""
    column, unit_s = (COLUMNS[2], 1.0) if COLUMNS[2] in row[1] else (MICROSECONDS, 1e-6)
    found = {"servers": float("nan")}
    before = len(faults)
    for name in (*COLUMNS[:2], column, *(("servers",) if "servers" in row[1] else ())):
        try:
            found[name] = cell(row, name)
        except InputError as fault:
            faults.append(str(fault))
    if len(faults) > before:
        return None
    return found["concurrent_jobs"], found["message_bytes"], unit_s * found[column], found["servers"]


def cell(row: Row, name: str) -> float:
    """Return a number in a table of measurements: whole ones of jobs and servers, and bytes and times above 0."""
    where, cells = row
    if name in _LEAST:
        return float(cell_whole(where, name, cells[name], MAX_CONCURRENT, _LEAST[name]))
    return cell_number(where, name, cells[name], at_most=_MOST.get(name, np.inf), positive=name in _MOST)


@dataclass(frozen=True)
class Reach:
    """The smallest and largest that was measured, of messages (bytes), rings (servers) and all-reduces at a time.

    ``servers`` is None if it was not said.
    """

    message_bytes: tuple[float, float]
    servers: tuple[int, int] | None
    jobs: tuple[int, int]

    @classmethod
    def of(cls, rows: Measurements) -> Reach:
        """Return what measured rows reach."""
        servers = None if rows.servers is None else (int(rows.servers.min()), int(rows.servers.max()))
        sizes = float(rows.message_bytes.min()), float(rows.message_bytes.max())
        return cls(sizes, servers, (int(rows.jobs.min()), int(rows.jobs.max())))

    def __str__(self) -> str:
        """Return it in words."""
        least_mb, most_mb = (size / 1e6 for size in self.message_bytes)
        rings = "" if self.servers is None else f", rings of {_span(*self.servers)} servers"
        return f"messages of {_span(least_mb, most_mb)} MB{rings}, {_span(*self.jobs)} at a time"

    def beyond(self, jobs: Sequence[tuple[Sequence[float], int]]) -> list[str]:
        """Return a line for messages, and one for rings, if some jobs have such as were not measured.

        Parameters
        ----------
        jobs
            Of each the sizes of its messages, bytes, and over how many servers it may reduce them.
        """
        least_mb, most_mb = (size / 1e6 for size in self.message_bytes)
        sizes_mb = [[size / 1e6 for size in sizes] for sizes, _ in jobs]
        others_mb = [own for own in sizes_mb if own and not least_mb <= min(own) <= max(own) <= most_mb]
        lines = []
        if others_mb:
            span = _span(min(map(min, others_mb)), max(map(max, others_mb)))
            measured = _span(least_mb, most_mb)
            lines.append(f"{len(others_mb)} of {len(jobs)} jobs reduce {span} MB; measured were {measured} MB")
        if self.servers is not None:
            wide = [servers for _, servers in jobs if not self.servers[0] <= servers <= self.servers[1]]
            if wide:
                rings = f"rings of {_span(min(wide), max(wide))} servers"
                lines.append(f"{len(wide)} of {len(jobs)} jobs may have {rings}; measured were {_span(*self.servers)}")
        return lines


def _span(least: float, most: float) -> str:
    """Return numbers, or sizes in MB, in words; sizes that are not whole are cut to three digits."""
    ends = [f"{end:.0f}" if end == round(end) else f"{end:.3g}" for end in (least, most)]
    return " to ".join(dict.fromkeys(ends))


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
    table = pd.DataFrame(rows).sort_values(["concurrent_jobs", "message_bytes", "repeat"], kind="stable")
    table.to_csv(path, index=False, float_format="%.9g", lineterminator="\n")


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
