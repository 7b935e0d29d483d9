"""The fit of size-shares, what it refuses, what the command prints of it, and what measurements reach."""

from __future__ import annotations

import itertools
import json
from math import inf
from pathlib import Path

import numpy as np
import pytest
from command_line import run

import ddlsched
from ddlsched.errors import InputError
from ddlsched.plugins.names import resolve
from ddlsched.real.calibration.measurements import Measurements, Reach
from ddlsched.real.calibration.shares import COLUMNS, ShareRows, fit_size_shares, read_shares
from ddlsched.workload.elastic_job import messages_and_workers

TRUE = {"latency_s": 0.002, "per_byte_s": 8e-8, "step_s": 0.001}
SIZES = (2e5, 4e5, 8e5, 1.6e6)
PAIRS = [(2e5, 8e5), (2e5, 1.6e6), (4e5, 1.6e6), (8e5, 1.6e6)]


def busy_s(message_bytes: float, servers: int) -> float:
    """Return how long an all-reduce keeps its links busy by the true constants."""
    steps = 2 * (servers - 1)
    return TRUE["per_byte_s"] * message_bytes * steps / servers + steps * TRUE["step_s"]


def alone() -> Measurements:
    settings = list(itertools.product((1, 2), SIZES, (2, 4)))
    seconds = [TRUE["latency_s"] + jobs * busy_s(size, servers) for jobs, size, servers in settings]
    jobs, sizes, servers = np.array(settings, np.float64).T
    return Measurements(jobs, sizes, np.array(seconds), servers)


def shares(
    exponent: float, window_bytes: float, chunk_s: float | None = None, noise: float = 0.0, seed: int = 0
) -> ShareRows:
    """Return rows of pairs with the times that follow from the constants, and of messages in chunks."""
    rng, rows = np.random.default_rng(seed), []
    for servers, (small, large) in itertools.product((2, 4), PAIRS):
        weights = [min(size / servers, window_bytes) ** exponent for size in (small, large)]
        seconds = TRUE["latency_s"] + busy_s(small, servers) * sum(weights) / weights[0]
        rows.append((small, large, servers, 0, seconds * np.exp(rng.normal(0, noise))))
    if chunk_s is not None:
        rows.append((1.2e6, 0, 2, 4e5, TRUE["latency_s"] + busy_s(1.2e6, 2) + 2 * chunk_s))
    return ShareRows(*np.array(rows, np.float64).T)


@pytest.mark.long
@pytest.mark.parametrize(("exponent", "window_bytes"), [(0.5, inf), (1.0, 2.5e5), (0.8, 1.6e5), (0.0, inf)])
def test_exact_times_give_the_constants_back(exponent: float, window_bytes: float) -> None:
    fit = fit_size_shares(shares(exponent, window_bytes, 0.003), alone())
    found = {name: constant.value for name, constant in fit.constants.items()}
    assert {name: found[name] for name in TRUE} == pytest.approx(TRUE, rel=1e-5)
    assert found["exponent"] == pytest.approx(exponent, abs=0.02)
    assert found["chunk_s"] == pytest.approx(0.003, rel=1e-4)
    assert fit.chunk_bytes == 4e5
    if exponent > 0:
        assert found["window_bytes"] == pytest.approx(window_bytes, rel=0.06)


@pytest.mark.slow
def test_intervals_hold_the_true_constants_of_noisy_times() -> None:
    held = []
    for seed in range(4):
        found = fit_size_shares(shares(0.8, 2.5e5, 0.003, noise=0.05, seed=seed), alone()).constants
        for name, value in (("exponent", 0.8), ("window_bytes", 2.5e5)):
            assert found[name].low <= found[name].value <= found[name].high
            held.append(found[name].low <= value <= found[name].high)
    assert sum(held) >= 6


@pytest.mark.long
def test_presets_are_what_simulate_takes() -> None:
    fit = fit_size_shares(shares(1.0, inf, 0.003), alone())
    whole, in_chunks = resolve("contention", fit.whole), resolve("contention", fit.in_chunks)
    assert (whole.exponent, whole.window_bytes, whole.step_s) == pytest.approx((1.0, inf, 0.001), rel=1e-4)
    assert resolve("contention", fit.of_connections).step_s == pytest.approx(0.001, rel=1e-4)
    assert (in_chunks.chunk_bytes, in_chunks.chunk_s) == pytest.approx((4e5, 0.003), rel=1e-4)
    assert np.isnan(without := fit_size_shares(shares(1.0, inf), alone()).chunk_bytes), without
    assert fit_size_shares(shares(1.0, inf), alone()).in_chunks.count("chunk") == 0


@pytest.mark.long
def test_rings_of_one_size_that_were_alone_tell_no_time_of_a_step() -> None:
    rows = alone()
    fit = fit_size_shares(shares(0.5, inf), rows.rows((rows.servers == 2) & (rows.jobs == 1)))
    assert set(fit.constants) == {"latency_s", "per_byte_s", "exponent", "window_bytes"}


def written(path: Path, lines: list[str], columns: tuple[str, ...] = COLUMNS) -> Path:
    path.write_text("\n".join([",".join(columns), *lines]) + "\n", encoding="utf-8")
    return path


GOOD = ["200000,800000,2,0,0.07", "200000,1600000,2,0,0.06", "400000,1600000,2,0,0.1"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*GOOD, "200000,soon,2,0,0.07"], r"shares\.csv, row 4 \(line 5\), column other_bytes: 'soon' is no number"),
        ([*GOOD, "200000,800000,1,0,0.07"], "column servers: '1' is out of range or not whole"),
        ([*GOOD, "200000,800000,2,0,0"], "column transfer_s: '0' is out of range; expected a finite number > 0"),
        ([*GOOD, "800000,200000,2,0,0.1"], "column other_bytes: 200000 is out of range; expected 0, or more than mess"),
        ([GOOD[0], "800000,0,2,400000,0.07"], "holds 1 rows of whole messages beside other_bytes; expected at least 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_shares(written(tmp_path / "shares.csv", lines))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="column 'other_bytes' is missing"):
        read_shares(written(tmp_path / "shares.csv", ["1"], ("message_bytes",)))


def job(name: str, gpus: int, message_mb: float) -> ddlsched.Job:
    iteration = ddlsched.DataParallelIteration(forward_s=0.1, backward_s=0.1, message_bytes=message_mb * 1e6)
    return ddlsched.Job(
        job_id=name, arrival_s=0.0, num_gpus=gpus, iterations=1, iteration=iteration, gpu_memory_mb=100.0
    )


def test_what_is_beyond_the_measurements_is_said() -> None:
    reach = Reach.of(alone())
    assert str(reach) == "messages of 0.2 to 1.6 MB, rings of 2 to 4 servers, 1 to 2 at a time"
    assert reach.beyond(messages_and_workers([job("a", 4, 1.0), job("one", 1, 500.0)])) == []
    jobs = [job("a", 2, 2.4), job("b", 8, 0.1), job("c", 3, 0.5), job("d", 16, 0.5)]
    assert reach.beyond(messages_and_workers(jobs)) == [
        "2 of 4 jobs reduce 0.1 to 2.4 MB; measured were 0.2 to 1.6 MB",
        "2 of 4 jobs may have rings of 8 to 16 servers; measured were 2 to 4",
    ]
    rows = alone()
    unknown = Reach.of(Measurements(rows.jobs, rows.message_bytes, rows.seconds))
    assert [line.split(" jobs ")[1][:6] for line in unknown.beyond(messages_and_workers(jobs))] == ["reduce"]


def lines(formats: str, *columns: np.ndarray) -> list[str]:
    return [formats.format(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    rows, beside, jobs = alone(), shares(1.0, 2.5e5, 0.003), tmp_path / "jobs.csv"
    calibration = written(
        tmp_path / "calibration.csv",
        lines("{:.0f},{:.0f},{!r},{:.0f}", rows.jobs, rows.message_bytes, rows.seconds, rows.servers),
        ("concurrent_jobs", "message_bytes", "transfer_s", "servers"),
    )
    columns = beside.message_bytes, beside.other_bytes, beside.servers, beside.chunk_bytes, beside.seconds
    jobs.write_text(
        "job_id,arrival_s,gpus,iterations,forward_s,backward_s,message_bytes,gpu_memory_mb\n"
        "a,0,4,40,0.03,0.07,800000,100\nb,0,8,40,0.03,0.07,4000000,100\n",
        encoding="utf-8",
    )
    beside_file = written(tmp_path / "shares.csv", lines("{:.0f},{:.0f},{:.0f},{:.0f},{!r}", *columns))
    return calibration, beside_file, jobs


@pytest.mark.long
def test_the_command_fits_shares_and_says_what_is_beyond(files: tuple[Path, Path, Path]) -> None:
    calibration, beside, jobs = files
    done = run("calibrate", calibration, "--shares", beside, "--workload", jobs)
    assert "size-shares, by messages of two sizes beside each other:" in done.stdout
    assert "  --contention size-shares:latency_s=0.002,per_byte_s=8e-08,step_s=0.001,exponent=" in done.stdout
    assert "chunk_bytes=400000,chunk_s=0.003" in done.stdout
    assert "  --contention connection-shares:latency_s=0.002,per_byte_s=8e-08,step_s=0.001\n" in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "Measured were messages of 0.2 to 1.6 MB, rings of 2 to 4 servers, 1 to 2 at a time.",
        f"{jobs}: 1 of 2 jobs reduce 4 MB; measured were 0.2 to 1.6 MB",
        f"{jobs}: 1 of 2 jobs may have rings of 8 servers; measured were 2 to 4",
    ]


@pytest.mark.long
def test_the_command_answers_in_json(files: tuple[Path, Path, Path]) -> None:
    calibration, beside, jobs = files
    found = json.loads(run("calibrate", calibration, "--shares", beside, "--workload", jobs, "--json").stdout)
    constant = found["size_shares"]["constants"]["window_bytes"]
    assert constant["low"] <= constant["value"]
    assert found["size_shares"]["contention"].startswith("size-shares:latency_s=0.002,")
    assert len(found["beyond"]) == 2


def test_cells_of_shares_may_be_as_large_as_they_can_and_not_larger(tmp_path: Path) -> None:
    header = "message_bytes,other_bytes,servers,chunk_bytes,transfer_s\n"
    pairs = "1,2,2,0,1\n" * 3
    for row, said in (
        ("5,0,2,0,1000000", ""),
        ("5,0,2,0,1000000.5", "transfer_s"),
        ("5,0,2,0,0", "transfer_s"),
        ("0,0,2,0,1", "message_bytes"),
        ("5,-1,2,0,1", "other_bytes"),
        ("5,5,2,0,1", "column other_bytes: 5 is out of range; expected 0, or more than message_bytes"),
        ("5,0.5,2,0,1", "column other_bytes: 0.5 is out of range"),
        ("5,6,1,0,1", "servers"),
        ("5,6,2,1,1", ""),
    ):
        (tmp_path / "s.csv").write_text(header + pairs + row + "\n")
        if said:
            with pytest.raises(InputError, match=said):
                read_shares(tmp_path / "s.csv")
        else:
            assert read_shares(tmp_path / "s.csv").seconds[3] == float(row.split(",")[-1])
    for few in (2, 3):
        rows = "1,2,2,0,1\n" * few + "1,2,2,7,1\n1,0,2,0,1\n"  # of messages in chunks, and of one alone
        (tmp_path / "s.csv").write_text(header + rows)
        if few < 3:
            with pytest.raises(
                InputError, match="holds 2 rows of whole messages beside other_bytes; expected at least 3"
            ):
                read_shares(tmp_path / "s.csv")
        else:
            assert len(read_shares(tmp_path / "s.csv").seconds) == 5
