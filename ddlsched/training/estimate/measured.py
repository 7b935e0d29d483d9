"""How far GPUs stay below their data sheets under programs whose step times are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddlsched.errors import InputError
from ddlsched.training.estimate.hardware import Efficiency

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that trains, as its published times show it.

    Attributes
    ----------
    efficiencies
        By name of a GPU that has rows.
    links
        Shares of the data sheet's bandwidth inside and between nodes, by GPU.
    errors
        Mean error on rows that were kept out, by GPU, precision and whether the model has experts.
    stand_ins
        GPUs without rows, and the one whose efficiency stands in.
    """

    efficiencies: Mapping[str, Efficiency]
    links: Mapping[str, tuple[float, float]]
    errors: Mapping[tuple[str, str, bool], float]
    stand_ins: Mapping[str, str]

    def known(self, gpu: str) -> str:
        """Return the GPU whose constants serve for one.

        Raises
        ------
        InputError
            Neither it nor one alike has rows.
        """
        found = gpu if gpu in self.efficiencies else self.stand_ins.get(gpu)
        if found is None:
            known = ", ".join((*self.efficiencies, *self.stand_ins))
            raise InputError(f"GPU {gpu}: this program was measured on others; expected one of {known}")
        return found

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


PROGRAMS: Mapping[str, Program] = {}
