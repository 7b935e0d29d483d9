"""How far GPUs stay below their data sheets under programs whose step times are published (``programs.yaml``)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ddlsched.training.estimate.hardware import Efficiency, clock
from ddlsched.training.estimate.models import Model, Transformer
from ddlsched.training.estimate.presets import GPUS

__all__ = ["PROGRAMS", "RELEASE_GAIN", "MeasuredProgram", "remark", "usual_program"]


@dataclass(frozen=True)
class MeasuredProgram:
    """A program that trains, as its published times show it.

    Attributes
    ----------
    efficiencies
        By name of a GPU that has rows.
    links
        Shares of the data sheet's bandwidth inside and between nodes, by GPU.
    errors
        Mean error on rows that were kept out, by GPU, kind of model (``dense``, ``experts``) and precision.
    unseen
        The same of rows whose model was kept out as a whole, by kind of model.
    models
        Layers, hidden size and experts of the models that have rows.
    stand_in
        The GPU whose efficiency stands in for those without rows.
    """

    efficiencies: Mapping[str, Efficiency]
    links: Mapping[str, tuple[float, float]]
    errors: Mapping[str, Mapping[str, Mapping[str, float]]]
    unseen: Mapping[str, float]
    models: Collection[tuple[int, int, int]]
    stand_in: str

    def known(self, gpu: str) -> str:
        """Return the GPU whose constants serve for one."""
        return gpu if gpu in self.efficiencies else self.stand_in

    def remark(self, gpu: str, precision: str, model: Transformer) -> str:
        """Return in a line how far estimates are expected to be off, or what they were carried over from."""
        known, experts = self.known(gpu), bool(np.max(model.experts) > 1)
        of_kind = "experts" if experts else "dense"
        error = self.errors[known].get(of_kind, {}).get(precision)
        kind = f"{'mixtures of experts' if experts else 'dense models'} in {precision} on {gpu}"
        if known != gpu:
            return f"no measured steps on {gpu}: constants of {known}, error unknown"
        if error is None:
            return f"no measured steps of {kind}: constants of others, error unknown"
        if (model.num_layers, model.hidden, model.experts) in self.models:
            return f"{100 * error:.0f} % typical error of {kind}"
        return (
            f"{100 * max(error, self.unseen[of_kind]):.0f} % typical error of {kind} where other models were measured"
        )


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program in ``programs.yaml``."""

    efficiencies: dict[str, dict[str, Any]]
    alike: dict[str, list[str]] = {}
    links: dict[str, tuple[float, float]]
    errors: dict[str, dict[str, dict[str, float]]]
    unseen: dict[str, float]
    models: list[tuple[int, int, int]]
    stand_in: str
    variants: dict[str, dict[str, float]] = {}

    def program(self, differs: dict[str, float]) -> MeasuredProgram:
        """Return the program, with some parameters of its efficiencies in place of its own."""
        known = {gpu: Efficiency(**values | differs) for gpu, values in self.efficiencies.items()}
        for like, others in self.alike.items():
            known |= {gpu: known[like].at_clock(clock(GPUS[gpu], GPUS[like])) for gpu in others}
        return MeasuredProgram(known, self.links, self.errors, self.unseen, self.models, self.stand_in)


class _Programs(msgspec.Struct, frozen=True, kw_only=True):
    release_gain: float
    programs: dict[str, _Told]


_READ = msgspec.yaml.decode(Path(__file__).with_name("programs.yaml").read_bytes(), type=_Programs)
RELEASE_GAIN = _READ.release_gain
"""By how much Megatron-Bridge's releases up to 26.04 are each faster than the one before."""
PROGRAMS: Mapping[str, MeasuredProgram] = {
    name: told.program(differs)
    for plain, told in _READ.programs.items()
    for name, differs in [(plain, dict[str, float]()), *told.variants.items()]
}
"""llm-foundry's FSDP, torchtitan, and Megatron-Bridge, its kernels launched one by one or a step as one CUDA graph."""


def usual_program(gpu: str) -> str:
    """Return the name of the efficiency that stands for a GPU if none is named."""
    return "megatron-bridge" if gpu in (*PROGRAMS["megatron-bridge"].efficiencies, "h200", "h100-96") else "megatron"


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
