"""What goes wrong in a run: compute times that jitter, GPUs that are slow, servers that fail, lengths misjudged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf, log
from pathlib import Path
from typing import TypeVar, cast

from ddlsched.cluster.capacity_changes import CapacityChange, DrawnChanges, FailurePlaces, Strike
from ddlsched.cluster.failure_causes import FailureCause, read_causes
from ddlsched.cluster.reliability_doors import CheckpointPolicy, CheckpointStore, HealthPolicy, RecoveryPolicy
from ddlsched.deferred import np
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.io.tables import cell_time_s, cell_whole, csv_rows, located, readable
from ddlsched.plugins.names import resolve
from ddlsched.ranges import LAST_S, check_fields, ranged
from ddlsched.units import MAX_NS, bytes_from_mb, is_whole, ns_from_s

T = TypeVar("T")
JITTER_VALUES = 4096
MAX_SLOWDOWN = 1e6


@dataclass(frozen=True, kw_only=True)
class Outage:
    """A server that is down from one time to another, seconds; ``to_s`` may be infinite."""

    server: int
    from_s: float
    to_s: float = inf

    def __post_init__(self) -> None:
        if not is_whole(self.server, 0):
            raise InputError(f"outage: server is {self.server!r}; expected a server's number, from 0")
        if not 0 <= self.from_s <= LAST_S or not ns_from_s(self.from_s) < end_ns(self.to_s):
            raise InputError(f"outage: from {self.from_s} to {self.to_s} s; expected 0 <= from_s < to_s")


def end_ns(to_s: float) -> int:
    """Return when what ends at a time, perhaps never, ends, nanoseconds."""
    return ns_from_s(to_s) if to_s <= LAST_S else MAX_NS


# Its docstring is also the help of the command line (ddlsched/cli/dataclass_options.py).
@says_unknown_arguments
@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """What goes wrong in a run, by default nothing, and what going on costs. All of it follows from the run's seed.

    A job that has a GPU on a server that fails loses all its GPUs and the work since its last checkpoint, and
    goes back to the queue.

    Parameters
    ----------
    jitter_cv
        Coefficient of variation of every compute task's time on each worker, e.g. 0.1; log-normal with the job's
        time as its mean.
    straggler_share
        Probability of each GPU to be slow for the whole run.
    straggler_slowdown
        How many times as long a slow GPU takes.
    server_mtbf_s
        Mean time of a server from repair to failure, seconds, exponentially distributed; by default none fails.
    server_repair_s
        Mean time of a server from failure to repair, seconds, exponentially distributed.
    failures
        Why servers and jobs fail: a published table by its name (acme, llama3-16k, rsc-1, rsc-2), or CSV with the
        columns cause, per, per_1000_days and optionally others (docs/workloads.md); in Python also objects of
        :class:`~ddlsched.cluster.failure_causes.FailureCause`.
    outages
        When which server is down, in place of random failures: CSV with the columns server, from_s, to_s; in Python
        also objects of :class:`Outage`.
    checkpoint_iterations
        After how many iterations a job's work is safe from failures.
    checkpoint
        In place of that, when a job saves its state at a cost: ``young``, ``daly``, ``fixed:every_s=1800``.
    checkpoint_to
        Where it goes: ``disk:gb_per_s=2``, ``peer``, ``storage:servers=2``, each also with ``background_share=0.05``;
        in Python also a :class:`~ddlsched.cluster.reliability_doors.CheckpointStore`.
    recovery
        How a job goes on that lost a server: ``wait``, ``spares:count=2``, ``shrink``; by default it joins the queue.
    health
        Which servers are taken for lemons and replaced, and how often jobs are checked: ``repeated-failures:count=3``.
    restart_s
        Time for which a job holds its GPUs before it goes on after a failure, a stop or a move, seconds.
    restart_gpu_s
        Further such time for each of the job's GPUs, seconds: start-up grows with the number of ranks.
    restart_iterations
        Further such time: the compute of so many iterations, lost to warm-up; not of elastic jobs.
    state_mb
        What each of a job's GPUs saves in a checkpoint, and a job that a policy stopped or moves takes along from it to
        other servers, MB (1e6 B); 0 is nothing, by default it is a part of the memory that the job takes there.
    state_share
        Which part of that memory, where ``state_mb`` is not given.
    prediction_error
        Policies take each job for so many times as long as it is: the exponential of a normal number with mean 0 and
        this standard deviation, drawn once a job; 0.3 is a good predictor, 1.0 a poor one. A job that outlasts its
        prediction is taken to end with the iteration under way.
    """

    jitter_cv: float = ranged(0.0, 0.0, 10.0)
    straggler_share: float = ranged(0.0, 0.0, 1.0)
    straggler_slowdown: float = ranged(2.0, 1.0, MAX_SLOWDOWN)
    server_mtbf_s: float | None = ranged(None, 1e-3, LAST_S)
    server_repair_s: float = ranged(3600.0, 1e-3, LAST_S)
    failures: tuple[FailureCause, ...] | str = ()
    outages: tuple[Outage, ...] | str = ()
    checkpoint_iterations: int = ranged(1, 1)
    checkpoint: CheckpointPolicy | str | None = None
    checkpoint_to: CheckpointStore | str = "disk"
    recovery: RecoveryPolicy | str | None = None
    health: HealthPolicy | str | None = None
    restart_s: float = ranged(0.0, 0.0, LAST_S)
    restart_gpu_s: float = ranged(0.0, 0.0, LAST_S)
    restart_iterations: float = ranged(0.0, 0.0, 1000.0)
    state_mb: float | None = ranged(None, 0.0, MAX_NS / 1e6)
    state_share: float = ranged(1.0, 0.0, 1.0)
    prediction_error: float = ranged(0.0, 0.0, 10.0)

    def __post_init__(self) -> None:
        check_fields(self, "disturbances")
        outages = _given("outages", self.outages, Outage, "file", read_outages)
        failures = _given("failures", self.failures, FailureCause, "table", read_causes)
        given = {"failures": failures, "outages": outages, "server_mtbf_s": self.server_mtbf_s}
        if len(told := [name for name, value in given.items() if value]) > 1:
            raise InputError(f"disturbances: both {' and '.join(told)} are given; expected one of them")
        _refuse_overlap(outages)
        if self.state_mb is not None and self.state_share != 1.0:
            raise InputError("disturbances: both state_mb and state_share are given; expected one of them")
        object.__setattr__(self, "outages", outages)
        object.__setattr__(self, "failures", failures)
        self._check_doors()

    def _check_doors(self) -> None:
        """Refuse doors that are none, or that do not go together."""
        health, store = self.health_policy, self.checkpoint_store
        if self.recovery is not None:
            resolve("recovery", self.recovery)
        if self.checkpoint_policy is not None and self.checkpoint_iterations != 1:
            raise InputError("disturbances: checkpoint and checkpoint_iterations are given; expected one of them")
        checks = health is not None and health.check_s < inf and not any(cause.slows for cause in self.causes)
        if self.checkpoint is None and (store != CheckpointStore() or checks):
            raise InputError(
                "disturbances: checkpoint_to needs checkpoints, check_s these or slow GPUs; expected checkpoint as well"
            )

    @property
    def checkpoint_policy(self) -> CheckpointPolicy | None:
        """When jobs save their state, if they do at a cost."""
        return None if self.checkpoint is None else resolve("checkpoint", self.checkpoint)

    @property
    def checkpoint_store(self) -> CheckpointStore:
        """Where their state goes."""
        return CheckpointStore.of(self.checkpoint_to)

    @property
    def health_policy(self) -> HealthPolicy | None:
        """Who finds lemons, and what nobody notices."""
        return None if self.health is None else resolve("health", self.health)

    @property
    def servers_fail(self) -> bool:
        """Whether any server may."""
        return bool(self.causes) or bool(self.outages)

    @property
    def causes(self) -> tuple[FailureCause, ...]:
        """Why something fails at random, if anything does."""
        if self.server_mtbf_s is None:
            return cast("tuple[FailureCause, ...]", self.failures)
        only = FailureCause(cause="server", per="server", mtbf_s=self.server_mtbf_s, repair_s=self.server_repair_s)
        return (only,)

    @property
    def draws(self) -> bool:
        """Whether anything of it depends on the run's seed."""
        lasting = self.jitter_cv > 0 or self.straggler_share > 0 or self.prediction_error > 0
        return lasting or bool(self.causes)

    def restart_ns(self, num_gpus: int, iteration_ns: int) -> int:
        """Return for how long a job of so many GPUs, and such compute an iteration, holds them at a start again, ns."""
        return ns_from_s(self.restart_s + self.restart_gpu_s * num_gpus) + round(self.restart_iterations * iteration_ns)

    @property
    def moves_state(self) -> bool:
        """Whether a job that goes on elsewhere takes anything along."""
        return self.state_share > 0 if self.state_mb is None else self.state_mb > 0

    def state_bytes(self, gpu_memory_bytes: int) -> int:
        """Return what one worker takes along that has so much of its GPU's memory, bytes."""
        if self.state_mb is not None:
            return bytes_from_mb(self.state_mb)
        return gpu_memory_bytes if self.state_share == 1 else round(gpu_memory_bytes * self.state_share)

    def capacity_changes(
        self, places: FailurePlaces, rng: np.random.Generator, replaced: Collection[int] = ()
    ) -> Iterator[CapacityChange | Strike]:
        """Return what fails and comes back, in order of time; endless for random failures.

        Servers that are ``replaced`` when they would fail are no lemons any more.

        Raises
        ------
        InputError
            An outage of a server that the cluster does not have.
        """
        outages, health = cast("tuple[Outage, ...]", self.outages), self.health_policy
        for outage in outages:
            if outage.server >= places.num_servers:
                last = places.num_servers - 1
                raise InputError(f"outage of server {outage.server}: the cluster's servers are 0 to {last}")
        if self.causes:
            check_ns = end_ns(inf if health is None else health.check_s)
            return DrawnChanges(self.causes, places, rng, replaced, check_ns).changes()
        return iter(sorted(change for outage in outages for change in _changes_of(outage)))

    def misjudged_iterations(self, iterations: np.ndarray, most: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return by how many iterations jobs are taken for longer than they are (int64; below 0 for shorter).

        Parameters
        ----------
        iterations, most
            Of each job, those that it has, and the most that it may be taken to have.
        rng
            Draws a number a job, in the order of the workload.
        """
        factors = np.exp(self.prediction_error * rng.standard_normal(len(iterations)))
        predicted = np.clip(np.rint(iterations * factors), 1.0, np.maximum(most / 2, 1.0))
        misjudged: np.ndarray = predicted.astype(np.int64) - iterations
        return misjudged

    def slowdowns(self, num_gpus: int, rng: np.random.Generator) -> np.ndarray:
        """Return how many times as long each GPU takes for every task (float64)."""
        return np.where(rng.random(num_gpus) < self.straggler_share, float(self.straggler_slowdown), 1.0)


def _given(name: str, given: object, kind: type[T], file: str, read: Callable[[str], tuple[T, ...]]) -> tuple[T, ...]:
    """Return what was given as objects of a kind, or as the name of a file or table that is read."""
    if isinstance(given, str | Path):
        return read(str(given))
    if not isinstance(given, list | tuple) or not all(isinstance(each, kind) for each in given):
        expected = f"{kind.__name__} objects, or a {file}'s name"
        raise InputError(f"disturbances: {name} is {given!r}; expected {expected}")
    return tuple(given)


def overlap(stays: Iterable[tuple[int, float, float]]) -> tuple[tuple[int, float, float], ...]:
    """Return the first two (server, from, to) of a server of which the second begins before the first ends, or none."""
    pairs = pairwise(sorted(stays))
    return next((pair for pair in pairs if pair[0][0] == pair[1][0] and pair[1][1] < pair[0][2]), ())


def _refuse_overlap(outages: tuple[Outage, ...]) -> None:
    if pair := overlap((outage.server, outage.from_s, outage.to_s) for outage in outages):
        (server, from_s, to_s), (_, again_s, _) = pair
        raise InputError(
            f"outages: server {server} is down from {from_s} to {to_s} s and again from {again_s} s; expected outages "
            "of a server that do not overlap"
        )


def _changes_of(outage: Outage) -> Iterator[CapacityChange]:
    yield CapacityChange(ns_from_s(outage.from_s), True, outage.server)
    if end_ns(outage.to_s) < MAX_NS:
        yield CapacityChange(end_ns(outage.to_s), False, outage.server)


def jitter_factors(cv: float) -> np.ndarray:
    """Return equally likely factors of a compute time: a log-normal's quantiles, of mean 1 and nearly this CV.

    A table makes the same factors everywhere, whatever the machine's logarithm. Its tail ends at the 0.9999
    quantile, so its CV is a little below ``cv`` (at 0.1: 0.09998, at 0.5: 0.4995).
    """
    from scipy.special import ndtri

    sigma = log(1 + cv * cv) ** 0.5
    factors = np.exp(sigma * ndtri((np.arange(JITTER_VALUES) + 0.5) / JITTER_VALUES))
    scaled: np.ndarray = factors / factors.mean()
    return scaled


def jitter_remark(cv: float) -> str | None:
    """Return what jitter does to most tasks if it is so wide that its coefficient of variation does not tell."""
    if cv <= 1.0:
        return None

    factors = jitter_factors(cv)
    return (
        f"Jitter: half of the compute tasks take less than {np.median(factors):.2f} of the job's time; tails are cut, "
        f"so that the coefficient of variation is {factors.std():.1f}."
    )


def read_outages(path: str | Path) -> tuple[Outage, ...]:
    """Read a CSV table of outages with the columns server, from_s, to_s (empty: to the end of the run).

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    return readable(Path(path), "a table of outages (CSV)", _read)


def _read(path: Path) -> tuple[Outage, ...]:
    outages = []
    for where, row in csv_rows(path, ("server", "from_s", "to_s"), ()):
        server = cell_whole(where, "server", row["server"], at_least=0)
        from_s = cell_time_s(where, "from_s", row["from_s"])
        to_s = cell_time_s(where, "to_s", row["to_s"]) if row["to_s"] else inf
        outages.append(located(where, lambda: Outage(server=server, from_s=from_s, to_s=to_s)))  # noqa: B023
    located(str(path), lambda: _refuse_overlap(tuple(outages)))
    return tuple(outages)
