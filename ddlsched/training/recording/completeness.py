"""Whether a recorder sees every collective of a step: one step is profiled, and its collectives are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile

from ddlsched.errors import InputError
from ddlsched.training.recorded.collective_names import GLOO

__all__ = ["ProfiledStep", "refuse_unseen"]

_PREFIX = "c10d::"
_KINDS = {name: kind for name, (kind, _, _) in GLOO.items()} | {"c10d::reduce_scatter_": "reduce-scatter"}


class ProfiledStep:
    """A step under PyTorch's profiler."""

    def __init__(self) -> None:
        self._profile: Any = profile(activities=[ProfilerActivity.CPU])
        try:
            self._profile.start()
        except RuntimeError:  # The script profiles itself, and one profiler at a time is all there can be.
            self._profile = None

    def collectives(self) -> list[str]:
        """End profiling, and return the operators of collectives that were called; none if it was not possible."""
        if self._profile is None:
            return []
        self._profile.stop()
        return [event.name for event in self._profile.events() if event.name.startswith(_PREFIX)]


def refuse_unseen(called: Iterable[str], seen: Iterable[str], *, flags: int) -> None:
    """Compare the collectives of a step.

    Parameters
    ----------
    called
        Operators that the profiler saw.
    seen
        Kinds of those that were recorded.
    flags
        All-reduces of find_unused_parameters, which are known not to be seen.

    Raises
    ------
    InputError
        Some were not recorded.
    """
    recorded = Counter(seen)
    names: dict[str, set[str]] = {}
    profiled: Counter[str] = Counter()
    for name in called:
        kind = _KINDS.get(name, name)
        kind = "send" if kind == "receive" else kind
        profiled[kind] += 1
        names.setdefault(kind, set()).add(name)
    recorded["all-reduce"] += flags
    # A call that broadcasts many buffers is one or several operators.
    unseen = {kind: count for kind, count in profiled.items() if recorded[kind] < (1 if kind == "broadcast" else count)}
    if unseen:
        shown = ", ".join(
            f"{', '.join(sorted(names[kind]))} ({count}, {recorded[kind]} seen)" for kind, count in unseen.items()
        )
        raise InputError(
            f"record: collectives that go past the functions of torch.distributed are not seen: {shown}; expected none "
            "(DTensor and functional collectives): trace the script with torch.profiler, and import the trace"
        )
