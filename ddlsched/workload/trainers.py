"""A malleable job as an allocator of idle nodes decides on it: sizes, rates, what a change costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ddlsched.errors import InputError
from ddlsched.ranges import check_arguments, check_fields, ranged

_BOUNDS_S = np.concatenate([[0.0], np.geomspace(15.0, 30 * 86_400.0, 96)])
_FIRST_S = 1800.0


class Survival:
    """Kaplan and Meier's estimate over bins of age, learnt from stays that have ended.

    Stays that have not ended do not count: seen long enough, that hardly matters, as most are short. Before any is
    known, every node is thought to stay for half an hour more, whatever its age; this counts as five stays.

    References
    ----------
    Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 1958.
    """

    def __init__(self) -> None:
        survives = np.exp(-_BOUNDS_S / _FIRST_S)
        self._ended = 5.0 * -np.diff(survives, append=0.0)
        self._stale = True

    def saw(self, stay_s: float) -> None:
        """Take note of a stay that ended after so long."""
        self._ended[np.searchsorted(_BOUNDS_S, stay_s, side="right") - 1] += 1.0
        self._stale = True

    def survives(self, age_s: float) -> float:
        """Return the share of stays that last longer than ``age_s``."""
        self._refresh()
        return float(np.interp(age_s, _BOUNDS_S, self._beyond))

    def useful_s(self, age_s: float, horizon_s: float) -> float:
        """Return the mean of min(further stay, ``horizon_s``) of nodes that have been there for ``age_s``."""
        self._refresh()
        age_s = min(age_s, _BOUNDS_S[-2])
        from_age, at_horizon = np.interp([age_s, age_s + horizon_s], _BOUNDS_S, self._area)
        return float(at_horizon - from_age) / max(self.survives(age_s), 1e-12)

    def _refresh(self) -> None:
        if self._stale:
            ended = self._ended[::-1].cumsum()[::-1]
            self._beyond = ended / ended[0]
            steps = np.diff(_BOUNDS_S) * (self._beyond[1:] + self._beyond[:-1]) / 2
            self._area = np.append(0.0, steps.cumsum())
            self._stale = False


Numbers: TypeAlias = "npt.NDArray[np.float64]"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trainer:
    """What is known of a job when nodes are shared out.

    Parameters
    ----------
    nodes
        How many it has now; 0 while it is queued or stopped.
    rates
        Samples/s at 0, 1, ..., most nodes; the first is 0. What is believed of them, not necessarily the truth.
    min_nodes
        Fewest nodes on which it runs.
    scale_up_s, scale_down_s
        For how long a change of its size keeps it from training, seconds.
    least, most
        Bounds of what it may be given now: ``least=1`` for a job that must not be stopped, both the same for
        one that is pinned to a size, ``most=0`` for one that has to wait.

    Raises
    ------
    InputError
        A value out of range.
    """

    nodes: int
    rates: Numbers
    min_nodes: int = 1
    scale_up_s: float = ranged(0.0, 0.0)
    scale_down_s: float = ranged(0.0, 0.0)
    least: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if self.rates.ndim != 1 or len(self.rates) < 2 or self.rates[0] != 0 or not np.isfinite(self.rates).all():
            raise InputError(f"trainer: rates are {self.rates}; expected samples/s from 0 nodes (0) to its most")
        check_arguments("trainer", nodes=(self.nodes, 0, self.max_nodes), min_nodes=(self.min_nodes, 1, self.max_nodes))
        check_fields(self, "trainer")

    @property
    def max_nodes(self) -> int:
        """Most nodes on which it runs."""
        return len(self.rates) - 1

    @property
    def rate(self) -> float:
        """Its rate now, samples/s."""
        return float(self.rates[self.nodes])

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which of the sizes 0, 1, ..., most nodes it may be given now."""
        sizes = np.arange(len(self.rates))
        runs = (sizes == 0) | (sizes >= self.min_nodes)
        most = self.max_nodes if self.most is None else self.most
        return np.asarray(runs & (sizes >= self.least) & (sizes <= most))


@runtime_checkable
class NodeAllocator(Protocol):
    """Shares interchangeable nodes out among trainers; without a clock, so that it serves live managers too."""

    def counts(self, trainers: Sequence[Trainer], num_nodes: int) -> list[int]:
        """Return how many nodes each trainer is to have; together at most ``num_nodes``."""


def gains(trainer: Trainer, lookahead_s: float) -> Numbers:
    """Return the objective's term of a trainer at 0, 1, ..., most nodes; -inf where it may not be.

    It is T_fwd O(n) - r (R_up [n > C] + R_dw [n < C]), samples: what it trains within the look-ahead, less what it
    would have trained at its rate of now in the time that the change takes.

    References
    ----------
    Liu et al., arXiv 2106.12091 (BFTrainer), equation of the objective; arXiv 2404.15668 (MalleTrain).
    """
    sizes = np.arange(len(trainer.rates))
    change_s = np.where(sizes > trainer.nodes, trainer.scale_up_s, 0.0)
    change_s[: trainer.nodes] = trainer.scale_down_s
    return np.where(trainer.allowed(), lookahead_s * trainer.rates - trainer.rate * change_s, -np.inf)


def objective(trainers: Sequence[Trainer], counts: Sequence[int], lookahead_s: float) -> float:
    """Return the sum of the trainers' gains at the given sizes, samples."""
    return float(sum(gains(trainer, lookahead_s)[n] for trainer, n in zip(trainers, counts, strict=True)))


def rates_at(points: Sequence[tuple[int, float]], max_nodes: int) -> Numbers:
    """Return rates at 0, 1, ..., ``max_nodes``: linear between measured (nodes, samples/s), from (0, 0)."""
    sizes, rates = zip(*sorted({(0, 0.0), *points}), strict=True)
    return np.asarray(np.interp(np.arange(max_nodes + 1), sizes, rates), np.float64)
