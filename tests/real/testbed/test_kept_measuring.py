"""What measurements make of transfers, whose times a stand-in for a run decides, and which runs they ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from kept_numbers import answered, assert_kept, digest, short

from ddlsched.cluster.cluster import Cluster
from ddlsched.real.calibration.measurements import read_measurements
from ddlsched.real.testbed import measuring
from ddlsched.real.testbed.measuring import (
    alone_jobs,
    calibration_settings,
    fitted_constants,
    fitted_models,
    measure_alone,
    measure_settings,
    measure_shares,
    measured_rows,
    share_settings,
    within,
)
from ddlsched.real.testbed.real_run import gate_settings

CLUSTERS = {
    "two": Cluster(num_servers=2, topology="star:nic_gbps=0.1"),
    "six": Cluster(num_servers=6, topology="leaf-spine:servers_per_leaf=3,nic_gbps=0.2"),
}


def told(job: Any) -> str:
    return f"{job.job_id} {job.num_gpus} {job.iterations} {job.arrival_s} {job.gpu_memory_mb} {job.dag.tasks}"


class Runs:
    """Stands for real runs: each iteration of a job takes what its bytes, place and company make of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, workload: Any, settings: Any, crew: str) -> SimpleNamespace:
        assert crew == "the crew"
        self.asked.append(
            f"{settings.cluster.num_servers} {settings.communication!r} {settings.chunk_bytes} {settings.slots} "
            f"{settings.placement.servers} {', '.join(map(told, workload))}"
        )
        rows: list[tuple[Any, ...]] = []
        for job in workload:
            size = max(getattr(task, "message_bytes", 0) for task in job.dag.tasks)
            now_s = 0.001 if rows else 0.003
            for iteration in range(job.iterations):
                # the first two and the last take long, and do not count
                took_s = 0.001 + size * (len(workload) * 8e-9 + job.num_gpus * 1e-9)
                took_s *= {0: 3.0, 1: 1.7, job.iterations - 1: 2.3}.get(iteration, 1.0) * (1 + iteration % 3 / 10)
                rows.append((job.job_id, iteration, size, now_s, now_s + took_s))
                now_s += took_s + 0.002
        names = ["job_id", "iteration", "message_bytes", "granted_s", "ended_s"]
        return SimpleNamespace(transfers=pd.DataFrame(rows, columns=names))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(measuring, "run_for_real", made)
    return made


@pytest.mark.long
def test_what_is_measured_is_what_was_measured(runs: Runs, tmp_path: Path) -> None:
    kept: dict[str, str] = {}
    crew: Any = "the crew"
    for name, cluster in CLUSTERS.items():
        settings = gate_settings(cluster)
        alone = alone_jobs(settings)
        kept[f"{name} jobs alone"] = digest(map(told, alone))
        rings, shares, apart = (tmp_path / f"{name}-{kind}.csv" for kind in ("rings", "shares", "alone"))
        for _ in range(2):  # what is there is not measured again
            rows = measured_rows(rings, settings, crew)
            measure_shares(shares, settings, crew)
            measure_alone(apart, alone, settings, crew)
        kept[f"{name} asked"] = f"{len(runs.asked)} {digest(runs.asked)}"
        runs.asked.clear()
        for path in (rings, shares, apart):
            kept[path.name] = f"{digest([path.read_text()])} {path.read_text().splitlines()[-1]}"
        kept[f"{name} constants"] = str({key: short(value) for key, value in fitted_constants(rows).items()})
        kept[f"{name} models"] = str(fitted_models(measured_rows(rings, settings, None)))
    assert_kept("testbed-measurements", kept)


def test_settings_are_alone_and_in_pairs_on_two_servers_and_on_all() -> None:
    assert calibration_settings(2, (7,)) == [(1, 7, 2), (2, 7, 2)]
    assert calibration_settings(5, (7, 9))[:4] == [(1, size, n) for size in (7, 9) for n in (2, 5)]
    assert [len(calibration_settings(n)) for n in (2, 3)] == [8, 16]
    assert [len(share_settings(n)) for n in (2, 8)] == [6, 12]
    assert [each.chunk_bytes > 0 for each in share_settings(2)] == [False] * 4 + [True] * 2
    assert [len(alone_jobs(gate_settings(cluster))) for cluster in CLUSTERS.values()] == [4, 12]


def test_a_jobs_compute_alone_is_as_long_as_its_ring_should_send() -> None:
    first = alone_jobs(gate_settings(CLUSTERS["two"]))[0]
    computes_ns = [task.duration_ns for task in first.dag.tasks if hasattr(task, "duration_ns")]
    # 200 kB in a ring of two go over a card once, at 12.5 MB/s: 16 ms; backward computes twice as long as forward
    assert sum(computes_ns) == pytest.approx(16e6, abs=5)
    assert min(computes_ns) == pytest.approx(16e6 / 3, abs=5)


def test_the_mean_leaves_out_the_first_two_and_the_last(runs: Runs) -> None:
    settings = gate_settings(CLUSTERS["two"])
    [found] = measure_settings([(2, 1000, 2)], settings, "the crew")  # type: ignore[arg-type]
    # iterations 2 to 10 of twelve: 1 ms and 18 ns a byte, by 1.2, 1 and 1.1 in turn
    assert found.transfer_s == pytest.approx(1.018e-3 * 1.1)
    assert (found.concurrent_jobs, found.message_bytes, found.servers) == (2, 1000, 2)


def test_transfers_that_begin_and_end_within_another_count() -> None:
    measured = pd.DataFrame({"granted_s": [0, 1, 2, 5, 6.0], "ended_s": [1, 2, 4, 6, 9.0]})
    others = pd.DataFrame({"granted_s": [1, 6.0], "ended_s": [3, 9.0]})
    assert within(measured, others).index.tolist() == [1, 4]


def test_where_nothing_lies_beside_another_it_is_told(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "within", lambda measured, _: measured[:0])
    said = answered(measure_shares, tmp_path / "a.csv", gate_settings(CLUSTERS["two"]), "the crew")
    first = "Beside(message_bytes=200000, other_bytes=800000, servers=2, chunk_bytes=0)"
    assert said.startswith(f"{first}: no all-reduce was sent beside")
    assert len(runs.asked) == 1
    assert not (tmp_path / "a.csv").exists()


def test_pinned_jobs_take_the_gpu_with_the_fewest_jobs() -> None:
    cluster: Any = SimpleNamespace(
        gpus_of={0: [0, 1, 2], 3: [9, 10]}.__getitem__, num_residents={0: 2, 1: 1, 2: 1, 9: 0, 10: 0}.__getitem__
    )
    pinned = measuring.Pinned(servers={"a": (3, 0), "b": (0,)})
    assert pinned.place(SimpleNamespace(job_id="a"), cluster) == [9, 1]  # type: ignore[arg-type]


def test_no_model_fits_times_that_do_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "rings.csv"
    rows = [measuring.Measured(jobs, size, 1e4 / size, 2, 1) for jobs in (1, 2) for size in (200_000, 400_000, 800_000)]
    with path.open("w") as file:
        measuring.write_measurements(rows, Path(file.name))
    assert answered(fitted_models, read_measurements(path)).startswith("no contention model fits what was measured")
