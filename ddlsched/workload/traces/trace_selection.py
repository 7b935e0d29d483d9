"""Which jobs of a trace become a workload."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlsched.errors import InputError
from ddlsched.ranges import check_fields, ranged

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Selection"]


# Its docstring is also the help of the command line (ddlsched/cli/dataclass_options.py).
@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which jobs of a trace are wanted, and at what scale.

    Parameters
    ----------
    from_s
        Leave out earlier arrivals, seconds after the trace's first job; the workload's clock starts here.
    to_s
        Leave out arrivals from here on, seconds after the trace's first job.
    gpus_at_most
        Leave out jobs of more GPUs.
    limit
        Only so many jobs, the first by arrival.
    scale
        Multiplies arrivals and durations; 0.01 makes a quick try.

    Raises
    ------
    InputError
        A value out of range.
    """

    from_s: float = ranged(0.0, 0.0)
    to_s: float = math.inf
    gpus_at_most: int | None = ranged(None, 1)
    limit: int | None = ranged(None, 1)
    scale: float = ranged(1.0, 1e-6, 1e6)

    def __post_init__(self) -> None:
        check_fields(self, "selection")
        if not self.to_s > self.from_s:
            raise InputError(f"to_s is {self.to_s}; expected more than from_s, which is {self.from_s}")

    def apply(self, traced: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
        """Return the wanted jobs by arrival, and how many were left out by each wish."""
        import numpy as np

        left_out: dict[str, int] = {}
        traced = traced.assign(arrival_s=traced["arrival_s"] - traced["arrival_s"].min())
        arrival_s = traced["arrival_s"]
        inside = (arrival_s >= self.from_s) & (arrival_s < self.to_s)
        left_out["outside the window of arrivals"] = int((~inside).sum())
        traced = traced[inside]
        if self.gpus_at_most is not None:
            small = traced["num_gpus"] <= self.gpus_at_most
            left_out[f"more than {self.gpus_at_most} GPUs"] = int((~small).sum())
            traced = traced[small]
        traced = traced.sort_values("arrival_s", kind="stable", ignore_index=True)
        left_out["after the limit"] = max(0, len(traced) - (self.limit or len(traced)))
        traced = traced.head(self.limit or len(traced))
        # Fewer iterations, each as long as before.
        scaled = {name: traced[name] * self.scale for name in ("duration_s", "iterations", "time_limit_s")}
        with np.errstate(over="ignore"):  # What overflows is refused later.
            scaled["arrival_s"] = ((traced["arrival_s"] - self.from_s) * self.scale).round(9)
        return traced.assign(**scaled), {why: count for why, count in left_out.items() if count}
