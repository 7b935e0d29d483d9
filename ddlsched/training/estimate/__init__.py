"""Training time from first principles: a model, a parallelism and a cluster in, the time of a step out.

It knows no scheduling: :mod:`~.estimated_jobs` hands its estimates to the simulator as ordinary jobs.

Everything here works element by element: wherever a quantity is an :data:`Amount`, a number gives one estimate and
numpy arrays give one estimate an entry. A sweep is the same code as a single estimate.
"""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Amount"]

Amount: TypeAlias = Any
"""A number, or a numpy array of numbers with an entry a configuration; arithmetic broadcasts."""
