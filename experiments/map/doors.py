"""What is tried at a point: a policy a door of the scheduler, each beside the same scheduler without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from points import Point

from ddlsched import Disturbances

FREE = "bounded-overlap:limit=100000"
"""Transfers start when they are ready, and share links by max-min, as with TCP."""
PLAIN: dict[str, Any] = {
    "placement": "first-fit",
    "order": "fifo",
    "communication": FREE,
    "contention": "max-min",
    "path": "ecmp",
}
"""A FIFO queue that skips what does not fit, on the first free GPUs."""
SCATTERED = "first-fit"
PLACEMENTS = {"LWF-1": "lwf:kappa=1", "HiveD": "hived", "blocks": "blocks"}
"""Under the same FIFO queue; HiveD never shares a GPU, blocks alone of these knows lengths."""
DOORS = ("placement", "order", "preemption", "sending", "phase shifts", "paths")
TOGETHER = "together"
"""Of a policy that decides through several doors, by which none of them earns."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A policy that differs in a door from the one that it is held against.

    ``scattered``: on first-fit, else on the point's best placement. ``against`` is the name of another trial, or "" for
    the same placement under FIFO. ``knows`` is what it has to know of jobs beyond GPUs and memory. One that is not
    ``priced`` goes without the price of a stop, and no door earns by it. It is no bound: without it SRTF that stops is
    worse than SRTF that does not, by more than 5 % for certain, at 5 points of ``expected/map.csv``, all bursts.
    """

    name: str
    door: str
    differs: Mapping[str, Any] = field(default_factory=dict)
    against: str = ""
    scattered: bool = False
    knows: str = "nothing"
    priced: bool = True

    def options(self, placement: str, round_s: float) -> dict[str, Any]:
        """Return the policies on the point's best ``placement``; ``round_s`` is how often those in rounds look."""
        text = PLAIN["placement"] if self.scattered else PLACEMENTS[placement]
        given = {
            door: value.format(placement=text, round_s=round_s) if isinstance(value, str) else value
            for door, value in self.differs.items()
        }
        return PLAIN | {"placement": text} | given


_SENDING = {
    "in turn, shortest first": {"communication": "preemptive:by=time"},
    "one at a time": {"communication": "bounded-overlap:limit=1"},
}
_NETWORK = {
    **{name: ("sending", differs) for name, differs in _SENDING.items()},
    "CASSINI's shifts": ("phase shifts", {"communication": "cassini"}),
    "least congested": ("paths", {"path": "least-congested"}),
    "Crux's paths": ("paths", {"path": "crux"}),
}
_SCATTERED = ("in turn, shortest first", "CASSINI's shifts", "least congested")
"""What is tried on first-fit as well: what the network can make good of a bad placement."""
_KNOWS = {"in turn, shortest first": "durations, bytes", "CASSINI's shifts": "phases", "Crux's paths": "compute, bytes"}
TRIALS = (
    Trial(name="SRTF", door="order", differs={"order": "srtf"}, knows="durations"),
    Trial(
        name="EASY backfilling",
        door="order",
        differs={"placement": "easy-backfill:placement={placement},error_sigma=0"},
        knows="durations",
    ),
    Trial(
        name="SRTF that stops",
        door="preemption",
        differs={"order": "stopping-srtf"},
        against="SRTF",
        knows="durations",
    ),
    Trial(
        name="SRTF that stops at no cost",
        door="preemption",
        differs={"order": "stopping-srtf", "disturbances": Disturbances(state_mb=0.0)},
        against="SRTF",
        knows="durations",
        priced=False,
    ),
    Trial(name="Tiresias that stops", door="preemption", differs={"order": "stopping-tiresias:interval_s={round_s:g}"}),
    Trial(
        name="Block-SRTF",
        door=TOGETHER,
        differs={"placement": "blocks", "order": "srtf", "communication": "preemptive:by=time"},
        knows="durations, bytes",
    ),
    *(
        Trial(name=name, door=door, differs=differs, knows=_KNOWS.get(name, "nothing"))
        for name, (door, differs) in _NETWORK.items()
    ),
    *(
        Trial(
            name=f"{name}, on first-fit",
            door=door,
            differs=differs,
            scattered=True,
            knows=_KNOWS.get(name, "nothing"),
        )
        for name, (door, differs) in _NETWORK.items()
        if name in _SCATTERED
    ),
)


def placements_of(point: Point) -> dict[str, dict[str, Any]]:
    """Return each placement under FIFO, by its name."""
    texts = {SCATTERED: PLAIN["placement"], **PLACEMENTS}
    return {name: point.options() | PLAIN | {"placement": text} for name, text in texts.items()}


def trials_of(point: Point, placement: str) -> dict[str, dict[str, Any]]:
    """Return what else is tried at a point whose best placement is known, by its name."""
    return {trial.name: point.options() | trial.options(placement, point.round_s) for trial in TRIALS}
