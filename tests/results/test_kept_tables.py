"""All tables of runs in which much happens, as they were."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from kept_numbers import assert_kept, digest, short
from mixed_jobs import CAPACITY, FAILING, GROUND, TENANTS, elastic_jobs, jobs

from ddlsched import Disturbances, Result, simulate
from ddlsched.results.explanation import explain, stays_of, transfers_of
from ddlsched.results.reliability import failure_costs_of, failures_of, gpu_time_of, reliability_by_size
from ddlsched.results.tenants import free_gpus_over_time, gpus_over_time, tenant_table

STOPPED: dict[str, Any] = {"order": "stopping-tiresias:threshold_gpu_s=9,interval_s=2", "placement": "lwf"}
RUNS: dict[str, dict[str, Any]] = {
    "shared": {"placement": "lwf", "contention": "max-min", "timeline": True},
    "steady": {"placement": "lwf", "order": "las", "warmup_s": 1.0, "until_s": 12.0, "timeline": (2.0, 6.0)},
    "failing": {"placement": "first-fit", "disturbances": FAILING, "seed": 3},
    "stopped": STOPPED | {"disturbances": Disturbances(restart_s=0.1, state_mb=200.0)},
    "tenants": {"placement": "first-fit", "queues": TENANTS, "admission": "kueue:fair_sharing=true"},
    "elastic": {"allocation": "sia:round_s=10", "capacity": CAPACITY, "rescale_cost": "up_s=2,down_s=1,start_s=0.5"},
}


def told(table: pd.DataFrame) -> str:
    """Rows and columns to read, and nine digits of each number."""
    cells = (short(cell) if isinstance(cell, float) else cell for row in table.itertuples() for cell in row)
    return f"{len(table)} x {len(table.columns)} {digest([*table.columns, *cells])}"


def tables(run: Result, given: dict[str, Any]) -> dict[str, pd.DataFrame]:
    found = {"jobs": run.jobs, "gpus": run.gpus, "links": run.links, "samples": run.samples}
    found |= {"placements": run.placements, "rescales": run.rescales, "gpu time": gpu_time_of(run)}
    found |= {"failures": failures_of(run), "by size": reliability_by_size(run)}
    found["summary"] = pd.Series(run.summary()).drop("engine_s").to_frame()
    if "timeline" in given:
        found["timeline"] = run.timeline
    if "queues" in given:
        found |= {"tenants": tenant_table(run), "used": gpus_over_time(run), "free": free_gpus_over_time(run)}
    for job in [job.job_id for job in run.workload][::9]:
        found[f"stays {job}"] = stays_of(run, job)
        if given.get("timeline") is True:
            found |= {f"explain {job}": explain(run, job), f"transfers {job}": transfers_of(run, job)}
        if given.get("disturbances") is FAILING:
            found[f"costs {job}"] = failure_costs_of(run, job)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_tables_are_what_they_were(name: str) -> None:
    workload = elastic_jobs() if name == "elastic" else jobs(tiers=False)
    run = simulate(workload, GROUND, **{"seed": 1} | RUNS[name])
    assert_kept(f"tables-{name}", {of: told(table) for of, table in tables(run, RUNS[name]).items()})
