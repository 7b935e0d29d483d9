"""How measured runs are simulated: models with the constants that jobs alone and pairs gave, and ablations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ddlsched.network.connection_shares import ConnectionShares
from ddlsched.network.packet_rings import PacketRings
from ddlsched.network.size_shares import SizeShares
from ddlsched.plugins.names import resolve
from ddlsched.real.calibration.fit import Constant
from ddlsched.real.calibration.measurements import Measurements
from ddlsched.real.calibration.ring_wait import AloneRows, fit_wait
from ddlsched.real.calibration.shares import ShareRows, fit_size_shares
from ddlsched.real.testbed.calibration_runs import fitted_constants, fitted_models
from ddlsched.real.testbed.fidelity_report import WITH, WITHOUT
from ddlsched.real.testbed.simulated import RunModel

__all__ = ["RunModels", "run_models"]

_CHOSEN = {"exponent": 0.25, "window_bytes": 3e5, "loss": 0.03}
"""On the training mixes of experiments/fidelity, at 100 Mbit/s: neither jobs alone nor pairs on the same servers tell
them."""

_CHOSEN_OF_PACKETS = {"overhead": 0.04}
"""On the same mixes: the counters of the testbed's interfaces have half of it."""


@dataclass(frozen=True)
class RunModels:
    """What calibrations fit.

    Parameters
    ----------
    by_name
        The models.
    wait
        Of rings, as ``packet-rings`` and ``connection-shares`` have it; None where they have none.
    """

    by_name: Mapping[str, RunModel]
    wait: Constant | None = None


def run_models(rows: Measurements, shares: ShareRows | None, alone: AloneRows | None = None) -> RunModels:
    """Return the models that the rows fit, and those that need shares if these were measured.

    ``packet-rings`` is the testbed as it is known, packet by packet; ``connection-shares`` has shares of links that
    were found on training mixes. Both have the wait of rings if jobs alone tell it. Each model after them leaves one
    thing out or adds one.

    Raises
    ------
    InputError
        No model fits with a time of a byte above 0.
    """
    models = {name: RunModel(contention=preset) for name, preset in fitted_models(rows).items()}
    if shares is None:
        return RunModels(models)
    fit = fit_size_shares(shares, rows)
    models["size-shares"] = RunModel(contention=fit.whole, in_chunks=fit.in_chunks)
    wait = fit_wait(alone, resolve("contention", fit.of_connections)) if alone else None
    found = {name: constant.value for name, constant in fit.constants.items()}
    whole = ConnectionShares(
        latency_s=found["latency_s"],
        per_byte_s=found["per_byte_s"],
        step_s=found.get("step_s", 0.0),
        wait=wait.value if wait else 0.0,
        **_CHOSEN,
    )
    return RunModels(models | _with_ablations(whole, fitted_constants(rows)) | _by_packets(whole), wait)


def _by_packets(alone: ConnectionShares) -> dict[str, RunModel]:
    """Return ``packet-rings``, whose transfers alone cost what those of ``connection-shares`` do, and ablations."""
    packets = PacketRings(
        latency_s=alone.latency_s,
        per_byte_s=alone.per_byte_s,
        step_s=alone.step_s,
        wait=alone.wait,
        **_CHOSEN_OF_PACKETS,
    )
    model = RunModel(contention=packets, chunks_end=True)
    return {
        "packet-rings": model,
        f"{WITHOUT}no loss of packets": replace(model, contention=replace(packets, queue_bytes=2e6)),
        f"{WITHOUT}no time to react": replace(model, contention=replace(packets, react_s=0.0)),
        f"{WITHOUT}no overhead": replace(model, contention=replace(packets, overhead=0.0)),
    }


def _with_ablations(whole: ConnectionShares, without_steps: Mapping[str, float]) -> dict[str, RunModel]:
    model = RunModel(contention=whole, chunks_end=True)
    a_transfer = SizeShares(
        **{field.name: getattr(whole, field.name) for field in fields(SizeShares)}  # all but the loss
    )
    return {
        "connection-shares": model,
        f"{WITHOUT}a share a transfer": replace(model, contention=a_transfer),
        f"{WITHOUT}even shares": replace(model, contention=replace(whole, exponent=0.0)),
        f"{WITHOUT}no loss": replace(model, contention=replace(whole, loss=0.0)),
        f"{WITHOUT}no steps": replace(model, contention=replace(whole, step_s=0.0, **without_steps)),
        f"{WITHOUT}pauses at once": replace(model, chunks_end=False),
        **({f"{WITHOUT}no wait": replace(model, contention=replace(whole, wait=0.0))} if whole.wait else {}),
        f"{WITH}jitter of 3 %": replace(model, jitter_cv=0.03, seeds=3),
    }
