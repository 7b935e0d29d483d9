"""The arena's rivals on their own ground: traces of theirs, their own code and simulators beside ours."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import gavel_trace
import monkeytree_trace
import muri_trace
import numpy as np
import pandas as pd
import pytest
import sia_trace
import their_code
from experiment_scripts import EXPERIMENTS

import ddlsched
from ddlsched.errors import InputError

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
RIVALS = " ".join((EXPERIMENTS.parent / "docs" / "rivals.md").read_text().split())


def test_pages_show_gavels_own_trace_row_by_row():
    rows = pd.read_csv(EXPECTED / "gavel_trace.csv").set_index("policy")
    assert rows.index.tolist() == ["blind", "throughputs"]
    here, its = ([f"{s:,.0f}" for s in rows[name]] for name in ("average_jct_s", "its_average_jct_s"))
    assert f"JCT {its[1]} s in its simulator and {here[1]} s here, blind to kinds {its[0]} and {here[0]} s" in RIVALS


def test_pages_show_muris_own_trace_row_by_row():
    rows = pd.read_csv(EXPECTED / "muri_trace.csv").set_index("policy")
    assert set(rows["trace"]) == {"trace3"}
    here, its = (rows[name].map("{:,.0f}".format) for name in ("average_jct_s", "its_average_jct_s"))
    assert (here[["SRTF", "SRSF"]] == its[["SRTF", "SRSF"]]).all()  # to the second, as the page says
    assert f"Muri-S has {its['Muri-S']} s in its simulator and {here['Muri-S']} here" in RIVALS


def test_the_page_shows_monkeytrees_simulator_row_by_row():
    rows = pd.read_csv(EXPECTED / "monkeytree_trace.csv")
    for row in rows.itertuples():
        slower, its_slower = f"{row.slowdown:.3f} / {row.p99:.3f}", f"{row.its_slowdown:.3f} / {row.its_p99:.3f}"
        assert f"| {row.its_run} | {its_slower} | {row.ours} | {slower} |" in RIVALS
    routed = rows[rows["its_run"].isin(["perfect", "monkeytree, 1 us a move"])]
    assert (routed["jobs_alike"] == 126).all()


def test_the_page_shows_monkeytrees_table_as_the_benchmark_has_it():
    benchmark = (EXPERIMENTS.parent / "benchmarks" / "README.md").read_text()
    for name in ("ecmp", "crux:paths-only", "crux:paths-only, intensity=sum", "perfect", "monkeytree"):
        mean, p99 = re.search(rf"`{name}`[^|\n]*\|[^|]*\| ([\d.]+) / ([\d.]+)", benchmark).groups()
        assert f"{mean} / {p99}" in RIVALS


def test_their_own_code_decides_alike_in_all_drawn_cases():
    rows = pd.read_csv(EXPECTED / "their_code.csv").set_index("rival")
    assert (rows["same"] == rows["cases"]).all()
    assert (rows["farthest"] == 0).all()
    assert f"the same groups in {rows.loc['Muri', 'same']} of {rows.loc['Muri', 'cases']} drawn cases" in RIVALS
    assert f"the same optimum in {rows.loc['Sia', 'same']} of {rows.loc['Sia', 'cases']} drawn cases" in RIVALS


def test_pages_show_sias_own_workload_row_by_row():
    rows = pd.read_csv(EXPECTED / "sia_trace.csv").set_index("policy")
    assert rows.index.tolist() == ["its", "ours"]
    for policy, row in rows.iterrows():
        cells = [f"{row[name]:,.0f}" for name in ("average_jct_s", "p99_jct_s", "makespan_s")]
        assert f"| {policy} | {' | '.join(cells)} | {row['restarts_per_job']:.1f} |" in RIVALS


def test_pages_tell_the_mean_of_sias_gavel_with_both_shares():
    rows = pd.read_csv(EXPECTED / "sia_gavel.csv").groupby("policy")["average_jct_s"]
    assert rows.size().to_dict() == {"its": 10, "ours": 10}
    its, ours = (rows.mean()[policy] / 3600 for policy in ("its", "ours"))
    assert f"{its:.2f} h in its simulator" in RIVALS
    assert f"with ours {ours:.2f} h" in RIVALS
    assert abs(its / 2.548240277778 - 1) < 0.05  # what its README prints, hours


def test_its_gavel_gets_the_shares_of_ours():
    """Two jobs and a worker of two kinds, each ten times as fast on another."""
    state = {
        "throughputs": {"x": {"a": 10.0, "b": 1.0}, "y": {"a": 1.0, "b": 10.0}},
        "scale_factors": {"x": 1, "y": 1},
        "cluster_spec": {"a": 1, "b": 1},
    }
    gavel = SimpleNamespace(get_allocation_state=lambda: state, _cluster_name=["a", "b"])
    shares = sia_trace.max_min(gavel)()
    assert shares["x"] == pytest.approx({"a": 1.0, "b": 0.0}, abs=1e-6)
    assert shares["y"] == pytest.approx({"a": 0.0, "b": 1.0}, abs=1e-6)


def test_an_artifact_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--artifact: .* has no sia.py; expected the folder sia-simulator"):
        sia_trace.its_modules(tmp_path)
    with pytest.raises(InputError, match=r"--muri: .* has no matching.py; expected the folder simulator"):
        their_code.muris_matching(tmp_path)


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        ("sia_trace", ("--artifact", "none"), "--artifact: none has no sia.py"),
        ("their_code", ("--muri", "none", "--sia", "none"), "--muri: none has no matching.py"),
        ("monkeytree_trace", ("--logs", "route=x"), "--logs: 'route=x' is no run and log"),
    ],
)
def test_scripts_report_bad_input_as_commands_do(script, options, said, monkeypatch, capsys, in_a_new_folder):
    path = HERE / f"{script}.py"
    monkeypatch.setattr("sys.argv", [str(path), *options])
    monkeypatch.setattr("sys.path", [str(path.parent), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2
    assert f"ddlsched: error: {said}" in capsys.readouterr().err


def runs(*jobs):
    return pd.DataFrame(jobs, columns=["start_s", "end_s"])


def test_the_first_job_that_differs_is_the_first_to_arrive():
    its, here = runs((0, 100), (10, 30), (20, 40)), runs((0, 100), (10, 35), (20, 45))
    found = monkeytree_trace.first_that_differs(its, here)
    assert found == {"jobs_alike": 1, "first_differs_at_s": 10, "ran_s": 25, "its_ran_s": 20}
    assert monkeytree_trace.first_that_differs(its, its) == {"jobs_alike": 3}
    later = runs((0, 100), (10, 30), (21, 41))
    assert monkeytree_trace.first_that_differs(its, later)["jobs_alike"] == 2


def test_a_log_of_monkeytrees_simulator_is_read_whole_or_not_at_all(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("5 JobArrival 0\n9 JobComplete 0 submit=1 schedule=2000000 complete=9000000 wait=0us\n")
    assert monkeytree_trace.read_log(log, 1)[["start_s", "end_s"]].to_numpy().tolist() == [[2.0, 9.0]]
    with pytest.raises(InputError, match=r"a.log: 1 jobs have ended; expected all 2"):
        monkeytree_trace.read_log(log, 2)
    with pytest.raises(InputError, match=r"--logs: 'route=x' is no run and log"):
        monkeytree_trace.read_logs(["route=x"], 1)


def test_monkeytrees_simulator_reads_the_trace_that_is_written(tmp_path):
    workload = monkeytree_trace.jobs()
    monkeytree_trace.written(workload, tmp_path)
    count, first, *_ = (tmp_path / "s0.trace").read_text().splitlines()
    assert (int(count), first) == (len(workload), "11764702 llama3-70b-tp 48 81")
    assert "duration_us: 743000" in (tmp_path / "jobs" / "llama3-70b-tp.yaml").read_text()
    assert "stride: 8" in (tmp_path / "jobs" / "llama3-70b-tp.yaml").read_text()


def info(**given):
    known = {
        "scaling_underway": False,
        "age": 0.0,
        "num_restarts": 0,
        "max_replicas": {"a": 4},
        "speedup_fn": {"a": None},
    }
    return SimpleNamespace(**(known | given))


def test_sia_in_its_own_simulator_starts_with_a_gpu_and_goes_by_fits_then():
    """Two servers of 4 GPUs; the fit says that goodput is in proportion to GPUs."""
    fits = SimpleNamespace(_compute_goodputs_v2=lambda info, kind, servers, gpus: gpus * 10.0)
    ours = sia_trace.Ours(fits, sia_trace.capacity_of({"a": 2}, {"a": 4}))
    assert ours.optimize({"yolov3-0": info()}, None, None) == {"yolov3-0": ("a", [0])}
    fitted = info(speedup_fn={"a": object()})
    assert ours.optimize({"yolov3-0": fitted}, None, None) == {"yolov3-0": ("a", [0, 0, 0, 0])}
    restarting = info(speedup_fn={"a": object()}, scaling_underway=True, max_replicas={"a": 1})
    assert ours.optimize({"yolov3-0": restarting}, None, None) == {"yolov3-0": ("a", [0, 0, 0, 0])}


def test_muris_baselines_are_those_of_its_simulator():
    table = pd.read_csv(EXPECTED / "muri_baselines.csv")
    assert len(table) == 8
    for name in muri_trace.MEASURES:
        np.testing.assert_allclose(table[name], table[f"its_{name}"], rtol=1e-5)


def test_gavels_trace_takes_steps_over_the_measured_rate(tmp_path):
    """2,000 steps at 10 a second on a V100 are 200 s: ten iterations; on a P100 at 5 a second twice that."""
    table = {kind: {"('A', 2)": {"null": rate}} for kind, rate in (("v100", 10.0), ("p100", 5.0), ("k80", 0.0))}
    with gzip.open(tmp_path / "rates.json.gz", "wt") as stream:
        json.dump(table, stream)
    rates = gavel_trace.measured(tmp_path / "rates.json.gz")
    assert rates == {("A", 2): {"v100": 10.0, "p100": 5.0, "k80": 0.0}}
    (tmp_path / "a.trace").write_text("A\tcommand\tfolder\t-n\t1\t2000\t2\t1\t-1.0\t30\n")
    (job,) = gavel_trace.jobs_of(tmp_path / "a.trace", rates)
    assert (job.arrival_s, job.min_gpus, job.max_gpus, job.iterations) == (30.0, 2, 2, 10)
    result = ddlsched.simulate(ddlsched.Workload.of([job]), gavel_trace.cluster_of(rates), allocation="gavel", seed=1)
    assert result.jobs["jct_s"].item() == pytest.approx(200.0)


MURI = "num_gpu,submit_time,iterations,model_name,iteration_time,resource_time_0,resource_time_1,resource_time_2"


def muris_jobs(folder, *rows):
    (folder / "trace.csv").write_text("\n".join([MURI, *rows]) + "\n")
    return muri_trace.jobs_of(folder / "trace.csv")


@pytest.mark.parametrize(("policy", "ends_s"), [("SRTF", [131.8, 30.3]), ("SRSF", [111.5, 131.8])])
def test_muris_baselines_sort_by_time_or_by_gpu_time(tmp_path, policy, ends_s):
    """After 10 s, which starting took, 64 GPUs are wanted for 20 iterations of 1.015 s, and 8 are held for 100."""
    jobs = muris_jobs(tmp_path, "8,0,100,bert,1000,400,300,300", "64,10000,20,bert,1000,400,300,300")
    muri_trace.replay(jobs, policy)
    assert [job.finish_s for job in jobs] == pytest.approx(ends_s)


def test_four_jobs_of_muri_that_fit_into_each_other_run_at_once(tmp_path):
    """Stages of 2, 1 and 1 s: four jobs keep all resources busy, so that an iteration takes 4 s, times 1.37 / 1.015."""
    jobs = muris_jobs(tmp_path, *["64,0,10,bert,4000,2000,1000,1000"] * 4)
    assert muri_trace.pipelined_s(tuple(job.times for job in jobs)) == pytest.approx(4.0)
    muri_trace.replay(jobs, "Muri-S")
    assert [job.finish_s for job in jobs] == pytest.approx([40 * 1.37 / 1.015] * 4)


def test_jobs_of_muri_that_are_slower_together_take_turns(tmp_path):
    """Both need the GPU and nothing else."""
    jobs = muris_jobs(tmp_path, *["64,0,10,bert,4000,0,4000,0"] * 2)
    muri_trace.replay(jobs, "Muri-S")
    assert [job.finish_s for job in jobs] == pytest.approx([40.6, 81.2])
