"""Why servers and jobs fail: a table by cause, of the user's or published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gamma, inf
from pathlib import Path

from ddlsched.errors import InputError, did_you_mean
from ddlsched.io.tables import cell_number, cell_time_s, cell_whole, csv_rows, located, readable
from ddlsched.ranges import LAST_S, check_fields, ranged
from ddlsched.units import ns_from_s

_TABLES = Path(__file__).parent / "failure_tables"
PRESETS = tuple(sorted(path.stem for path in _TABLES.glob("*.csv")))
"""Names of published tables."""
_DAY_S = 86_400.0
_NUMBERS = ("shape", "slowdown", "lemon_share", "lemon_times")
_NEEDED = ("cause", "per", "per_1000_days")
_FURTHER = ("takes", "noticed_s", "repair_s", "warned", "least_gpus", *_NUMBERS, "source")
_WIDTH = {"job": 0, "gpu": 0, "server": 1}
"""Of what is no level of the topology; those are wider."""


@dataclass(frozen=True, kw_only=True)
class FailureCause:
    """One reason why something fails.

    Parameters
    ----------
    cause
        Its name.
    per
        What has the rate: each GPU, server (also for its cable), rack (the servers at one switch), job, or unit of
        another level of the topology, by its name, such as ``pod`` (an NVLink domain, what a switch serves).
    mtbf_s
        Mean time of one of these from repair to failure, seconds; by default 30 days.
    takes
        What goes down: the job alone, which starts again where it is; the server; the rack, or unit of a level.
    noticed_s
        Until then the jobs that it hits hang on their GPUs, seconds; infinite: nobody notices, and they go on.
    repair_s
        Mean time until what went down is back, exponentially distributed, seconds; infinite: never.
    shape
        Of a Weibull distribution of times to failure; 1 is the exponential one.
    slowdown
        Above 1: a GPU, or a server's GPUs, compute so many times as long in place of jobs that hang, until what it
        takes goes, once that is noticed or a check of ``health`` finds it, and is repaired.
    warned
        Whether jobs can save their work before, as maintenance that is announced lets them.
    least_gpus
        A cause of jobs hits those of at least so many GPUs.
    lemon_share, lemon_times
        Probability of each server to be a lemon for the whole run, and how many times the rate of the others it has;
        the mean over servers stays what ``mtbf_s`` says.
    """

    cause: str
    per: str
    mtbf_s: float = ranged(30 * 86_400.0, 1e-3, 1e18)
    takes: str = "server"
    noticed_s: float = 0.0
    repair_s: float = 3600.0
    shape: float = ranged(1.0, 0.1, 20.0)
    slowdown: float = ranged(1.0, 1.0, 1e6)
    warned: bool = False
    least_gpus: int = ranged(1, 1)
    lemon_share: float = ranged(0.0, 0.0, 1.0)
    lemon_times: float = ranged(1.0, 1.0, 1e6)

    def __post_init__(self) -> None:
        who = f"failures, cause {self.cause!r}"
        if not isinstance(self.cause, str) or not self.cause.strip():
            raise InputError(f"{who}: is no name; expected a text")
        check_fields(self, who)
        for name in ("noticed_s", "repair_s"):
            value = getattr(self, name)
            if not isinstance(value, float | int) or not (0 <= value <= LAST_S or value == inf):
                raise InputError(f"{who}: {name} is {value!r}; expected seconds from 0, or never")
        if self.takes == "gpu" or (self.takes != "job" and _width(self.takes) < _width(self.per)):
            raise InputError(f"{who}: takes is {self.takes!r}; expected job, or no less than a {self.per}")
        if self.per == "job" and self.takes != "job":
            raise InputError(f"{who}: takes is {self.takes!r}, but it is a cause of jobs; expected job")
        if self.warned and self.hangs:
            raise InputError(f"{who}: is warned of, so it takes a server or rack at once; expected noticed_s 0")
        if self.slows and (self.per not in ("gpu", "server") or self.takes == "job" or not self.noticed_s > 0):
            raise InputError(
                f"{who}: slowdown is {self.slowdown}; expected it per gpu or server, noticed_s above 0, takes no job"
            )
        if self.least_gpus > 1 and self.per != "job":
            raise InputError(f"{who}: least_gpus is {self.least_gpus}; expected it of causes of jobs only")

    @property
    def hangs(self) -> bool:
        """Whether it hits jobs before, or without, that a server goes down."""
        return self.noticed_s > 0 or self.takes == "job"

    @property
    def slows(self) -> bool:
        """Whether it hits jobs by slow GPUs alone."""
        return self.slowdown > 1

    @property
    def noticed_ns(self) -> int | None:
        """Until when jobs hang, nanoseconds from the failure; None: nobody notices."""
        return None if self.noticed_s == inf else ns_from_s(self.noticed_s)

    @property
    def scale_s(self) -> float:
        """The scale of the Weibull distribution whose mean is ``mtbf_s``."""
        return self.mtbf_s if self.shape == 1 else self.mtbf_s / gamma(1 + 1 / self.shape)


def _width(thing: str) -> int:
    return _WIDTH.get(thing, 2)


def failures_per_s(causes: Iterable[FailureCause], num_gpus: int, num_servers: int) -> float:
    """Return how often a job of so many GPUs on so many servers of one unit is hit without a warning, per second."""
    things = {"gpu": num_gpus, "server": num_servers}
    return sum(
        things.get(cause.per, 1) / cause.mtbf_s
        for cause in causes
        if not cause.warned and cause.noticed_s < inf and (cause.per != "job" or num_gpus >= cause.least_gpus)
    )


def read_causes(given: str) -> tuple[FailureCause, ...]:
    """Return the causes of a published table, by its name, or of a CSV file.

    Columns: cause, per, per_1000_days (failures of a thousand such things in a day); optionally takes, noticed_s (also
    ``never``), repair_s (also ``never``), shape, slowdown, warned (0, 1), least_gpus, lemon_share, lemon_times, source
    (unread).

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    path = _TABLES / f"{given}.csv" if given in PRESETS else Path(given)
    hint = did_you_mean(given, PRESETS) if not path.suffix else ""
    what = f"a table of causes (CSV), or one of {', '.join(PRESETS)}.{hint}"
    return readable(path, what, _read)


def _read(path: Path) -> tuple[FailureCause, ...]:
    causes = [_cause(where, row) for where, row in csv_rows(path, _NEEDED, _FURTHER)]
    if not causes:
        raise InputError(f"{path}: holds no causes; expected at least one")
    names = [cause.cause for cause in causes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{path}, column cause: {twice!r} occurs {names.count(twice)} times; expected once")
    return tuple(causes)


def _cause(where: str, row: dict[str, str]) -> FailureCause:
    rate = cell_number(where, "per_1000_days", row["per_1000_days"])
    if rate == 0:
        raise InputError(f"{where}, column per_1000_days: 0 is no rate; expected a number > 0, or no such row")
    per = row["per"]
    given = {
        name: inf if row[name] == "never" else cell_time_s(where, name, row[name])
        for name in ("noticed_s", "repair_s")
        if row.get(name)
    }
    given |= {name: cell_number(where, name, row[name]) for name in _NUMBERS if row.get(name)}
    if row.get("least_gpus"):
        given["least_gpus"] = cell_whole(where, "least_gpus", row["least_gpus"])
    warned = bool(row.get("warned")) and cell_whole(where, "warned", row["warned"], at_most=1, at_least=0) == 1
    takes = row.get("takes") or {"gpu": "server"}.get(per, per)
    mtbf_s = 1000 * _DAY_S / rate
    return located(
        where,
        lambda: FailureCause(cause=row["cause"], per=per, takes=takes, mtbf_s=mtbf_s, warned=warned, **given),  # type: ignore[arg-type]
    )
