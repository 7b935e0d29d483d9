"""A keyword that is misspelt: what users call says which one was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import ddlsched
from ddlsched.errors import UnknownNameError


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ddlsched.simulate("jobs.csv", clsuter=None), "simulate: no argument is named 'clsuter'. .*'cluster'"),
        (lambda: ddlsched.compare("jobs.csv", "lwf", seed=3), "compare: no argument is named 'seed'. .*'seeds'"),
        (lambda: ddlsched.import_trace("philly", "jobs.csv", sede=1), "import_trace: no argument is named 'sede'"),
        (lambda: ddlsched.microsoft_160(seed=1, scael=2), "microsoft_160: no argument is named 'scael'. .*'scale'"),
        (lambda: ddlsched.report("comparison", output="x"), "report: no argument is named 'output'"),
        (lambda: ddlsched.read_cluster("servers.csv", topologie="star"), "read_cluster: no argument .*'topology'"),
        (lambda: ddlsched.Cluster(num_server=4), "Cluster: no argument is named 'num_server'. .*'num_servers'"),
        (lambda: ddlsched.Job(job="a"), "Job: no argument is named 'job'. .*'job_id'"),
        (lambda: ddlsched.Disturbances(jiter=0.1), "Disturbances: no argument is named 'jiter'. .*jitter"),
        (
            lambda: ddlsched.simulate("jobs.csv", checkpoint="young"),
            r"simulate: no argument is named 'checkpoint'. Expected disturbances=Disturbances\(checkpoint=...\).$",
        ),
        (lambda: ddlsched.DataParallelIteration(forward=1.0), "DataParallelIteration: no argument .*'forward_s'"),
    ],
)
def test_a_misspelt_keyword_gets_the_nearest(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        call()


def test_what_is_missing_is_still_pythons_to_say() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'workload'"):
        ddlsched.simulate()


def test_signatures_stay() -> None:
    assert next(iter(inspect.signature(ddlsched.simulate).parameters)) == "workload"
    assert "num_servers" in inspect.signature(ddlsched.Cluster).parameters
