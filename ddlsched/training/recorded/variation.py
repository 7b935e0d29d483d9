"""How much the steps of a recording differ: means and quantiles of their parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from ddlsched.training.recorded.merging import RecordedIteration
from ddlsched.training.recorded.rank_steps import MarkKind

__all__ = ["variation"]

_QUANTILES = (0.05, 0.5, 0.95)


def variation(recorded: RecordedIteration) -> dict[str, Any]:
    """Return means and quantiles over steps, in seconds, of the class of the first rank.

    ``step_s`` is the time of a whole step, if the traces tell it, ``compute_s`` the compute time in it; each of the
    ``collectives`` has its bytes and when it became ready, in compute time since the step began.
    """
    kinds: Counter[str] = Counter()
    names = []
    for communication in recorded.last.communications:
        kinds[communication.kind] += 1
        names.append(f"{communication.kind}-{kinds[communication.kind]}")
    columns = list(zip(*recorded.moments_ns, strict=True))
    collectives = [
        {
            "name": names[int(mark.what)],
            "input_bytes": recorded.last.communications[int(mark.what)].input_bytes,
            "ready_s": _spread(column),
        }
        for mark, column in zip(recorded.last.marks, columns, strict=False)
        if mark.kind is MarkKind.STARTS
    ]
    step_s = _spread(recorded.wall_ns) if recorded.wall_ns else None
    return {"step_s": step_s, "compute_s": _spread(columns[-1]), "collectives": collectives}


def _spread(times_ns: Sequence[int]) -> dict[str, float]:
    ordered = sorted(times_ns)
    found = {"mean": fmean(ordered) / 1e9}
    for quantile in _QUANTILES:
        found[f"p{100 * quantile:g}"] = ordered[round(quantile * (len(ordered) - 1))] / 1e9
    return found
