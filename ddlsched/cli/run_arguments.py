"""From what the command line says of a run to the arguments of :func:`ddlsched.simulate`; flags that change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import typer

from ddlsched.cli.dataclass_options import is_given
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.run_options import CLUSTER_OPTIONS, RunOptions
from ddlsched.errors import InputError

_FAILING = ("server_mtbf_s", "failures", "outages", "capacity")
_NEEDS = {
    "rescale_cost": ("allocation", "recovery"),
    "straggler_slowdown": ("straggler_share",),
    "server_repair_s": ("server_mtbf_s",),
    "checkpoint_to": ("checkpoint",),
    "recovery": _FAILING,
    "health": ("failures",),  # only these have lemons, or what nobody notices
    "restart_gpu_s": (*_FAILING, "order", "placement", "queues"),
    "restart_iterations": (*_FAILING, "order", "placement", "queues"),
    "restart_s": (*_FAILING, "order", "placement", "queues"),
    "state_mb": ("order", "placement", "queues", "checkpoint"),
    "state_share": ("order", "placement", "queues", "checkpoint"),
    "throughputs": ("server_table",),
    "reference_kind": ("throughputs",),
    "admission": ("queues",),
    "checkpoint_iterations": _FAILING,
}
"""Flags that change nothing without one of others."""


def refuse_ineffective(context: typer.Context) -> None:
    """Refuse flags that another makes void, or that do nothing alone: the result would seem to be theirs."""
    given = {name for name in context.params if is_given(context, name)}
    for name in ("servers", "gpus_per_server", "gpu_memory_mb"):
        if {name, "server_table"} <= given:
            raise InputError(f"{_flag(name)}: the servers are those of --server-table; expected one of the two")
    if {"exclusive", "interference"} <= given:
        raise InputError("--interference: with --exclusive no GPU is shared; expected one of the two")
    for name, others in _NEEDS.items():
        if name in given and given.isdisjoint(others):
            raise InputError(f"{_flag(name)}: does nothing alone; expected {' or '.join(map(_flag, others))} as well")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def run_arguments(options: Mapping[str, Any], disturbances: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments; what is said of servers and their network as a cluster, if anything is."""
    from ddlsched.simulation import cluster_of

    given = {name: value for name, value in options.items() if name not in CLUSTER_OPTIONS}
    if of_cluster := {name: options[name] for name in options.keys() & set(CLUSTER_OPTIONS)}:
        given["cluster"] = cluster_of(None, cast(RunOptions, of_cluster))
        if given["cluster"].exclusive and "interference" in given:
            raise InputError("--interference: the table of servers shares no GPU; expected one of the two")
    if disturbances:
        given["disturbances"] = Disturbances(**disturbances)
    return given
