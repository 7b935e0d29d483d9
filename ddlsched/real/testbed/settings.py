"""A gate's settings from names, as ``simulate`` takes them."""

from __future__ import annotations

from typing import Any, cast

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions.checked_policies import CheckedPolicies
from ddlsched.engine.decisions.costs import CommunicationCosts
from ddlsched.errors import InputError, guarded, label
from ddlsched.network.topology import Network
from ddlsched.plugins.defaults import DEFAULT_BUNDLE
from ddlsched.plugins.names import resolve, resolve_bundle
from ddlsched.real.gate.gate import GateSettings, begun_policies
from ddlsched.real.gate.transfer_gate import WINDOW
from ddlsched.real.testbed.cabling import refuse_inside
from ddlsched.units import MAX_MESSAGE_BYTES, is_whole

__all__ = ["gate_settings"]

_LEAST_CHUNK_BYTES = 1_000
_MOST_WINDOW = 64


def gate_settings(
    cluster: Cluster,
    *,
    scheduler: str = DEFAULT_BUNDLE,
    placement: Any = None,
    order: Any = None,
    communication: Any = None,
    contention: Any = "max-min",
    seed: int = 0,
    chunk_bytes: float | None = None,
    window: int = WINDOW,
    slots: bool = False,
    train: bool = False,
) -> GateSettings:
    """Return the settings of a gate before a cluster; policies are instances or names.

    Raises
    ------
    InputError
        A value out of range.
    UnknownNameError
        A name that nobody has registered.
    """
    if not is_whole(seed, 0):
        raise InputError(f"seed is {seed!r}; expected a whole number >= 0")
    if chunk_bytes is not None and not _LEAST_CHUNK_BYTES <= chunk_bytes <= MAX_MESSAGE_BYTES:
        raise InputError(f"chunk_bytes is {chunk_bytes:g}; expected at least {_LEAST_CHUNK_BYTES} bytes")
    if not is_whole(window, 1, _MOST_WINDOW):
        raise InputError(f"window is {window}; expected a whole number from 1 to {_MOST_WINDOW}")
    if slots and train:
        raise InputError("--slots with --train: training computes when it can; expected one of the two")
    names: dict[str, Any] = dict(resolve_bundle(scheduler))
    given = {"placement": placement, "order": order, "communication": communication}
    names |= {kind: policy for kind, policy in given.items() if policy is not None}
    policies = {kind: resolve(cast("Any", kind), name) for kind, name in names.items()}
    network = Network(resolve("topology", cluster.topology), cluster.num_servers, cluster.network_cards)
    refuse_inside(network)
    model = resolve("contention", contention)
    bound = guarded(f"contention {label(model)}: bound_to", lambda: model.bound_to(network))
    settings = GateSettings(
        cluster=cluster,
        placement=policies["placement"],
        order=policies["order"],
        communication=policies["communication"],
        costs=CommunicationCosts(cluster, network, bound),
        seed=seed,
        chunk_bytes=chunk_bytes,
        window=window,
        slots=slots,
        train=train,
    )
    _refuse_stops_and_moves(begun_policies(settings))
    return settings


def _refuse_stops_and_moves(policies: CheckedPolicies) -> None:
    for kind, method in (("order", "stops"), ("placement", "moves")):
        if hasattr(getattr(policies, kind), method):
            text = (
                f"{kind} {policies.label(kind)} {method} running jobs, and a real job keeps its processes until its end"
            )
            raise InputError(f"{text}; expected one without {method}() on the testbed (ddlsched simulate runs it)")
