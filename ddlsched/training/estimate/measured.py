"""How far GPUs stay below their data sheets under programs whose step times are published."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.training.estimate.hardware import Efficiency
from ddlsched.training.estimate.models import Model

__all__ = ["PROGRAMS", "MeasuredProgram", "remark", "usual_program"]


@dataclass(frozen=True, kw_only=True)
class MeasuredProgram:
    """A program that trains, as its published times show it.

    Attributes
    ----------
    efficiencies
        By name of a GPU that has rows.
    links
        Shares of the data sheet's bandwidth inside and between nodes, by GPU.
    errors
        Mean error on rows that were kept out, by GPU, precision and whether the model has experts.
    stand_in
        The GPU whose efficiency stands in for those without rows.
    """

    efficiencies: Mapping[str, Efficiency]
    links: Mapping[str, tuple[float, float]]
    errors: Mapping[tuple[str, str, bool], float]
    stand_in: str

    def known(self, gpu: str) -> str:
        """Return the GPU whose constants serve for one."""
        return gpu if gpu in self.efficiencies else self.stand_in

    def remark(self, gpu: str, precision: str, experts: bool) -> str:
        """Return in a line how far estimates are expected to be off, or what they were carried over from."""
        known = self.known(gpu)
        error = self.errors.get((known, precision, experts))
        kind = "mixtures of experts" if experts else "dense models"
        if known != gpu:
            return f"no measured steps on {gpu}: constants of {known}, error unknown"
        if error is None:
            return f"no measured steps of {kind} in {precision} on {gpu}: constants of others, error unknown"
        return f"{100 * error:.0f} % typical error of {kind} in {precision} on {gpu}"


def _efficiency(matrix: float, attention: float, memory: float, gap_s: float, taken: float, **more: Any) -> Efficiency:
    return Efficiency(matrix=matrix, attention=attention, memory=memory, gap_s=gap_s, taken=taken, **more)


_FSDP = {
    "a100-40": _efficiency(0.8101, 0.6333, 0.3711, 1.244e-05, 1.214),
    "a100-80": _efficiency(0.9508, 0.6564, 0.1971, 1.091e-05, 0.9206),
    "h100": _efficiency(0.6901, 0.3576, 0.4137, 0.000101, 0.5867, by_precision={"fp8": 0.575}),
}
_TITAN = _efficiency(0.6017, 0.5125, 0.2789, 9.899e-06, 0.5024, by_precision={"fp8": 0.5796}, exposed=1.187)
_TITAN_EAGER = dataclasses.replace(_TITAN, gap_s=3.164e-05)
_BRIDGE = Efficiency(
    memory=0.298,
    casting=0.2348,
    experts=0.7031,
    expert_rows=320.4,
    expert_s=8.074e-05,
    sorting=0.2449,
    exposed=0.3431,
    scattered=1.706,
    gap_s=5.127e-05,
    taken=0.2978,
)
_HOPPER = dataclasses.replace(_BRIDGE, matrix=0.7043, attention=1.007, by_precision={"fp8": 0.625})
_BLACKWELL = dataclasses.replace(
    _BRIDGE, matrix=0.521, attention=1.209, by_precision={"fp8": 0.7945, "mxfp8": 0.7243, "nvfp4": 0.4914}
)
_BRIDGES = {"h100": _HOPPER} | dict.fromkeys(("b200", "b300", "gb200", "gb300"), _BLACKWELL)
_OLDER: dict[str, Any] = {"expert_s": 0.0003954, "sorting": 1.797}
"""What layers of experts lost up to release 26.04."""
_LINKS = (0.7688, 0.3708)
_FSDP_ERRORS = {
    ("a100-40", "half", False): 0.036,
    ("a100-80", "half", False): 0.042,
    ("h100", "fp8", False): 0.050,
    ("h100", "half", False): 0.029,
}
_TITAN_ERRORS = {
    ("h100-96", "fp8", False): 0.086,
    ("h100-96", "half", False): 0.057,
}
_BRIDGE_ERRORS = {
    ("b200", "half", True): 0.134,
    ("b200", "mxfp8", True): 0.221,
    ("b200", "nvfp4", True): 0.139,
    ("b300", "half", True): 0.125,
    ("b300", "mxfp8", True): 0.072,
    ("b300", "nvfp4", True): 0.096,
    ("gb200", "mxfp8", True): 0.114,
    ("gb200", "nvfp4", True): 0.225,
    ("gb300", "fp8", False): 0.048,
    ("gb300", "half", True): 0.114,
    ("gb300", "mxfp8", False): 0.066,
    ("gb300", "mxfp8", True): 0.097,
    ("gb300", "nvfp4", False): 0.061,
    ("gb300", "nvfp4", True): 0.048,
    ("h100", "fp8", False): 0.070,
    ("h100", "fp8", True): 0.086,
}
_TITAN_LINKS = {"h100-96": (0.6812, 0.6981)}

PROGRAMS: Mapping[str, MeasuredProgram] = {
    "fsdp": MeasuredProgram(
        efficiencies=_FSDP,
        links={"a100-40": (0.6184, 0.6535), "a100-80": (0.6832, 0.5493), "h100": (0.7166, 0.5412)},
        errors=_FSDP_ERRORS,
        stand_in="h100",
    ),
    "torchtitan": MeasuredProgram(
        efficiencies={"h100-96": _TITAN}, links=_TITAN_LINKS, errors=_TITAN_ERRORS, stand_in="h100-96"
    ),
    "torchtitan-eager": MeasuredProgram(
        efficiencies={"h100-96": _TITAN_EAGER}, links=_TITAN_LINKS, errors=_TITAN_ERRORS, stand_in="h100-96"
    ),
    "megatron-bridge": MeasuredProgram(
        efficiencies=_BRIDGES, links=dict.fromkeys(_BRIDGES, _LINKS), errors=_BRIDGE_ERRORS, stand_in="h100"
    ),
    "megatron-bridge-26.04": MeasuredProgram(
        efficiencies={gpu: dataclasses.replace(one, **_OLDER) for gpu, one in _BRIDGES.items()},
        links=dict.fromkeys(_BRIDGES, _LINKS),
        errors=_BRIDGE_ERRORS,
        stand_in="h100",
    ),
}
"""llm-foundry's FSDP, torchtitan, and Megatron-Bridge from release 26.06 on and up to 26.04.

Constants are fitted to all published rows at hand. Errors are means over rows that 20 fits did not see, a third of all
each time, whole pairs of model and GPU among them. ``python experiments/step_times/run.py`` prints both.
"""


def usual_program(gpu: str) -> str:
    """Return the name of the efficiency that stands for a GPU if none is named."""
    return "megatron-bridge" if gpu in (*_BRIDGES, "h200", "h100-96") else "megatron"


def remark(efficiency: str, gpu: str, precision: str, model: Model) -> str:
    """Return in a line how far an estimate is expected to be off, or that nothing was measured that tells."""
    experts = bool(np.max(getattr(model, "experts", 1)) > 1)
    if not hasattr(model, "experts"):
        return "no measured steps of such a model, error unknown"
    if efficiency in PROGRAMS:
        return PROGRAMS[efficiency].remark(gpu, precision, experts)
    error = _A100_ERRORS.get(efficiency)
    if error is None or not gpu.startswith("a100") or precision != "half" or experts:
        kind = "mixtures of experts" if experts else "dense models"
        return f"no measured steps of {kind} in {precision} on {gpu} under {efficiency}, error unknown"
    return f"{100 * error:.0f} % typical error of GPT models on {gpu}"


_A100_ERRORS = {"megatron": 0.03, "eager": 0.04}
"""Of the published times of Megatron-LM, to which it was fitted, and of measured steps that were kept out."""
