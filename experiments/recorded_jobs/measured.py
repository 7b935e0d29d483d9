"""The recordings, and the network that they tell: how long each collective took once all ranks were there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ddlsched.training.recorded.merging import SMALL_BYTES, merged
from ddlsched.training.recorded.rank_steps import Mark, MarkKind, RankStep, RankTrace
from ddlsched.training.recorded.recordings import read_recording

RECORDINGS = Path(__file__).parent / "recordings"
ALONE_ON_TESTBED, TOGETHER = "testbed-alone", "testbed-together"
"""Folders of what ``record.py --together`` records."""
ON_GPU = "gpu"
"""Folder of what ``record.py --gpu`` records."""
UNRECORDED = "unrecorded.csv"
"""In it, what steps took that nobody recorded: columns job, round, unrecorded_ms."""


class Line(NamedTuple):
    """Time of a collective between two ranks: ``latency_s + bytes * per_byte_s``."""

    latency_s: float
    per_byte_s: float


def traces(name: str, folder: Path = RECORDINGS) -> list[RankTrace]:
    """Return the recordings of a job, a rank each."""
    return [read_recording(path) for path in sorted((folder / name).glob("*.recording.json*"))]


def part(ranks: Sequence[RankTrace], *, odd: bool) -> list[RankTrace]:
    """Return every second step of each rank."""
    return [
        replace(rank, steps={number: step for number, step in rank.steps.items() if number % 2 == odd})
        for rank in ranks
    ]


def walls_s(ranks: Sequence[RankTrace]) -> np.ndarray:
    """Return the measured length of each step, seconds, a row a rank."""
    return np.array([[step.wall_ns for step in rank.steps.values()] for rank in ranks], dtype=float) / 1e9


def iteration_s(ranks: Sequence[RankTrace]) -> float:
    """Return how long an iteration took, seconds: the time of the steps of a rank over their number.

    Not the mean of :func:`longest_s`: a rank that ends a step late begins the next late and shortens it, and ranks take
    turns at that, so that the longest of each step together are more than the run took.
    """
    return float(walls_s(ranks).mean())


def longest_s(ranks: Sequence[RankTrace]) -> np.ndarray:
    """Return the measured length of each step by the rank that took longest, seconds."""
    longest: np.ndarray = walls_s(ranks).max(axis=0)
    return longest


def collective_s(ranks: Sequence[RankTrace]) -> np.ndarray:
    """Return how long each collective of each step took, seconds, a row a step.

    From when the last rank is there, and the one before has ended, until the last rank is done; less what the call
    costs, which is computation of the job.
    """
    steps = list(zip(*(rank.steps.values() for rank in ranks), strict=True))
    took_ns = np.diff(np.array([flights_ns(each) for each in steps]), axis=2)[:, :, 0]
    cost_ns = np.array([[each[0].call_ns] for each in steps])
    cost_ns = np.where((message_bytes(ranks) <= SMALL_BYTES) & (cost_ns > 0), took_ns, cost_ns)
    return np.maximum(took_ns - cost_ns, 0) / 1e9


def flights_ns(steps: Sequence[RankStep]) -> list[tuple[int, int]]:
    """Return from when until when each collective of a step, given for each rank, was under way, by their clock."""
    before, found = 0, []
    for each in zip(*(step.communications for step in steps), strict=True):
        spans = [(step.begin_ns, own.measured_ns) for step, own in zip(steps, each, strict=True) if own.measured_ns]
        begin = max([before, *(since + span[0] for since, span in spans)])
        before = max(begin, *(since + span[1] for since, span in spans))
        found.append((begin, before))
    return found


def fitted(runs: Iterable[Sequence[RankTrace]]) -> Line:
    """Fit latency and time of a byte, neither below 0, to the times of the collectives of jobs on one network."""
    return fitted_line([(collective_s(ranks), message_bytes(ranks)) for ranks in runs])


def fitted_line(found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Line:
    """Fit latency and time of a byte, neither below 0, to times, seconds, a row a step, of so many bytes each."""
    from scipy.optimize import nnls

    times_s = np.concatenate([own_s.ravel() for own_s, _ in found])
    sizes = np.concatenate([np.tile(own, len(own_s)) for own_s, own in found])
    scale = sizes.max()
    (latency_s, whole_s), _ = nnls(np.column_stack([np.ones(len(sizes)), sizes / scale]), times_s)
    return Line(float(latency_s), float(whole_s / scale))


def line_s(ranks: Sequence[RankTrace], network: Line) -> np.ndarray:
    """Return how long a network says that each collective of each step takes, seconds, a row a step."""
    own_s = network.latency_s + network.per_byte_s * message_bytes(ranks)
    return np.tile(own_s, (len(ranks[0].steps), 1))


def message_bytes(ranks: Sequence[RankTrace]) -> np.ndarray:
    """Return the bytes of each collective of a step."""
    first = next(iter(ranks[0].steps.values()))
    return np.array([each.input_bytes for each in first.communications])


def replayed_s(ranks: Sequence[RankTrace], collective_s: np.ndarray) -> np.ndarray:
    """Return the length of each step by the rules of the job, seconds.

    Its computation takes what it took in that step, and its collectives what ``collective_s`` says, seconds, a row a
    step.
    """
    recorded = merged(ranks)
    marks = recorded.last.marks
    steps_ns = [
        _played_ns(marks, moments_ns, 1e9 * times)
        for moments_ns, times in zip(recorded.moments_ns, collective_s, strict=True)
    ]
    return np.array(steps_ns) / 1e9


def _played_ns(marks: Sequence[Mark], moments_ns: Sequence[int], took_ns: np.ndarray) -> float:
    """Return the end of a step in which each collective starts after the one before and computation waits at waits."""
    stood_still = ended = 0.0
    ends: dict[object, float] = {}
    for mark, at_ns in zip(marks, moments_ns, strict=False):
        if mark.kind is MarkKind.STARTS:
            ended = ends[mark.what] = max(at_ns + stood_still, ended) + took_ns[int(mark.what)]
        elif mark.kind is MarkKind.WAITS:
            stood_still = max(stood_still, ends[mark.what] - at_ns)
    return max(moments_ns[-1] + stood_still, ended)
