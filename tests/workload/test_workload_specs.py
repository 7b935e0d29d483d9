"""Workloads by a text: files, registered generators, and functions in a file of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddlsched
from ddlsched.errors import InputError, PluginError, UnknownNameError
from ddlsched.workload.workload_files import draws_from_seed, is_generator, workload_of

GENERATORS = """
import ddlsched

def few(*, seed, jobs: int = 2):
    return ddlsched.Workload.of(ddlsched.microsoft_160(seed=seed, scale=0.01).jobs[:jobs])

def fixed(*, jobs: int):
    return few(seed=7, jobs=jobs)

def nothing(seed):
    return [seed]

def broken(seed):
    raise KeyError(seed)
"""


@pytest.fixture(autouse=True)
def _files(in_a_new_folder):
    Path("gen.py").write_text(GENERATORS)


def test_a_file():
    workload = ddlsched.microsoft_160(seed=3, scale=0.01)
    ddlsched.write_workload(workload, "jobs.csv")
    assert workload_of("jobs.csv", seed=5) == workload
    assert not draws_from_seed("jobs.csv")


def test_a_registered_generator_takes_the_runs_seed():
    assert workload_of("microsoft-160:scale=0.01", seed=3) == ddlsched.microsoft_160(seed=3, scale=0.01)
    assert workload_of("microsoft-160", seed=4) == ddlsched.microsoft_160(seed=4)
    assert draws_from_seed("microsoft-160:scale=0.01")


def test_a_function_of_ones_own():
    assert workload_of("gen.py:few:jobs=3", seed=2).jobs == ddlsched.microsoft_160(seed=2, scale=0.01).jobs[:3]
    assert draws_from_seed("gen.py:few:jobs=3")


def test_a_function_without_a_seed_is_fixed():
    assert workload_of("gen.py:fixed:jobs=3", seed=1) == workload_of("gen.py:fixed:jobs=3", seed=2)
    assert not draws_from_seed("gen.py:fixed:jobs=3")


@pytest.mark.parametrize(
    ("text", "error", "part"),
    [
        ("microsof-160", UnknownNameError, "Did you mean 'microsoft-160'?"),
        ("jobs.txt", UnknownNameError, "no workload is named 'jobs.txt'"),
        ("jobs.csv", InputError, "no such file"),
        ("microsoft-160:scal=1", UnknownNameError, "Did you mean 'scale'?"),
        ("microsoft-160:scale=0", InputError, "scale is 0.0; expected"),
        ("microsoft-160:seed=1", InputError, "seed is given by the run"),
        ("gen.py:fixed", InputError, "parameter jobs is missing"),
        ("gen.py:fewer", UnknownNameError, "has no class or function 'fewer'. Did you mean 'few'?"),
        ("gen.py:nothing", PluginError, "returned list; expected a ddlsched.Workload"),
        ("gen.py:broken", PluginError, "workload broken(seed=1) raised KeyError"),
        ("none.py:few", InputError, "none.py: no such file"),
    ],
)
def test_what_cannot_be_used(text, error, part):
    with pytest.raises(error) as raised:
        workload_of(text, seed=1)
    assert part in str(raised.value)


def test_a_generators_parameter_may_name_a_file():
    assert is_generator("microsoft-160:file=x.csv")
    assert is_generator("gen.py:few:file=x.csv")
    assert not is_generator("folder:with=colons/jobs.csv")


def test_a_generator_makes_a_single_job() -> None:
    assert len(workload_of("monkeytree-mix:jobs=1", seed=1)) == 1
