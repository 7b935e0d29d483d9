"""Draws: the same jobs with lengths that differ by a hair, for what one run of a trace is worth."""

from __future__ import annotations

import dataclasses

import numpy as np

from ddlsched.errors import InputError
from ddlsched.units import is_whole
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Workload

__all__ = ["HAIR", "drawn"]

HAIR = 1e-3
"""By so large a part, or by one iteration if that is more, a draw's jobs are longer or shorter at most."""


def drawn(workload: Workload, draw: int) -> Workload:
    """Return a draw of a workload: each job of at least two iterations is up to a hair longer or shorter, at random.

    Draw 0 is the workload itself. An elastic job's samples take the place of iterations.

    Raises
    ------
    InputError
        ``draw`` is no whole number from 0.
    """
    if not is_whole(draw, 0):
        raise InputError(f"draw is {draw!r}; expected a whole number >= 0")
    if draw == 0:
        return workload
    names = ["samples" if isinstance(job, ElasticJob) else "iterations" for job in workload]
    lengths = np.array([getattr(job, name) for name, job in zip(names, workload, strict=True)])
    most = np.where(lengths > 1, np.maximum(np.rint(HAIR * lengths), 1), 0).astype(np.int64)
    new = lengths + np.random.default_rng(draw).integers(-most, most, endpoint=True)
    changed = zip(workload, names, new.tolist(), strict=True)
    return dataclasses.replace(
        workload, jobs=tuple(dataclasses.replace(job, **{name: length}) for job, name, length in changed)
    )
