"""Jobs alone, and what they tell of rings that wait."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.network.connection_shares import ConnectionShares

alone, mixes, run = scripts_of("fidelity", "alone", "mixes", "run")
MODEL = ConnectionShares(per_byte_s=1e-8, step_s=1e-3)


def rings(wait: float) -> pd.DataFrame:
    """Return rings of 2, 3 and 4 servers, each further server of which adds so much."""
    rows = [(servers, 1e6 * size) for servers in (2, 3, 4) for size in (0.5, 1.0, 2.0)]
    table = pd.DataFrame(rows, columns=["servers", "message_bytes"])
    steps = 2 * (table.servers - 1)
    links_s = table.message_bytes * steps / table.servers * 1e-8 + steps * 1e-3
    return table.assign(transfer_s=links_s * (1 + wait * (table.servers - 1)))


def test_the_wait_that_made_the_times_is_found() -> None:
    found = alone.fitted_wait(rings(0.07), MODEL)
    assert [found.value, found.low, found.high] == pytest.approx([0.07] * 3)


def test_what_single_jobs_are_off_makes_the_interval() -> None:
    table = rings(0.07)
    table["transfer_s"] *= 1 + 0.05 * np.cos(np.arange(len(table)))
    found = alone.fitted_wait(table, MODEL)
    assert found.low < found.value < found.high
    assert 0.01 < found.high - found.low < 0.05


def test_jobs_alone_are_those_of_the_mixes() -> None:
    jobs = [alone.drawn(number) for number in range(alone.JOBS)]
    assert [jobs.count(job) for job in jobs] == [1] * alone.JOBS
    assert {job.num_gpus for job in jobs} == {2, 3, 4}
    assert all(0.2e6 <= job.iteration.message_bytes <= 2.4e6 and job.iteration.buckets == 1 for job in jobs)


def test_the_measured_jobs_alone_give_the_wait_of_connection_shares() -> None:
    folder = EXPERIMENTS / "fidelity" / "measured"
    wait = run.ring_wait(folder)
    assert run.fitted(folder)["connection-shares"].contention.wait == wait.value
    assert run.fitted(folder)["- no wait"].contention.wait == 0
    assert alone.text(pd.read_csv(folder / "alone.csv"), wait).startswith(
        "36 jobs alone: each further server of a ring"
    )
