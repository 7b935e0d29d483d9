"""The fidelity experiment: its mixes, its plan, and its tables from the runs that are committed."""

from __future__ import annotations

import contextlib
import shutil
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError, TestbedError
from ddlsched.real.calibration import shares as calibration_shares
from ddlsched.real.calibration.fit import ModelForm, tells
from ddlsched.real.calibration.shares import COLUMNS
from ddlsched.real.testbed.fidelity import FidelityReport, Planned
from ddlsched.real.testbed.real_run import RealRun
from ddlsched.real.testbed.run_models import RunModels, run_models
from ddlsched.simulation import simulate
from ddlsched.workload.job import Job

mixes, measuring, run = scripts_of("fidelity", "mixes", "measuring", "run")
FIDELITY = EXPERIMENTS / "fidelity"
MEASURED = FIDELITY / "measured"


@pytest.mark.parametrize("seed", range(12))
def test_a_seed_is_a_mix_within_the_bounds(seed: int) -> None:
    mix = mixes.mix_of(seed, tuple(mixes.POLICIES))
    assert mix == mixes.mix_of(seed, tuple(mixes.POLICIES))
    assert mix.cluster.num_servers in (4, 6, 8)
    assert 2 <= len(mix.workload) <= 6
    pinned = mix.policies["SRSF(1)"]["placement"].servers
    for job in mix.workload:
        assert 2 <= job.num_gpus == len(set(pinned[job.job_id])) <= 4
        assert 0.2e6 <= job.iteration.message_bytes <= 2.4e6
        reduce_s = job.iteration.message_bytes * 2 * (job.num_gpus - 1) / job.num_gpus / 12.5e6
        assert 0.19 < (job.iteration.forward_s + job.iteration.backward_s) / reduce_s < 3.1
    assert "placement" not in mix.policies["Block-SRTF"]


def test_both_halves_meet_every_network() -> None:
    for half in (0, 1):
        assert {mixes.cluster_name(seed) for seed in range(half, 20, 2)} == set(mixes.CLUSTERS)


def full_plan() -> list[Planned]:
    args = run.parsed([])
    return measuring.planned_runs(range(args.mixes), args.compared, args.repeats, mixes.FULL)


@pytest.mark.long
def test_the_full_plan_is_that_of_the_page() -> None:
    planned = full_plan()
    assert len({one.key for one in planned}) == len(planned) == 180 + 20 * 5 * 3
    several = {one.mix.name for one in planned if one.policy != mixes.BASELINE}
    assert {mixes.seed_of(name) % 2 for name in several} == {1}
    on = Counter(mixes.cluster_name(mixes.seed_of(name)) for name in several)
    assert on == dict.fromkeys(mixes.CLUSTERS, 4)


@pytest.mark.long
@pytest.mark.parametrize("part", [0.2, 0.33, 0.5])
def test_a_part_of_the_plan_has_both_halves_all_clusters_and_compared_mixes_in_proportion(part: float) -> None:
    planned = full_plan()
    made = planned[: round(len(planned) * part)]
    seeds = {mixes.seed_of(one.mix.name) for one in made}
    assert abs(sum(seed % 2 for seed in seeds) - len(seeds) / 2) <= 1
    on = Counter(map(mixes.cluster_name, seeds))
    assert max(on[name] for name in mixes.CLUSTERS) - min(on[name] for name in mixes.CLUSTERS) <= 2
    compared = {one.mix.name for one in made if one.policy != mixes.BASELINE}
    assert len(compared) / len(seeds) == pytest.approx(20 / 200, abs=0.06)


@pytest.mark.long
def test_every_policy_of_a_mix_runs_once_before_any_runs_again() -> None:
    own = [one for one in full_plan() if one.mix.name == "seed-1"]
    assert [one.repeat for one in own] == [repeat for repeat in range(3) for _ in mixes.POLICIES]


@pytest.mark.parametrize(("num_mixes", "compared"), [(6, 1), (6, 3), (10, 2), (200, 100), (3, 1), (8, 0), (1, 1)])
def test_as_many_mixes_are_compared_as_asked(num_mixes: int, compared: int) -> None:
    assert len(measuring.compared_seeds(range(num_mixes), compared)) == min(compared, num_mixes // 2)


def percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def errors_of(half: str) -> dict[tuple[str, str], Any]:
    """Return the rows of a committed table of errors, by model and policy."""
    table = pd.read_csv(FIDELITY / "expected" / half / "errors.csv")
    return {(row.model, row.policy): row for row in table.itertuples()}


PAGE = (FIDELITY / "README.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_wait_is_that_of_the_jobs_alone_as_the_page_says() -> None:
    fit = run.fitted(MEASURED)
    models, wait = fit.by_name, fit.wait
    assert models["connection-shares"].contention.wait == models["packet-rings"].contention.wait == wait.value
    assert models["- no wait"].contention.wait == 0
    assert f"adds {percent(wait.value, wait.low, wait.high)} % to its time" in PAGE


def test_errors_of_jobs_that_send_nothing_are_told_apart() -> None:
    keys = {"mix": "m", "policy": "p"}
    measured = pd.DataFrame([{**keys, "job_id": name, "servers": at} for name, at in (("a", "0"), ("b", "0,1"))])
    jobs = pd.DataFrame(
        [
            {**keys, "job_id": name, "model": "packet-rings", "jct_error": off}
            for name, off in (("a", -0.3), ("b", 0.02))
        ]
    )
    told = run.on_one_server(jobs, measured)
    assert told.endswith("on one server 30.0, 95 % within 30.0 (1); on several 2.0, 95 % within 2.0 (1)")


def test_jobs_alone_are_those_of_the_mixes() -> None:
    jobs = [measuring.alone.drawn(number) for number in range(measuring.alone.JOBS)]
    assert len({(job.num_gpus, job.iteration.message_bytes) for job in jobs}) == measuring.alone.JOBS
    assert {job.num_gpus for job in jobs} == {2, 3, 4}
    assert all(0.2e6 <= job.iteration.message_bytes <= 2.4e6 and job.iteration.buckets == 1 for job in jobs)


def test_the_page_says_how_far_repeats_are_apart() -> None:
    table = pd.read_csv(FIDELITY / "expected" / "held_out" / "spreads.csv").set_index("policy")
    free, one, block, preemptive, ada = (
        f"{100 * table.mean_spread[name]:.0f}"
        for name in (mixes.BASELINE, "SRSF(1)", "Block-SRTF", "preemptive by time", "AdaDUAL")
    )
    text = " ".join(PAGE.split())
    assert f"shortest by {free} % under free overlap (mean over the jobs), {one} under SRSF(1), {block} under" in text
    most = f"{100 * table.most_spread['AdaDUAL']:.0f}"
    assert f"Block-SRTF, {preemptive} preemptive, and {ada} under AdaDUAL, at most by {most}:" in text


@pytest.mark.slow
def test_the_committed_tables_are_those_of_the_command(tmp_path: Path) -> None:
    run.main(["--measured", str(MEASURED), "--tables", str(tmp_path)])
    committed = sorted((FIDELITY / "expected").rglob("*.csv"))
    assert len(committed) == 5
    for path in committed:
        made = pd.read_csv(tmp_path / path.relative_to(FIDELITY / "expected"))
        pd.testing.assert_frame_equal(made, pd.read_csv(path), rtol=1e-4)


@pytest.mark.long
def test_tables_come_from_measured_runs_without_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fits: list[ModelForm] = []
    monkeypatch.setattr(calibration_shares, "tells", lambda form, rows: not fits.append(form) and tells(form, rows))
    monkeypatch.setattr(run, "run_models", few_models)
    shutil.copytree(MEASURED, tmp_path, dirs_exist_ok=True)
    rows = pd.read_csv(tmp_path / "measured.csv")
    rows[rows.mix.isin(["seed-0", "seed-1"]) & (rows.repeat == 0)].to_csv(tmp_path / "measured.csv", index=False)
    run.main(["--measured", str(tmp_path)])
    text = capsys.readouterr().out
    assert "== training mixes" in text
    held_out = text.split("== held out mixes")[1]
    assert all(policy in held_out for policy in mixes.POLICIES)
    assert "gain in mean JCT" in held_out
    assert text.endswith("1 of 6 jobs reduce 0.189 MB; measured were 0.2 to 1.6 MB\n")
    assert "may have been the limit" not in text
    assert len(fits) == 1


def test_a_folder_that_is_not_empty_needs_resume_and_the_same_mixes(tmp_path: Path) -> None:
    measuring.prepare_folder(tmp_path / "new", resume=False, quick=True)
    with pytest.raises(InputError, match="is not empty; expected --resume, or a new folder"):
        measuring.prepare_folder(tmp_path / "new", resume=False, quick=True)
    measuring.prepare_folder(tmp_path / "new", resume=True, quick=True)
    with pytest.raises(InputError, match="holds quick mixes; expected the same with --resume"):
        measuring.prepare_folder(tmp_path / "new", resume=True, quick=False)


def test_a_folder_without_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no measured\.csv; expected a folder in which --out has measured runs"):
        run.main(["--measured", str(tmp_path)])


def few_models(*measured: Any) -> RunModels:
    """Return what takes little time to simulate."""
    fit = run_models(*measured)
    return replace(fit, by_name={name: fit.by_name[name] for name in ("max-min", "linear", "size-shares")})


class SimulatedTestbed:
    """Stands for the network and its runs: each is simulated, and takes a second of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Planned] = []
        self.networks = 0
        self.now_s = 0.0
        self.acts: dict[int, Callable[[], None]] = {}
        self.limited: set[int] = set()
        monkeypatch.setattr(measuring, "namespace_crew", self.namespace_crew)
        monkeypatch.setattr(measuring, "run_planned", self.run_planned)
        monkeypatch.setattr(measuring, "measured_rows", self.calibrate)
        monkeypatch.setattr(measuring, "measure_shares", self.measure_shares)
        monkeypatch.setattr(measuring, "measure_alone", self.measure_alone)
        monkeypatch.setattr(measuring, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(run, "run_models", few_models)

    @contextlib.contextmanager
    def namespace_crew(self, *, realtime: bool) -> Iterator[Any]:
        @contextlib.contextmanager
        def crew_on(cluster: Cluster) -> Iterator[Any]:
            self.networks += 1
            yield types.SimpleNamespace(dismiss=lambda: None)

        yield crew_on

    def calibrate(self, path: Path, settings: object, crew: object) -> None:
        shutil.copy(MEASURED / measuring.CALIBRATION, path)

    def measure_shares(self, path: Path, settings: object, crew: object) -> None:
        pairs = [f"{size},1600000,2,0,{2.5e-7 * size}" for size in (200_000, 400_000, 800_000)]
        rows = [*pairs, "800000,0,2,400000,0.1"]
        path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n", encoding="utf-8")

    def measure_alone(self, path: Path, jobs: list[Job], settings: object, crew: object) -> None:
        assert len(jobs) == 6
        shutil.copy(MEASURED / measuring.ALONE, path)

    def run_planned(self, planned: Planned, crew: object, model: str) -> RealRun:
        number = len(self.made)
        self.made.append(planned)
        self.now_s += 1.0
        if number in self.acts:
            self.acts[number]()
        decides = {name: value for name, value in planned.mix.policies[planned.policy].items() if name != "slots"}
        table = simulate(planned.mix.workload, planned.mix.cluster, contention=model, **decides).jobs
        table = table.assign(began_s=table.start_s, setup_s=0.0, iterations=1, servers="0,1")
        limited = number in self.limited
        return RealRun(table, table, {"late_share": 0.0, "cpu_busy_share": 0.3, "machine_limited": limited})


@pytest.fixture
def testbed(monkeypatch: pytest.MonkeyPatch) -> SimulatedTestbed:
    return SimulatedTestbed(monkeypatch)


QUICK = ["--quick", "--out"]


@pytest.mark.slow
def test_all_runs_are_made_and_the_tables_printed(
    testbed: SimulatedTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.main([*QUICK, str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert len(testbed.made) == 10
    assert testbed.networks == 1 + 3  # for the calibration, and as three clusters follow each other
    assert "10 of 10 runs (seed-5 on star-8, free overlap, repeat 0, 1 s); the rest takes 0.0 min" in captured.err
    assert "== held out mixes" in captured.out
    assert "; in chunks size-shares:latency_s=" in captured.out
    assert {path.name for path in (tmp_path / "out" / "held_out").iterdir()} >= {"errors.csv", "gains_over_mixes.csv"}


def measure(*arguments: object) -> None:
    run.measure(run.parsed([*QUICK, *map(str, arguments)]))


def reports(folder: Path) -> dict[str, FidelityReport]:
    return run.reports(*run.measured_runs(folder), run.fitted(folder).by_name)  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_run_that_is_interrupted_leaves_tables_and_goes_on_where_it_was(
    testbed: SimulatedTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    testbed.acts[4] = interrupt
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        measure(out)
    assert f"--measured {out} prints its tables, --resume goes on" in capsys.readouterr().err
    run.main(["--measured", str(out)])
    assert "== held out mixes" in capsys.readouterr().out
    measure(out, "--resume")
    assert testbed.made[5] == testbed.made[4]
    assert (len(testbed.made), len({one.key for one in testbed.made})) == (11, 10)
    measure(out, "--resume")
    assert len(testbed.made) == 11
    rows = pd.read_csv(out / measuring.MEASURED)
    assert len(rows.groupby(["mix", "policy", "repeat"])) == 10


@pytest.mark.slow
def test_no_run_is_begun_that_would_end_too_late(
    testbed: SimulatedTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(tmp_path / "out", "--stop-after-min", 4.5 / 60)
    assert len(testbed.made) == 4
    assert "stops in 0.0 min" in capsys.readouterr().err
    halves = reports(tmp_path / "out")
    assert set(halves) == {"training", "held out"}
    for report in halves.values():  # what was measured is what max-min simulates, with the same constants
        errors = report.errors.groupby("model").mean_abs_jct_error.max()
        assert errors["max-min"] < 1e-4 < errors["linear"]


@pytest.mark.slow
def test_a_run_that_the_machine_limits_is_made_once_more_and_then_left_out(
    testbed: SimulatedTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    testbed.limited = {0, 2, 3}  # the first run, whose second attempt is not; the second run twice
    measure(tmp_path / "out")
    assert [testbed.made[0], testbed.made[2]] == [testbed.made[1], testbed.made[3]]
    assert len(testbed.made) == 12
    text = capsys.readouterr().err
    assert "2 of 10 runs (seed-1 on star-4, Block-SRTF, repeat 0, 2 s, limited by the machine)" in text
    halves = reports(tmp_path / "out")
    assert "may have been the limit" not in halves["training"].text()
    held_out = halves["held out"].text()
    assert "In 1 of 7 runs the machine may have been the limit, not the network: they are left out." in held_out
    assert "Block-SRTF" not in held_out


@pytest.mark.long
def test_a_run_that_fails_stays_missing_and_three_in_a_row_end_it(
    testbed: SimulatedTestbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise TestbedError("the worker on server 1 is gone")

    testbed.acts = dict.fromkeys((1, 3, 4), fail)
    measure(tmp_path / "out")
    text = capsys.readouterr().err
    assert text.count("failed and stays missing: the worker on server 1 is gone") == 3
    assert "7 of 10 runs" in text
    testbed.acts = dict.fromkeys(range(10, 13), fail)
    with pytest.raises(TestbedError, match="server 1 is gone"):
        measure(tmp_path / "out", "--resume")
    assert len(testbed.made) == 13


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(InputError, match="--repeats is 0; expected at least 1"):
        run.parsed(["--repeats", "0"])
    with pytest.raises(InputError, match="--stop-after-min is -1; expected more than 0 minutes"):
        run.parsed(["--stop-after-min", "-1"])
