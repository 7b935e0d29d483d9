"""How far GPUs stay below their data sheets under programs whose step times are published."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddlsched.training.estimate.hardware import Efficiency, clock
from ddlsched.training.estimate.models import Model, Transformer
from ddlsched.training.estimate.presets import GPUS

__all__ = ["PROGRAMS", "RELEASE_GAIN", "MeasuredProgram", "remark", "usual_program"]


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
    unseen
        The same of rows whose model was kept out as a whole, by whether it has experts.
    models
        Layers, hidden size and experts of the models that have rows.
    stand_in
        The GPU whose efficiency stands in for those without rows.
    """

    efficiencies: Mapping[str, Efficiency]
    links: Mapping[str, tuple[float, float]]
    errors: Mapping[tuple[str, str, bool], float]
    unseen: Mapping[bool, float]
    models: Collection[tuple[int, int, int]]
    stand_in: str

    def known(self, gpu: str) -> str:
        """Return the GPU whose constants serve for one."""
        return gpu if gpu in self.efficiencies else self.stand_in

    def remark(self, gpu: str, precision: str, model: Transformer) -> str:
        """Return in a line how far estimates are expected to be off, or what they were carried over from."""
        known, experts = self.known(gpu), bool(np.max(model.experts) > 1)
        error = self.errors.get((known, precision, experts))
        kind = f"{'mixtures of experts' if experts else 'dense models'} in {precision} on {gpu}"
        if known != gpu:
            return f"no measured steps on {gpu}: constants of {known}, error unknown"
        if error is None:
            return f"no measured steps of {kind}: constants of others, error unknown"
        if (model.num_layers, model.hidden, model.experts) in self.models:
            return f"{100 * error:.0f} % typical error of {kind}"
        return (
            f"{100 * max(error, self.unseen[experts]):.0f} % typical error of {kind} where other models were measured"
        )


def _efficiency(matrix: float, attention: float, memory: float, gap_s: float, taken: float, **more: Any) -> Efficiency:
    return Efficiency(matrix=matrix, attention=attention, memory=memory, gap_s=gap_s, taken=taken, **more)


_FSDP = {
    "a100-40": _efficiency(0.8101, 0.6333, 0.3711, 1.239e-05, 1.216),
    "a100-80": _efficiency(0.9507, 0.6564, 0.1971, 1.091e-05, 0.9201),
    "h100": _efficiency(0.6901, 0.3575, 0.4123, 0.0001001, 0.5874, by_precision={"fp8": 0.5746}),
}
_TITAN = _efficiency(0.6029, 0.5128, 0.275, 9.893e-06, 0.5011, by_precision={"fp8": 0.5851}, exposed=1.184)
_TITAN_EAGER = dataclasses.replace(_TITAN, gap_s=3.162e-05)
RELEASE_GAIN = 0.01705
"""By how much Megatron-Bridge's releases up to 26.04 are each faster than the one before."""
_BRIDGE = Efficiency(
    memory=0.3615,
    casting=0.1969,
    experts=0.6977,
    expert_rows=305.3,
    expert_s=0.0002108,
    sorting=2.476,
    exposed=0.4424,
    scattered=1.102,
    gap_s=8.088e-05,
    taken=0.3176,
)
_HOPPER = dataclasses.replace(_BRIDGE, matrix=0.7057, attention=1.007, by_precision={"fp8": 0.6508})
_BLACKWELL = dataclasses.replace(
    _BRIDGE,
    matrix=0.5357,
    attention=1.141,
    by_precision={"fp8": 0.8144, "mxfp8": 0.753, "nvfp4": 0.513},
)
_BRIDGES = {"h100": _HOPPER} | {
    name: _BLACKWELL.at_clock(clock(GPUS[name], GPUS["gb300"])) for name in ("b200", "b300", "gb200", "gb300")
}
_GRAPHS: dict[str, Any] = {"gap_s": 9.889e-07, "expert_s": 0.0003565, "sorting": 0.4815}
"""What differs where a whole step is launched as one CUDA graph."""
_LINKS = (0.7529, 0.6348)
_FSDP_ERRORS = {
    ("a100-40", "half", False): 0.036,
    ("a100-80", "half", False): 0.042,
    ("h100", "fp8", False): 0.050,
    ("h100", "half", False): 0.029,
}
_TITAN_ERRORS = {
    ("h100-96", "fp8", False): 0.086,
    ("h100-96", "half", False): 0.058,
}
_BRIDGE_ERRORS = {
    ("b200", "half", True): 0.065,
    ("b200", "mxfp8", True): 0.107,
    ("b200", "nvfp4", True): 0.063,
    ("b300", "half", True): 0.093,
    ("b300", "mxfp8", True): 0.034,
    ("b300", "nvfp4", True): 0.077,
    ("gb200", "mxfp8", True): 0.106,
    ("gb200", "nvfp4", True): 0.169,
    ("gb300", "fp8", False): 0.047,
    ("gb300", "half", True): 0.079,
    ("gb300", "mxfp8", False): 0.068,
    ("gb300", "mxfp8", True): 0.076,
    ("gb300", "nvfp4", False): 0.060,
    ("gb300", "nvfp4", True): 0.070,
    ("h100", "fp8", False): 0.044,
    ("h100", "fp8", True): 0.056,
}
_TITAN_LINKS = {"h100-96": (0.6814, 0.6982)}

_MPT = ((24, 1536, 1), (24, 2048, 1), (32, 2560, 1), (32, 4096, 1), (40, 5120, 1), (48, 7168, 1), (80, 8192, 1))
_LLAMAS = ((32, 4096, 1), (80, 8192, 1), (126, 16384, 1))
_MIXTURES = ((61, 7168, 256), (36, 2880, 128), (52, 2688, 128), (88, 4096, 512), (94, 4096, 128), (48, 2048, 128))

_TORCHTITAN = MeasuredProgram(
    efficiencies={"h100-96": _TITAN},
    links=_TITAN_LINKS,
    errors=_TITAN_ERRORS,
    unseen={False: 0.065},
    models=_LLAMAS,
    stand_in="h100-96",
)
_MEGATRON_BRIDGE = MeasuredProgram(
    efficiencies=_BRIDGES,
    links=dict.fromkeys(_BRIDGES, _LINKS),
    errors=_BRIDGE_ERRORS,
    unseen={False: 0.044, True: 0.120},
    models=(*_LLAMAS[1:], *_MIXTURES),
    stand_in="h100",
)
_IN_GRAPHS = {gpu: dataclasses.replace(one, **_GRAPHS) for gpu, one in _BRIDGES.items()}

PROGRAMS: Mapping[str, MeasuredProgram] = {
    "fsdp": MeasuredProgram(
        efficiencies=_FSDP,
        links={"a100-40": (0.6182, 0.6537), "a100-80": (0.6832, 0.5493), "h100": (0.7151, 0.5395)},
        errors=_FSDP_ERRORS,
        unseen={False: 0.035},
        models=_MPT,
        stand_in="h100",
    ),
    "torchtitan": _TORCHTITAN,
    "torchtitan-eager": dataclasses.replace(_TORCHTITAN, efficiencies={"h100-96": _TITAN_EAGER}),
    "megatron-bridge": _MEGATRON_BRIDGE,
    "megatron-bridge-graphs": dataclasses.replace(_MEGATRON_BRIDGE, efficiencies=_IN_GRAPHS),
}
"""llm-foundry's FSDP, torchtitan, and Megatron-Bridge, its kernels launched one by one or a step as one CUDA graph.

Constants are fitted to all published rows at hand. Errors are means over rows that 20 fits did not see, a third of all
each time, whole pairs of model and GPU among them; of models without rows over those kept out whole, one after another.
``python experiments/step_times/run.py`` prints all.
"""


def usual_program(gpu: str) -> str:
    """Return the name of the efficiency that stands for a GPU if none is named."""
    return "megatron-bridge" if gpu in (*_BRIDGES, "h200", "h100-96") else "megatron"


def remark(efficiency: str, gpu: str, precision: str, model: Model) -> str:
    """Return in a line how far an estimate is expected to be off, or that nothing was measured that tells."""
    if not isinstance(model, Transformer):
        return "no measured steps of such a model, error unknown"
    if efficiency in PROGRAMS:
        return PROGRAMS[efficiency].remark(gpu, precision, model)
    experts = bool(np.max(model.experts) > 1)
    error = _A100_ERRORS.get(efficiency)
    if error is None or not gpu.startswith("a100") or precision != "half" or experts:
        kind = "mixtures of experts" if experts else "dense models"
        return f"no measured steps of {kind} in {precision} on {gpu} under {efficiency}, error unknown"
    return f"{100 * error:.0f} % typical error of GPT models on {gpu}"


_A100_ERRORS = {"megatron": 0.03, "eager": 0.04}
"""Of the published times of Megatron-LM, to which it was fitted, and of measured steps that were kept out."""
