"""The policies: rivals that know no lengths, the new one, its parts changed, and what lengths would give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grounds import Ground

from ddlsched import Disturbances
from ddlsched.errors import InputError

HERE = Path(__file__).parent
NEW = "Whole servers, narrow first"
FREE = "bounded-overlap:limit=100000"
"""Transfers start when they are ready, as with TCP."""
COMMON = {"order": "fifo", "communication": FREE}
_MONKEYTREE = "monkeytree:gpus_per_rack={rack_gpus},block_gpus={block_gpus},spines=16"

RIVALS: dict[str, dict[str, str]] = {
    "FIFO, LWF-1": {"placement": "lwf"},
    "Tiresias, stopping": {
        "placement": "hived",
        "order": "stopping-tiresias:threshold_gpu_s={gpu_s:g},interval_s={s:g}",
    },
    "HiveD": {"placement": "hived"},
    "CASSINI": {"placement": "cassini", "communication": "cassini"},
    "Crux": {"placement": "hived", "path": "crux", "contention": "crux"},
    "MonkeyTree": {"placement": _MONKEYTREE, "order": _MONKEYTREE, "path": "perfect"},
}
"""A FIFO queue that skips what does not fit, one job a GPU, unless said otherwise; MonkeyTree's does not skip.

HiveD places the jobs of rivals that do not place them themselves.
"""
WHOLE = {"placement": "whole-servers:servers_per_rack={rack},servers_per_pod={pod}"}
NARROW = {"order": "narrow-first:patience_s={patience_s:g}"}
OURS = {NEW: WHOLE | NARROW}
BY_HISTORY = "Whole racks, by history"
RACKS = {
    "placement": "whole-racks:servers_per_rack={rack},servers_per_pod={pod},rings_up={spines}",
    "path": "{path}",
}
"""On racks under spines with MonkeyTree's routing, whose rings do not meet."""
LEARNING = {
    BY_HISTORY: RACKS | {"order": "history:patience={patience}"},
    "Whole racks, FIFO": RACKS,
    "Whole racks, kinds known": RACKS | {"order": f"{HERE}/variants.py:KindsKnown:patience={{patience}}"},
}
"""The last as if the mean of each kind of job were known before the first ends: more than any history can tell."""
PATIENCE = 2.0
KNOWING = {
    "SRTF, HiveD": {"placement": "hived", "order": "srtf"},
    "SRTF, whole servers": WHOLE | {"order": "srtf"},
    "SRTF, stopping, HiveD": {"placement": "hived", "order": "stopping-srtf"},
}
"""They know how long jobs take."""
KNOWING_RACKS = {"SRTF, whole racks": RACKS | {"order": "srtf"}}
"""So does this one, on the placement of the policy that learns."""
ALL: Mapping[str, dict[str, str]] = RIVALS | OURS | KNOWING


def plays_on(differs: Mapping[str, str], ground: Ground) -> bool:
    """Return whether a policy meets the others on equal terms: who replaces the network's model has to have max-min's.

    Elsewhere its network would be another one than that of all other rows.
    """
    return "contention" not in differs or ground.contention == "max-min"


def options(differs: Mapping[str, str], ground: Ground, mean_run_s: float) -> dict[str, Any]:
    """Return the arguments of ``simulate``; ``mean_run_s`` is that of the tuning seeds' jobs alone.

    Tiresias looks at its queues each such time, and demotes a job after three of them on a GPU. A job on all
    GPUs counts as if it had come 30 such times later, where narrow ones go first.

    Raises
    ------
    InputError
        The policy replaces the network's model where that is not max-min.
    """
    if not plays_on(differs, ground):
        raise InputError(
            f"contention is {differs['contention']!r} on {ground.name!r}, whose network is {ground.contention!r}; "
            "expected a ground with max-min, or a policy that keeps the network"
        )
    values = {
        "rack": ground.servers_per_rack,
        "pod": ground.servers_per_pod,
        "rack_gpus": (ground.servers_per_rack or ground.servers) * ground.gpus_per_server,
        "block_gpus": ground.block_gpus,
        "spines": ground.spines,
        "path": "perfect" if ground.spines else "ecmp",
        "patience": PATIENCE,
        "s": mean_run_s,
        "gpu_s": 3 * mean_run_s,
        "patience_s": 30 * mean_run_s / ground.cluster.num_gpus,
    }
    chosen = {door: text.format(**values) for door, text in differs.items()}
    path = {} if ground.topology == "star" else {"path": "ecmp"}
    restart = {"disturbances": Disturbances(restart_s=ground.restart_s)}
    return COMMON | {"contention": ground.contention} | path | restart | chosen | {"cluster": ground.cluster}
