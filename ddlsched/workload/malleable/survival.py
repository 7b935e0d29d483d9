"""For how long an idle node is likely to stay, given how long it has been there."""

from __future__ import annotations

import numpy as np

__all__ = ["Survival"]

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
