"""Mixes of jobs simulated, as what runs for real is held against: by contention model, chunks and jitter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.decisions.checked_policies import communication_form
from ddlsched.errors import label
from ddlsched.real.gate.transfer_gate import CHUNK_BYTES
from ddlsched.real.testbed.in_chunks import InChunks
from ddlsched.real.testbed.settings import gate_settings
from ddlsched.simulation import simulate

if TYPE_CHECKING:
    import pandas as pd

    from ddlsched.real.testbed.fidelity import Mix

__all__ = ["RunModel", "simulated_runs"]

_REAL_ONLY = ("chunk_bytes", "window", "slots", "train")
"""What the gate is told and a simulation has not."""


@dataclass(frozen=True, kw_only=True)
class RunModel:
    """How runs are simulated.

    Parameters
    ----------
    contention
        The contention model, an instance or as ``simulate --contention`` takes it.
    in_chunks
        The same where messages go in chunks; by default no other.
    chunks_end
        Whether chunks under way still end when a policy pauses their transfer, as on the testbed
        (:class:`~ddlsched.real.testbed.in_chunks.InChunks`); otherwise transfers pause at once.
    jitter_cv
        Coefficient of variation of compute times.
    seeds
        Over how many seeds of the jitter times are averaged.
    """

    contention: Any
    in_chunks: Any = None
    chunks_end: bool = False
    jitter_cv: float = 0.0
    seeds: int = 1

    def __str__(self) -> str:
        """Return what a list of models says of it."""
        parts = [_told(self.contention)]
        if self.in_chunks is not None:
            parts.append(f"in chunks {_told(self.in_chunks)}")
        if self.chunks_end:
            parts.append("chunks under way end")
        if self.jitter_cv > 0:
            parts.append(f"computes vary by {100 * self.jitter_cv:g} %, mean of {self.seeds} seeds")
        return "; ".join(parts)


def _told(contention: Any) -> str:
    return contention if isinstance(contention, str) else label(contention)


def simulated_runs(mixes: Sequence[Mix], models: Mapping[str, RunModel]) -> pd.DataFrame:
    """Return a row a job of each mix, policy and model: mix, model, policy, job_id, jct_s, iteration_s, finish_s."""
    import pandas as pd

    return pd.concat(list(_simulated(mixes, models)), ignore_index=True)


def _simulated(mixes: Sequence[Mix], models: Mapping[str, RunModel]) -> Iterator[pd.DataFrame]:
    for mix in mixes:
        for policy, given in mix.policies.items():
            for name, model in models.items():
                runs = [_jobs(mix, given, model, seed) for seed in range(model.seeds)]
                table = runs[0][["job_id"]].copy()
                for column in ("jct_s", "finish_s", "iteration_s"):
                    table[column] = np.mean([run[column] for run in runs], axis=0)
                yield table.assign(mix=mix.name, model=name, policy=policy)


def _jobs(mix: Mix, given: Mapping[str, Any], model: RunModel, more_seed: int) -> pd.DataFrame:
    """Return the jobs of one simulated run."""
    settings = gate_settings(mix.cluster, **given)
    pauses = communication_form(settings.communication) != "admit"
    in_chunks = pauses or settings.chunk_bytes is not None
    decides = {name: value for name, value in given.items() if name not in _REAL_ONLY}
    decides["seed"] = settings.seed + more_seed
    if pauses and model.chunks_end:
        chunk_bytes = CHUNK_BYTES if settings.chunk_bytes is None else settings.chunk_bytes
        decides["communication"] = InChunks(
            policy=settings.communication, chunk_bytes=chunk_bytes, window=settings.window
        )
    result = simulate(
        mix.workload,
        mix.cluster,
        contention=model.in_chunks or model.contention if in_chunks else model.contention,
        disturbances=Disturbances(jitter_cv=model.jitter_cv),
        **decides,
    )
    iterations = np.array([job.iterations for job in mix.workload])
    return result.jobs.assign(iteration_s=(result.jobs.finish_s - result.jobs.start_s) / iterations)
