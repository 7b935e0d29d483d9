"""The rivals: what each decides here, what it has to know for it, and which of its numbers are tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grounds import Ground

from experiments.baseline import PLAIN, PRICES

BASELINE = "FIFO, first-fit"
OURS = "Room, near enough"
"""What is meant to lead wherever lengths are not known."""
PARTS_OF_OURS = ("Moves, near enough", "History, near enough", "FIFO, near enough")
"""It without stops, with the history of kinds alone, and with its placement and paths alone."""
_TOGETHER = ("hived", "whole-racks", "near-enough")
"""Placements on which jobs hardly meet, unless their paths are chosen again and again."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A rival by what differs from a FIFO queue that skips, first-fit, ECMP and fair sharing of links.

    ``knows`` is what it needs of jobs beyond GPUs and memory; ``shares`` GPUs with others; ``allocates``: it gives
    jobs of a fixed size their GPUs, and takes them back. ``tunes`` are ranges of its numbers, as ``ddlsched tune
    --vary`` reads them; one that has the numbers of another is tuned with it.
    """

    name: str
    differs: Mapping[str, str] = field(default_factory=dict)
    knows: frozenset[str] = frozenset()
    shares: bool = False
    allocates: bool = False
    tunes: tuple[str, ...] = ()

    def plays_on(self, ground: Ground) -> bool:
        """Return whether it can: on jobs of several rings, and with paths only where there is a spine to choose."""
        if ground.jobs == "monkeytree" and (self.allocates or self.shares):
            return False
        return bool(ground.spines) or self.differs.get("path") not in ("perfect", "sglb")

    @property
    def scatters(self) -> bool:
        """Return whether its jobs often meet, so that exact runs take ten times as long as sampled ones."""
        return not self.differs.get("placement", "").startswith(_TOGETHER) or self.differs.get("path") == "perfect"

    def options(self, ground: Ground, tuned: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return the arguments of ``simulate``; ``tuned`` are values of the ground."""
        values: dict[str, Any] = {name: getattr(ground, name) for name in ("per_rack", "per_pod", "spines")}
        values |= {"rack_gpus": ground.per_rack * ground.gpus_per_server, "block_gpus": ground.block_gpus}
        values |= DEFAULTS | (tuned or {})
        differs = {door: text.format(**values) for door, text in self.differs.items()}
        disturbances = {} if self.allocates else {"disturbances": PRICES}  # else each job has them
        cluster = ground.cluster(exclusive=not self.shares)
        return PLAIN | differs | disturbances | {"cluster": cluster, "sample": ground.sampled and self.scatters}


ROUND_S = 360.0
"""How often Gavel looks again; the others who work in rounds begin their tuning there, too."""
DEFAULTS = {"threshold_gpu_s": 100.0, "patience": 2.0, "long_s": 4800.0, "most_delay": 0.1} | dict.fromkeys(
    ("gavel_s", "sia_s", "rubick_s", "interval_s"), ROUND_S
)
DEFAULTS |= {"kappa": 1.0, "most": 4.0, "rounds": 4.0}  # of LWF and Muri
DEFAULTS |= {"tiny": 0.4, "medium": 0.7, "few_arrivals": 2.0, "window_s": 100.0}  # of Lucid
DEFAULTS |= {"levels": 8.0, "orders": 10.0, "drift": 0.05, "least_score": 0.8}  # of Crux and CASSINI
DEFAULTS |= {"slope": 1.75, "intercept": 0.25}  # of MLTCP
"""The numbers that are tuned, as their authors have them."""


PLACEMENTS: dict[str, dict[str, str]] = {
    "first-fit": {},
    "LWF-1": {"placement": "lwf:kappa={kappa:g}"},
    "HiveD": {"placement": "hived"},
    "whole racks": {"placement": "whole-racks:servers_per_rack={per_rack},servers_per_pod={per_pod}"},
}
"""None knows a length: where GPUs are not shared, those that LWF-1 may choose have nobody on them. Its name is that of
its authors' number, also where tuning finds another."""
_TIERS = {"placement": "whole-racks:servers_per_rack={per_rack},rings_up={spines}", "path": "perfect"}
_NEAR = {"placement": "near-enough", "path": "least-congested"}
_ROOM = ("order.long_s=600:19200", "order.most_delay=0.01:1")
_TRAFFIC = frozenset({"bytes", "compute", "rings"})
_LENGTHS, _KINDS, _RINGS = frozenset({"lengths"}), frozenset({"kinds"}), frozenset({"rings"})
_TIRESIAS = "stopping-tiresias:threshold_gpu_s={threshold_gpu_s},interval_s={interval_s}"
ORDERS: dict[str, tuple[str, frozenset[str], tuple[str, ...]]] = {
    "FIFO": ("fifo", frozenset(), ()),
    "Tiresias": (_TIRESIAS, frozenset(), ("order.threshold_gpu_s={low}:{high}", "order.interval_s={short}:{long}")),
    "History": ("history:patience={patience}", _KINDS, ("order.patience=0.25:32",)),
    "QSSF": ("qssf", _KINDS, ()),
    "Themis": ("themis", _LENGTHS, ()),
    "SRTF": ("srtf", _LENGTHS, ()),
}
"""The text of an order, what it knows, what of it is tuned. All but Tiresias leave running jobs alone."""


def _allocating(name: str, knows: str) -> Rival:
    return Rival(
        name=name.capitalize(),
        differs={"allocation": f"{name}:round_s={{{name}_s}}"},
        knows=frozenset({knows}),
        allocates=True,
        tunes=("allocation.round_s={short}:{long}",),
    )


_MURI = "muri:most={most:g},rounds={rounds:g}"
_LUCID = "lucid:tiny={tiny},medium={medium},few_arrivals={few_arrivals:g},window_s={window_s}"
_LUCID_RANGES = ("tiny=0.1:0.5", "medium=0.5:0.9", "few_arrivals=-1:8", "window_s=25:400")
_MONKEYTREE = "monkeytree:gpus_per_rack={rack_gpus},block_gpus={block_gpus},spines={spines}"
_CRUX = {"path": "crux", "contention": "crux:levels={levels:g},orders={orders:g}"}
_CRUX_RANGES = ("contention.levels=1:8", "contention.orders=1:100")
RIVALS = (
    *(
        Rival(name=f"{order}, {place}", differs={"order": text} | where, knows=knows, tunes=tunes)
        for place, where in PLACEMENTS.items()
        for order, (text, knows, tunes) in ORDERS.items()
    ),
    *(
        Rival(name=f"{order}, whole racks, perfect routing", differs={"order": text} | _TIERS, knows=knows | _RINGS)
        for order, (text, knows, _) in ORDERS.items()
    ),
    *(
        Rival(name=f"{part}, near enough", differs=_NEAR | {"order": order}, knows=_TRAFFIC | knows, tunes=tunes)
        for part, order, knows, tunes in (
            ("Room", "make-room:long_s={long_s},most_delay={most_delay}", _KINDS, _ROOM),
            ("Moves", "make-room:long_s=1e9", _KINDS, ()),
            ("History", "history", _KINDS, ()),
            ("FIFO", "fifo", frozenset(), ()),
        )
    ),
    *(
        Rival(name=f"{order}, near enough", differs=_NEAR | {"order": text}, knows=_TRAFFIC | knows)
        for order, (text, knows, _) in ORDERS.items()
        if f"{order}, near enough" not in PARTS_OF_OURS
    ),
    Rival(name="SRSF, near enough", differs=_NEAR | {"order": "srsf"}, knows=_TRAFFIC | _LENGTHS),
    *(
        Rival(name=f"SRSF, {place}", differs=PLACEMENTS[place] | {"order": "srsf"}, knows=_LENGTHS)
        for place in ("HiveD", "whole racks")
    ),
    Rival(name="EASY, first-fit", differs={"placement": "easy-backfill:error_sigma=0"}, knows=_LENGTHS),
    Rival(
        name="SRSF, LWF-1",
        differs=PLACEMENTS["LWF-1"] | {"order": "srsf"},
        knows=_LENGTHS,
        tunes=("placement.kappa=0:64",),
    ),
    Rival(
        name="Ada-SRSF",
        differs=PLACEMENTS["LWF-1"] | {"order": "srsf", "communication": "adadual"},
        knows=_LENGTHS | {"bytes"},
    ),
    Rival(name="Arnold", differs={"placement": "arnold:servers_per_pod={per_rack}"}, knows=_RINGS),
    *(
        Rival(
            name=name,
            differs={"order": "srsf", "placement": text},
            knows=_LENGTHS | {"phases"},
            shares=True,
            tunes=tuple(f"placement.{one}" for one in ranges),
        )
        for name, text, ranges in (("Muri-S", _MURI, ("most=2:4", "rounds=1:8")), ("Lucid", _LUCID, _LUCID_RANGES))
    ),
    _allocating("gavel", "throughputs"),
    _allocating("sia", "goodput"),
    _allocating("rubick", "curves"),
    *(
        Rival(name=f"{name}, {place}", differs=PLACEMENTS[place] | differs, knows=frozenset(knows), tunes=tunes)
        for place in ("first-fit", "HiveD")
        for name, differs, knows, tunes in (
            ("SGLB", {"path": "sglb"}, (), ()),
            ("Crux", _CRUX, ("compute", "bytes", "phases"), _CRUX_RANGES),
            ("Perfect routing", {"path": "perfect"}, ("rings",), ()),
        )
    ),
    Rival(name="SGLB, whole racks", differs=PLACEMENTS["whole racks"] | {"path": "sglb"}),
    Rival(
        name="MLTCP",
        differs={"contention": "mltcp:slope={slope},intercept={intercept}"},
        knows=frozenset({"bytes"}),
        tunes=("contention.slope=0:8", "contention.intercept=0.05:4"),
    ),
    Rival(
        name="CASSINI",
        differs={"placement": "cassini", "communication": "cassini:drift={drift},least_score={least_score}"},
        knows=frozenset({"bytes", "phases"}),
        tunes=("communication.drift=0.01:0.5", "communication.least_score=0:1"),
    ),
    Rival(name="MonkeyTree", differs={"placement": _MONKEYTREE, "order": _MONKEYTREE, "path": "perfect"}, knows=_RINGS),
)
