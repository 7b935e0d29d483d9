"""What a reader of results must know of a contention model's constants and the topology's network card."""

from __future__ import annotations

from ddlsched.network.contention import ContentionModel, Linear
from ddlsched.network.topology import Network, gbps_from_bytes_per_s

__all__ = ["card_remark"]

_MEASURED_GBPS = 10.0


def card_remark(model: ContentionModel, network: Network) -> str | None:
    """Return how the constants of a bound linear model came from a card that is not the usual one, or None.

    Equal share and max-min sharing take the links' own bandwidth, and a model of a user's own speaks for itself.
    """
    gbps = gbps_from_bytes_per_s(network.nic_bytes_per_s)
    if not isinstance(model, Linear) or gbps in (0.0, _MEASURED_GBPS):
        return None
    constants = f"b = {model.per_byte_s:.4g} s and η = {model.penalty_per_byte_s:.4g} s a byte"
    if model.card_gbps is None:
        return f"Linear contention: {constants}, as given, whatever the topology's card of {gbps:g} Gbit/s."
    return f"Linear contention: {constants}, scaled to the topology's card of {gbps:g} Gbit/s."
