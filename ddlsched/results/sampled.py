"""What part of a sampled run was computed, and how far such runs are from exact ones at the same placements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlsched.results.result import Result

__all__ = ["STATED", "SampledError", "sampled_text", "sampling_class"]


@dataclass(frozen=True)
class SampledError:
    """The measured error of a class of runs, in %: the average JCT's (rms), and what 95 % of jobs are within.

    ``benchmarks/sampling_error.py`` measures it, on seeds that chose nothing in the method.
    """

    average_percent: float
    jobs_percent: float


STATED = {
    "no transfer held back": SampledError(0.2, 1.5),
    "transfers held back for up to a third of their time": SampledError(0.5, 5.3),
    "transfers held back for more than a third of their time": SampledError(1.3, 12.9),
}
"""By how much of their time transfers are held back: ``benchmarks/sampling_error.csv``, rounded up."""


def sampling_class(result: Result) -> str:
    """Return the class of :data:`STATED` that a run is of."""
    held_s, sent_s = result.jobs["network_wait_s"].sum(), result.jobs["communication_s"].sum()
    share = held_s / (held_s + sent_s) if held_s + sent_s else 0.0
    return list(STATED)[0 if share < 0.001 else 1 if share <= 1 / 3 else 2]


def sampled_text(result: Result) -> str:
    """Return what a reader of a sampled run's figures must know."""
    contended, computed = result.contended_iterations, result.computed_iterations
    if not result.leapt_iterations:
        return f"Sampled: but all {contended:,} iterations of jobs that share GPUs or links are exact."
    kind, share = sampling_class(result), 100 * computed / contended
    stated = STATED[kind]
    return (
        f"Sampled: of {contended:,} iterations of jobs that share GPUs or links {share:.2f} % were computed. At given "
        f"placements, with {kind}, the average JCT is off by {stated.average_percent:g} % (rms) and 95 % of jobs by at "
        f"most {stated.jobs_percent:g} %; whole runs vary more (--draws)."
    )
