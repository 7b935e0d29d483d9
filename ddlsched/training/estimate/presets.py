"""Published GPUs and models by name (``presets.yaml``), and the efficiencies that measurements were fitted with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from ddlsched.errors import UnknownNameError, did_you_mean
from ddlsched.training.estimate.hardware import Efficiency, Gpu, Tier
from ddlsched.training.estimate.models import Model, Transformer
from ddlsched.training.estimate.small_models import INCEPTION_V3, LSTM_PTB, RESNET_50, VGG_16, Dlrm

__all__ = ["A100_NODE_TIERS", "EFFICIENCIES", "GPUS", "MODELS", "USUAL_SERVERS", "plain_name", "preset", "unmodelled"]

Item = TypeVar("Item")

_GB = 1e9
_TERA = 1e12


class _Sheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU in ``presets.yaml``: its figures, and its usual server's."""

    peak_tflops: dict[str, float]
    memory_gb: float
    memory_gb_per_s: float
    link_gb_per_s: float
    host_gb_per_s: float
    power_w: int
    price_per_hour: int
    gpus_per_node: int
    nic_gbps: int

    def gpu(self, name: str) -> Gpu:
        """Return what the figures make."""
        return Gpu(
            name=name,
            peak_flops_per_s={precision: peak * _TERA for precision, peak in self.peak_tflops.items()},
            memory_bytes=self.memory_gb * _GB,
            memory_bytes_per_s=self.memory_gb_per_s * _GB,
            link_bytes_per_s=self.link_gb_per_s * _GB,
            power_w=self.power_w,
            price_per_hour=self.price_per_hour,
            host_bytes_per_s=self.host_gb_per_s * _GB,
        )


class _Presets(msgspec.Struct, frozen=True, kw_only=True):
    gpus: dict[str, _Sheet]
    models: dict[str, Transformer]
    alike: dict[str, list[str]]
    unmodelled: dict[str, list[str]]


_PRESETS = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=_Presets)

GPUS: dict[str, Gpu] = {name: sheet.gpu(name) for name, sheet in _PRESETS.gpus.items()}
USUAL_SERVERS: dict[str, dict[str, int]] = {
    name: {"gpus_per_node": sheet.gpus_per_node, "nic_gbps": sheet.nic_gbps} for name, sheet in _PRESETS.gpus.items()
}
"""GPUs of a server, and Gbit/s of all its network cards, by GPU."""

EFFICIENCIES: dict[str, Efficiency] = {
    "ideal": Efficiency(),
    "megatron": Efficiency(matrix=0.740, half_flops=1e9, memory=0.529, kernel_s=5e-6),
    "eager": Efficiency(
        matrix=0.811, memory=0.623, gap_s=44.0e-6, launch_s=93.1e-6, crowded=1.361, collective_s=268e-6, odd=2.81
    ),
}
"""How far GPUs stay below those figures.

``ideal`` is the roofline. ``megatron`` was fitted to the eight published times of Megatron-LM with fused kernels
(experiments/cluster_design/megatron.py), ``eager`` to the rows of ``training_times`` (fit.py there), whose
kernels are launched one by one. Both were fitted on A100s; on other GPUs they are an assumption.
"""

A100_NODE_TIERS = (
    Tier(size=8, bytes_per_s=228.4e9, latency_s=6.42e-6),
    Tier(size=1, bytes_per_s=6.402e9, latency_s=10e-6),
)
"""Nodes of eight A100s as measured: inside, the fit to ``allreduce_times``; between, that to ``training_times`` (the
data sheet says 300 GB/s and, of 800 Gbit/s a node, 12.5 GB/s a GPU; the latency between nodes is assumed)."""

MODELS: dict[str, Model] = {
    **_PRESETS.models,
    # The size is COMET's; how it comes about, and the widths, are chosen: those of COMET were not at hand.
    "dlrm-1.2t": Dlrm(
        tables=64,
        rows=146_500_000,
        dimension=128,
        lookups=80,
        dense_features=1024,
        bottom=(2048, 1024, 128),
        top=(4096, 4096, 4096, 1),
    ),
    "vgg-16": VGG_16,
    "resnet-50": RESNET_50,
    "inception-v3": INCEPTION_V3,
    "lstm-ptb": LSTM_PTB,
    **{name: _PRESETS.models[earlier] for earlier, names in _PRESETS.alike.items() for name in names},
}


def plain_name(text: str) -> str:
    """Return letters and digits of a name, in small letters."""
    return "".join(filter(str.isalnum, text.lower()))


def unmodelled(name: str) -> str:
    """Return which layers of a model of this name, however it is spelt, are not modelled; nothing of other models."""
    plain = plain_name(name)
    known = _PRESETS.unmodelled.items()
    return next((f"{layers} are not modelled" for layers, starts in known if plain.startswith(tuple(starts))), "")


def preset(items: Mapping[str, Item], name: str, what: str) -> Item:
    """Return the item of a name.

    Raises
    ------
    UnknownNameError
        No such name; the message has the near ones, or why a model has no preset.
    """
    if name not in items:
        reason = unmodelled(name) if what == "model" else ""
        hint = f": {reason}" if reason else f".{did_you_mean(name, items)}"
        raise UnknownNameError(f"no {what} is named {name!r}{hint}")
    return items[name]
