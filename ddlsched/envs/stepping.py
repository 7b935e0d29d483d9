"""A simulation that is stepped: it stands still wherever its policy needs a decision from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import greenlet

from ddlsched.results.result import Result

__all__ = ["Ask", "Decision", "Stepped"]


class Decision(NamedTuple):
    """What has to be decided now.

    Attributes
    ----------
    now_s
        Simulated time, seconds.
    observation
        Of the environment's observation space, without the mask.
    mask
        Which actions are allowed, at least one of them.
    """

    now_s: float
    observation: dict[str, Any]
    mask: Any


Ask = Callable[[Decision], int]
"""What a policy calls to have something decided: from the decision to the action."""

Asked = TypeVar("Asked")
"""What a simulation stands still with."""


class Stepped(Generic[Asked]):
    """A simulation in a greenlet of its own, so that a policy deep in the engine can wait for an answer.

    Parameters
    ----------
    run
        Simulates, with policies that call what they are given for each decision.
    """

    def __init__(self, run: Callable[[Callable[[Asked], int]], Result]) -> None:
        self._outside = greenlet.getcurrent()
        self._inside = greenlet.greenlet(lambda: run(self._outside.switch))

    def advance(self, action: int | None = None) -> Asked | Result:
        """Go on to the next decision, or to the end; ``action`` is the answer to the last one, None at the start.

        Raises
        ------
        DdlschedError
            As :func:`ddlsched.simulate`.
        """
        self._outside = greenlet.getcurrent()
        found: Asked | Result = self._inside.switch() if action is None else self._inside.switch(action)
        return found

    def close(self) -> None:
        """End a simulation that stands still; what it has done is lost."""
        if self._inside and not self._inside.dead:
            self._inside.throw(greenlet.GreenletExit)
