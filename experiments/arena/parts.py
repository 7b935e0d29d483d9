"""``make-room`` without one of its parts, for what each of them earns; used by name: ``parts.py:NobodyMoves``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from league import by_seeds, tails
from rivals import OURS, RIVALS, Rival

from algorithms.ordering.history import FinishedJobs
from algorithms.ordering.make_room import MakeRoom, _Room
from ddlsched import Cluster
from ddlsched.comparisons.sweeps.sweep import Sweep
from ddlsched.results.statistics import paired_change


@dataclass(frozen=True, kw_only=True)
class NobodyMoves(MakeRoom):
    """Only long jobs make room: nobody who could not wait."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Room:
        """Return the order of a run."""
        return _NobodyMoves(self, super().begin(cluster, rng)._places)


class _NobodyMoves(_Room):
    def _may_stop(self, may_wait: np.ndarray) -> Iterator[np.ndarray]:
        yield may_wait


@dataclass(frozen=True, kw_only=True)
class OneKind(MakeRoom):
    """All jobs are alike."""

    def begin(self, cluster: Cluster, rng: np.random.Generator) -> _Room:
        """Return the order of a run."""
        room = super().begin(cluster, rng)
        room._history = FinishedJobs(lambda _: ((),), room._run_ns)
        return room


(_WHOLE,) = (rival for rival in RIVALS if rival.name == OURS)
_NUMBERS = "long_s={long_s},most_delay={most_delay}"
PARTS = (
    _WHOLE,
    *(
        Rival(name=name, differs={**_WHOLE.differs, **differs})
        for name, differs in (
            ("nobody moves over", {"order": f"{Path(__file__)}:NobodyMoves:{_NUMBERS}"}),
            ("nobody stops for a while", {"order": "make-room:long_s=1e9"}),
            ("neither", {"order": "history"}),
            ("all jobs are of one kind", {"order": f"{Path(__file__)}:OneKind:{_NUMBERS}"}),
            ("first come, first served", {"order": f"make-room:patience=0,{_NUMBERS}"}),
            ("paths by ECMP", {"path": "ecmp"}),
            ("whole racks alone", {"placement": "near-enough:slower=0", "order": f"make-room:slower=0,{_NUMBERS}"}),
        )
    ),
)
"""The whole, and it without a part."""


def without_parts(done: Sweep) -> pd.DataFrame:
    """Return a row a ground and part: what being without it changes of the average JCT and of the 99th percentile."""
    rows = []
    p99 = tails(done.jobs()[["ground", "policy", "seed", "jct_s"]], baseline=OURS).set_index(["ground", "policy"])
    for ground, own in by_seeds(done.summaries()).groupby("ground", sort=False):
        jct_s = own.drop(columns="ground").set_index("policy").T
        for part in jct_s.columns.drop(OURS):
            change, tail = paired_change(jct_s[part], jct_s[OURS]), p99.loc[ground, part]
            row = {"ground": ground, "without": part, "seeds": change.seeds, "change": change.mean}
            row |= {"change_low": change.low, "change_high": change.high}
            rows.append(row | {name: tail[name] for name in ("p99_change", "p99_change_low", "p99_change_high")})
    return pd.DataFrame(rows)
