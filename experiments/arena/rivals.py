"""The rivals: what each decides here, and what it has to know for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grounds import Ground

from ddlsched import Disturbances

BASELINE = "FIFO that skips"
_FREE = "bounded-overlap:limit=100000"
"""Transfers start when they are ready, as with TCP."""
COMMON = {"placement": "first-fit", "order": "fifo", "communication": _FREE, "contention": "max-min", "path": "ecmp"}


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A rival by what differs from a FIFO queue that skips, first-fit, ECMP and fair sharing of links.

    ``knows`` is what it needs of jobs beyond GPUs and memory; ``shares`` GPUs with others; ``allocates``: it gives
    jobs of a fixed size their GPUs, and takes them back.
    """

    name: str
    differs: Mapping[str, str] = field(default_factory=dict)
    knows: str = "nothing"
    shares: bool = False
    allocates: bool = False

    def plays_on(self, ground: Ground) -> bool:
        """Return whether it can: jobs of several rings are of a fixed size, and sharing is not for racks of hosts."""
        return not (ground.jobs == "monkeytree" and (self.allocates or self.shares))

    def options(self, ground: Ground) -> dict[str, Any]:
        """Return the arguments of ``simulate``."""
        values = {"per_rack": ground.per_rack, "round_s": ground.round_s}
        values |= {"rack_gpus": ground.per_rack * ground.gpus_per_server, "block_gpus": ground.block_gpus}
        values["spines"] = ground.spines
        differs = {door: text.format(**values) for door, text in self.differs.items()}
        stops = {"rescale_cost": f"restart_s={ground.restart_s:g}"} if self.allocates else {}
        disturbances = {} if self.allocates else {"disturbances": Disturbances(restart_s=ground.restart_s)}
        return COMMON | differs | stops | disturbances | {"cluster": ground.cluster(exclusive=not self.shares)}


RIVALS = (
    Rival(name=BASELINE),
    Rival(name="FIFO that skips, LWF-1", differs={"placement": "lwf"}),
    Rival(name="FIFO, EASY backfilling", differs={"placement": "easy-backfill:error_sigma=0"}, knows="durations"),
    Rival(name="SRSF, LWF-1", differs={"order": "srsf", "placement": "lwf"}, knows="durations"),
    Rival(
        name="Ada-SRSF",
        differs={"order": "srsf", "placement": "lwf", "communication": "adadual"},
        knows="durations, bytes",
    ),
    Rival(name="Tiresias, stopping", differs={"order": "stopping-tiresias:interval_s={round_s:g}"}),
    Rival(name="HiveD", differs={"placement": "hived"}),
    Rival(name="Arnold", differs={"placement": "arnold:servers_per_pod={per_rack}"}, knows="parallel groups"),
    Rival(name="Muri-S", differs={"order": "srsf", "placement": "muri"}, knows="durations, phases", shares=True),
    Rival(name="Lucid", differs={"order": "srsf", "placement": "lucid"}, knows="durations, phases", shares=True),
    Rival(
        name="Gavel",
        differs={"allocation": "gavel:round_s={round_s:g}"},
        knows="throughputs by kind",
        allocates=True,
    ),
    Rival(name="Sia", differs={"allocation": "sia:round_s={round_s:g}"}, knows="goodput by GPUs", allocates=True),
    Rival(name="Rubick", differs={"allocation": "rubick:round_s={round_s:g}"}, knows="curves by GPUs", allocates=True),
    Rival(name="SGLB", differs={"path": "sglb"}),
    Rival(name="crux:paths-only", differs={"path": "crux"}, knows="compute, bytes"),
    Rival(name="Crux", differs={"path": "crux", "contention": "crux"}, knows="compute, bytes, phases"),
    Rival(name="MLTCP", differs={"contention": "mltcp"}, knows="bytes"),
    Rival(name="CASSINI", differs={"placement": "cassini", "communication": "cassini"}, knows="bytes, phases"),
    Rival(name="Perfect routing", differs={"path": "perfect"}, knows="rings"),
    Rival(
        name="MonkeyTree",
        differs={
            "placement": "monkeytree:gpus_per_rack={rack_gpus},block_gpus={block_gpus},spines={spines}",
            "order": "monkeytree:gpus_per_rack={rack_gpus},block_gpus={block_gpus},spines={spines}",
            "path": "perfect",
        },
        knows="rings",
    ),
)
