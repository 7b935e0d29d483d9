"""How fast each model trains on each kind of GPU: a matrix, as Gavel's.

:mod:`ddlsched.cluster.cluster_files` reads one from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ddlsched.errors import InputError

__all__ = ["Throughputs"]

_MOST = 1e9


@dataclass(frozen=True, kw_only=True)
class Throughputs:
    """The throughput of each model on each kind of GPU, as iterations or samples a second, or relative.

    Parameters
    ----------
    values
        Model, kind and throughput, finite and > 0.
    reference_kind
        The kind on which jobs take the times that the workload says; by default a throughput of 1 means those times.
    source
        The file, for messages.

    Raises
    ------
    InputError
        A throughput that is none, a pair twice, or a model without one on the reference kind.
    """

    values: tuple[tuple[str, str, float], ...]
    reference_kind: str | None = None
    source: str = "throughputs"

    def __post_init__(self) -> None:
        for model, kind, throughput in self.values:
            if not 1 / _MOST <= throughput <= _MOST:
                raise InputError(
                    f"{self.source}: the throughput of model {model!r} on {kind!r} is {throughput}; expected a number "
                    f"from {1 / _MOST:g} to {_MOST:g}"
                )
        if len(self._by_pair) < len(self.values):
            raise InputError(f"{self.source}: has a model and kind twice; expected each once")
        if self.reference_kind is not None:
            for model, _, _ in self.values:
                self._of(model, self.reference_kind, f"{self.source}")

    @cached_property
    def _by_pair(self) -> dict[tuple[str, str], float]:
        return {(model, kind): throughput for model, kind, throughput in self.values}

    @property
    def models(self) -> list[str]:
        """The models, in the order of the values."""
        return list(dict.fromkeys(model for model, _, _ in self.values))

    @property
    def kinds(self) -> list[str]:
        """The kinds, in the order of the values."""
        return list(dict.fromkeys(kind for _, kind, _ in self.values))

    def speed(self, model: str | None, kind: str, where: str) -> float:
        """Return how many times as fast a job of a model computes on a kind as its times say.

        Raises
        ------
        InputError
            There is no throughput of the pair; ``where`` is the job's place in the workload, for the message.
        """
        if model is None:
            raise InputError(f"{where}, column model: is empty; expected one of the models of {self.source}")
        reference = 1.0 if self.reference_kind is None else self._of(model, self.reference_kind, where)
        return self._of(model, kind, where) / reference

    def _of(self, model: str, kind: str, where: str) -> float:
        if (model, kind) not in self._by_pair:
            row = f"row of model {model!r}, column {kind!r}"
            raise InputError(
                f"{where}: {self.source} has no throughput in the {row}; expected a number > 0 for each model of the "
                "workload and each kind of GPU"
            )
        return self._by_pair[model, kind]
