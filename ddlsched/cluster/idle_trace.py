"""Nodes that a main scheduler leaves idle, and for how long: the Scavenger's view of a cluster's past."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.errors import InputError
from ddlsched.io.reading import from_parquet
from ddlsched.io.tables import cell_time_s, cell_whole, check_columns, csv_rows, located, readable

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["IdleChange", "IdleTrace", "read_fragments"]

Seconds: TypeAlias = "npt.NDArray[np.float64]"
COLUMNS = ("node", "idle_from_s", "idle_to_s")


class IdleChange(NamedTuple):
    """What changed in the set of idle nodes at one time; a node that goes and comes back at once did not change."""

    time_s: float
    joined: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class IdleTrace:
    """Idle fragments: which node was idle from when to when.

    Parameters
    ----------
    node
        Numbers from 0, shape (fragments,).
    idle_from_s, idle_to_s
        Seconds, of the same shape; a node is idle at its beginning and no longer at its end.

    Raises
    ------
    InputError
        A fragment without length, or two of a node that overlap.
    """

    node: npt.NDArray[np.int64]
    idle_from_s: Seconds
    idle_to_s: Seconds

    def __post_init__(self) -> None:
        order = np.lexsort((self.idle_from_s, self.node))
        node, start, end = self.node[order], self.idle_from_s[order], self.idle_to_s[order]
        if (bad := np.flatnonzero(start >= end)).size:
            raise InputError(_said(node, start, end, bad[0], "a fragment that ends after it begins"))
        if (bad := np.flatnonzero((node[1:] == node[:-1]) & (start[1:] < end[:-1]))).size:
            expected = f"one that begins after that node's last ended, at {end[bad[0]]:g} s"
            raise InputError(_said(node, start, end, bad[0] + 1, expected))

    def __len__(self) -> int:
        return len(self.node)

    @property
    def lengths_s(self) -> Seconds:
        """How long each fragment is, seconds."""
        return self.idle_to_s - self.idle_from_s

    def of_nodes(self, first: int, beyond: int) -> IdleTrace:
        """Return the fragments of nodes ``first`` to ``beyond - 1``, numbered from 0."""
        chosen = (self.node >= first) & (self.node < beyond)
        return IdleTrace(self.node[chosen] - first, self.idle_from_s[chosen], self.idle_to_s[chosen])

    def between(self, from_s: float, to_s: float = np.inf) -> IdleTrace:
        """Return what lies within a span, cut at its ends; times stay as they are."""
        chosen = (self.idle_to_s > from_s) & (self.idle_from_s < to_s)
        starts, ends = np.maximum(self.idle_from_s[chosen], from_s), np.minimum(self.idle_to_s[chosen], to_s)
        return IdleTrace(self.node[chosen], starts, ends)

    def since(self, from_s: float) -> IdleTrace:
        """Return the same with ``from_s`` as time 0, without what was before."""
        later = self.between(from_s)
        return IdleTrace(later.node, later.idle_from_s - from_s, later.idle_to_s - from_s)

    def changes(self) -> Iterator[IdleChange]:
        """Yield the changes of the set of idle nodes, in order of time."""
        times = np.concatenate([self.idle_from_s, self.idle_to_s])
        steps = np.repeat([1, -1], len(self))
        nodes = np.concatenate([self.node, self.node])
        order = np.argsort(times, kind="stable")
        times, steps, nodes = times[order], steps[order], nodes[order]
        bounds = np.flatnonzero(np.diff(times, prepend=-np.inf, append=np.inf))
        for first, beyond in pairwise(bounds.tolist()):
            came, went = (set(nodes[first:beyond][steps[first:beyond] == step].tolist()) for step in (1, -1))
            if came != went:
                yield IdleChange(float(times[first]), tuple(sorted(came - went)), tuple(sorted(went - came)))

    def capacity(self) -> CapacityTrace:
        """Return the same as servers that join and leave a cluster without warning."""
        return CapacityTrace.of(
            zip(self.node.tolist(), self.idle_from_s.tolist(), self.idle_to_s.tolist(), strict=True)
        )

    def mean_idle(self, from_s: float, to_s: float) -> float:
        """Return how many nodes are idle on average within a span."""
        within = self.between(from_s, to_s)
        return float(within.lengths_s.sum()) / (to_s - from_s)

    def frame(self) -> pd.DataFrame:
        """Return a table with a row a fragment."""
        import pandas as pd

        return pd.DataFrame(dict(zip(COLUMNS, (self.node, self.idle_from_s, self.idle_to_s), strict=True)))


def _said(node: npt.NDArray[np.int64], start: Seconds, end: Seconds, place: int, expected: str) -> str:
    fragment = f"node {node[place]} is idle from {start[place]:g} to {end[place]:g} s"
    return f"idle nodes: {fragment}; expected {expected}"


def read_fragments(path: str | Path) -> IdleTrace:
    """Read a table of idle fragments, CSV or Parquet, with the columns node, idle_from_s, idle_to_s.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    path = Path(path)
    read = _from_parquet if path.suffix == ".parquet" else _from_csv
    trace = readable(path, "a table of idle fragments (CSV or Parquet)", read)
    if not len(trace):
        raise InputError(f"{path}: holds no fragment; expected at least one row")
    return trace


def _from_csv(path: Path) -> IdleTrace:
    rows = []
    for where, row in csv_rows(path, COLUMNS, ()):
        node = cell_whole(where, "node", row["node"], at_least=0)
        rows.append((node, *(cell_time_s(where, column, row[column]) for column in COLUMNS[1:])))
    return _made(path, np.array(rows, np.float64).reshape(-1, 3).T)


def _from_parquet(path: Path) -> IdleTrace:
    import pandas as pd

    frame = from_parquet(path, lambda table: table.to_pandas())
    check_columns(path, [str(name) for name in frame.columns], COLUMNS, ())
    for column in COLUMNS:
        numbers = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
        whole = np.ones(len(numbers), bool) if column != "node" else numbers % 1 == 0
        if (bad := np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0) & whole))).size:
            shown, expected = frame[column].iloc[bad[0]], "a whole number" if column == "node" else "seconds"
            raise InputError(f"{path}, row {bad[0] + 1}, column {column}: {shown!r}; expected {expected} from 0")
    return _made(path, frame[list(COLUMNS)].to_numpy(np.float64).T)


def _made(path: Path, columns: npt.NDArray[np.float64]) -> IdleTrace:
    return located(str(path), lambda: IdleTrace(columns[0].astype(np.int64), columns[1], columns[2]))
