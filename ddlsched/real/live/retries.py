"""When something that failed is tried again: after 1, 2, 4, ... 60 s, until these pauses are an hour in all."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Retries"]

_MOST_S = 60.0


@dataclass
class Retries:
    """The tries of things that have names.

    Parameters
    ----------
    give_up_s
        The pauses after which a thing may go on failing, in all, seconds. Time for which nobody tried, as a job had no
        node, does not count.
    first_s
        The first pause, seconds.
    """

    give_up_s: float = 3600.0
    first_s: float = 1.0
    _paused_s: dict[str, float] = field(default_factory=dict)
    _pause_s: dict[str, float] = field(default_factory=dict)
    _next_s: dict[str, float] = field(default_factory=dict)

    def failed(self, name: str, now_s: float) -> float | None:
        """Note that a thing failed; return the pause until it may be tried again, seconds, or None to give it up."""
        paused_s = self._paused_s.get(name, 0.0)
        if paused_s > self.give_up_s:
            return None
        self._pause_s[name] = min(2 * self._pause_s.get(name, self.first_s / 2), _MOST_S)
        self._paused_s[name] = paused_s + self._pause_s[name]
        self._next_s[name] = now_s + self._pause_s[name]
        return self._pause_s[name]

    def succeeded(self, name: str) -> None:
        """Forget that a thing has failed."""
        for times in (self._paused_s, self._pause_s, self._next_s):
            times.pop(name, None)

    def take_due(self, now_s: float) -> bool:
        """Let those things be tried again whose pause is over; return whether there are any."""
        due = [name for name, next_s in self._next_s.items() if next_s <= now_s]
        for name in due:
            del self._next_s[name]
        return bool(due)

    def must_wait(self, name: str) -> bool:
        """Return whether a thing failed, and is not to be tried again yet."""
        return name in self._next_s
