"""Recorded jobs simulated alone take as long as they did, and collectives as long as in ASTRA-sim."""

from __future__ import annotations

import numpy as np
import pytest
from experiment_scripts import scripts_of
from measurements import DATA, needs_data

from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

run, astra_sim, rebucketing, measured = scripts_of("recorded_jobs", "run", "astra_sim", "rebucketed", "measured")


@pytest.mark.parametrize(("name", "most_off"), [("cnn", 0.03), ("gpt", 0.03), ("recommender", 0.08)])
def test_a_job_simulated_from_its_recording_takes_what_was_measured(name: str, most_off: float) -> None:
    """The recommender's collectives vary too much for one latency and one time of a byte (see the README)."""
    ranks = measured.traces(name)
    here_s = run.simulated_s(run.merged(ranks).dag, measured.fitted(ranks))
    assert here_s == pytest.approx(measured.step_s(ranks).mean(), rel=most_off)


@pytest.mark.parametrize("name", ["cnn", "gpt", "recommender", *(f"gpt-{size:g}mb" for size in run.SWEPT_MB)])
def test_steps_replayed_with_their_own_collectives_take_what_was_measured(name: str) -> None:
    ranks = measured.traces(name)
    replayed_s, measured_s = measured.replayed_s(ranks), measured.step_s(ranks)
    assert replayed_s.mean() == pytest.approx(measured_s.mean(), rel=0.02)
    assert np.corrcoef(replayed_s, measured_s)[0, 1] > 0.99


@pytest.mark.parametrize("row", astra_sim.collectives(), ids=lambda row: row.what)
def test_a_collective_takes_what_astra_sim_computes(row) -> None:
    assert abs(row.off) < 0.001


@needs_data("training_traces")
def test_chakra_traces_take_what_they_did_in_astra_sim() -> None:
    rows = astra_sim.traces(DATA / "training_traces" / "chakra_synthetic")
    assert {row.what: row.astra_sim_ms for row in rows} == {"serial": 57.58, "ddp_overlap": 57.04}
    for row in rows:
        assert row.simulated_ms == pytest.approx(row.astra_sim_ms, abs=1e-6)


def test_joined_buckets_start_when_the_last_of_them_could() -> None:
    tasks = []
    for number in range(4):
        tasks.append(ComputeTask(name=f"c{number}", duration_ns=5, after=(f"c{number - 1}",) if number else ()))
        before = (f"r{number - 1}",) if number else ()
        tasks.append(AllReduceTask(name=f"r{number}", message_bytes=10.0, after=(*before, f"c{number}")))
    tasks.append(ComputeTask(name="end", duration_ns=5, after=("c3", "r0", "r1", "r2", "r3")))
    joined = rebucketing.rebucketed(IterationDag(tuple(tasks)), 15.0)
    reduces = [(task.message_bytes, task.after) for task in joined.tasks if isinstance(task, AllReduceTask)]
    assert reduces == [(20.0, ("c0", "c1")), (20.0, ("r0", "c2", "c3"))]
    assert joined.tasks[-1].after == ("c3", "r0", "r2")
    assert joined.compute_ns == 25


def test_the_network_of_a_recording_is_found_again() -> None:
    """Two ranks, the second always 3 us late: an all-reduce takes 2 us and 1 ns a byte from then on."""
    from ddlsched.workload.recorded.rank_steps import Communication, RankTrace
    from ddlsched.workload.recorded.wall_time import WallTime

    ranks = []
    for rank, late_ns in enumerate((0, 3000)):
        stretch = WallTime(0, 100_000)
        for place, size in enumerate((1000, 5000)):
            ready_ns = 40_000 * place
            done_ns = ready_ns + 3000 + 2000 + size
            stretch.communicate(
                Communication("all-reduce", size), ready_ns + late_ns, None, (ready_ns + late_ns, done_ns)
            )
        ranks.append(RankTrace("", rank, 2, {}, {0: stretch.step()}, 0))
    line = measured.fitted(ranks)
    assert line.latency_s == pytest.approx(2e-6)
    assert line.per_byte_s == pytest.approx(1e-9)
