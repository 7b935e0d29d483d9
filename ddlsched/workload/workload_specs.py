"""Workloads by a text: a file, a registered generator, or a function in a file of the user's.

==========================================  ===================================================
``jobs.csv``                                a workload file: .csv, .parquet or .json
``microsoft-160:scale=0.01``                a name from entry points (group ``ddlsched.workload``)
``path/to/gen.py:poisson:rate_per_s=0.1``   a function in a file, with parameters
==========================================  ===================================================

A generator returns a :class:`~ddlsched.workload.job.Workload`. If it has a parameter ``seed``, that is the run's.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddlsched.errors import InputError, PluginError, UnknownNameError, did_you_mean, nearest_names
from ddlsched.plugins.names import Maker, maker, names
from ddlsched.workload.job import Workload
from ddlsched.workload.workload_files import read_workload, refuse_suffix

__all__ = ["draws_from_seed", "is_generator", "nearest_generators", "workload_of"]


def workload_of(text: str, seed: int) -> Workload:
    """Return the workload that a text names, made from ``seed`` if a generator makes it.

    Raises
    ------
    InputError
        No such file, generator or parameter, or a file or parameter that cannot be used.
    PluginError
        The generator raised, or returned no workload.
    """
    if not is_generator(text):
        return read_workload(text)
    make = _generator(text)
    workload = make(seed=seed)
    if not isinstance(workload, Workload):
        raise PluginError(f"workload {make.label} returned {type(workload).__name__}; expected a ddlsched.Workload")
    return workload


def draws_from_seed(text: str) -> bool:
    """Return whether the seed makes the jobs."""
    return is_generator(text) and "seed" in _generator(text).supplied


def is_generator(text: str) -> bool:
    """Return whether a text names a generator; if not, it is a file.

    Raises
    ------
    UnknownNameError
        It looks like neither.
    """
    if ".py:" in text or text.partition(":")[0] in names("workload"):
        return True
    try:
        refuse_suffix(Path(text))
    except InputError:
        if os.path.exists(text):  # noqa: PTH110 (which raises if it is too long); what reads it says what is wrong
            return False
        hint = did_you_mean(text.partition(":")[0], names("workload"))
        yours = "A file: jobs.csv, .parquet or .json. A function of your own: path/to/file.py:function"
        raise UnknownNameError(f"no workload is named {text!r}.{hint} {yours}") from None
    return False


def nearest_generators(text: str) -> list[str]:
    """Return the names of generators that a text which names none could mean."""
    return nearest_names(text.partition(":")[0], names("workload"))


def _generator(text: str) -> Maker:
    return maker("workload", text, supplied=("seed",))
