"""Slowdown, fairness, shares and size classes: by hand, of real runs, and where there is nothing to measure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddlsched
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.comparisons.alone import job_metrics
from ddlsched.comparisons.comparison_tables import CLASS_METRICS, class_metrics, compare_classes
from ddlsched.errors import InputError
from ddlsched.results import metrics
from ddlsched.results.metrics import network_remark, run_metrics, size_class
from ddlsched.results.paired_comparison import ALL_METRICS, METRICS, readable
from ddlsched.results.result import PHASES

# What a test before left open is told when memory is collected, which may be during one of these.
pytestmark = pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")

NAN = float("nan")
PHASE_SHARES = [phase.removesuffix("_s") + "_share" for phase in PHASES]


@pytest.fixture(scope="module")
def real() -> pd.DataFrame:
    """The 160 jobs on the 64 GPUs, at 1/100."""
    return job_metrics(ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.01)))


def table(*rows: dict) -> pd.DataFrame:
    """Return a table of jobs made by hand: a job alone takes its 2 s unless said otherwise."""
    usual = {"arrival_s": 0.0, "gpus": 1, "alone_s": 2.0, "jct_s": 2.0, "finish_time_fairness": 1.0}
    usual |= {"state": "finished", "counted": True}
    frame = pd.DataFrame([usual | row for row in rows], columns=[*usual, *PHASES])
    frame[list(PHASES)] = frame[list(PHASES)].fillna(0.0)
    frame["finish_s"] = frame["arrival_s"] + frame["jct_s"]
    work = frame["alone_s"].where(frame["alone_s"] > 0.0)
    return frame.assign(slowdown=frame["jct_s"] / work, size_class=size_class(frame["gpus"].to_numpy()))


UNFINISHED = {"jct_s": NAN, "finish_time_fairness": NAN, "state": "running"}
ZERO = {"jct_s": 0.0, "alone_s": 0.0, "finish_time_fairness": NAN}


# ---- Of jobs


@pytest.mark.long
def test_slowdown_and_fairness_of_a_real_run(real):
    assert (real["alone_s"] > 0.0).all()
    assert (real["slowdown"] >= 1.0).all()
    assert (real["finish_time_fairness"] <= real["slowdown"] * (1 + 1e-9)).all()
    assert real["slowdown"].tolist() == (real["jct_s"] / real["alone_s"]).tolist()
    assert set(real["size_class"]) == {"1", "2-4", "8+"}


def test_a_run_of_one_job_has_slowdown_and_fairness_of_one():
    job = ddlsched.microsoft_160(seed=1, scale=0.01)[4]
    metrics = run_metrics(job_metrics(ddlsched.simulate(ddlsched.Workload.of([job]))))
    assert metrics["average_slowdown"] == metrics["worst_finish_time_fairness"] == metrics["jain_index"] == 1.0
    assert metrics["unfair_fraction"] == 0.0


def test_no_job_was_on_a_gpu_where_none_was_placed():
    job = ddlsched.microsoft_160(seed=1, scale=0.01)[4]
    result = ddlsched.simulate(ddlsched.Workload.of([replace(job, arrival_s=5.0)]), until_s=1.0)
    assert result.most_jobs_on_a_gpu == 0


def test_a_network_is_saturated_by_its_share_of_the_time_on_gpus():
    assert network_remark(0.5, 0.25, 0.2).endswith("for 90 % of the time.")
    assert network_remark(0.0, 0.25, 0.2) is None
    assert network_remark(1.0, 0.0, 0.0) is None


def test_size_classes():
    assert size_class(np.array([1, 2, 3, 4, 5, 7, 8, 64])).tolist() == [
        "1",
        "2-4",
        "2-4",
        "2-4",
        "5-7",
        "5-7",
        "8+",
        "8+",
    ]


# ---- Of runs


def test_what_the_page_calls_the_metrics_of_a_run_has_all_of_its_table():
    page = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text(encoding="utf-8")
    expression = re.search(r"^(.*)  # the metrics below", page, re.MULTILINE)[1]
    result = ddlsched.simulate(ddlsched.Workload.of([ddlsched.microsoft_160(seed=1, scale=0.01)[4]]))
    found = eval(expression, {"result": result, "jobs": job_metrics(result), "run_metrics": run_metrics})
    told = re.search(r"^## Of a run$.*?^## ", page, re.MULTILINE | re.DOTALL)[0]
    names = [name for row in re.findall(r"^\| (`.*?) \|", told, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert {"average_jct_s", "gpu_utilisation", "jain_index", "restart_share"} <= set(names) <= set(found)


def test_run_metrics_by_hand():
    jobs = table(
        {"queueing_s": 1.0, "computing_s": 1.0, "finish_time_fairness": 0.5},
        {"jct_s": 6.0, "computing_s": 2.0, "network_wait_s": 4.0, "finish_time_fairness": 3.0},
    )
    metrics = run_metrics(jobs)
    assert metrics["jobs"] == 2
    assert metrics["unfinished_jobs"] == 0
    assert (metrics["average_slowdown"], metrics["median_slowdown"]) == (2.0, 2.0)
    assert metrics["p95_slowdown"] == pytest.approx(2.9)
    assert (metrics["worst_finish_time_fairness"], metrics["unfair_fraction"]) == (3.0, 0.5)
    assert metrics["jain_index"] == pytest.approx((1 + 1 / 3) ** 2 / (2 * (1 + 1 / 9)))
    shares = {name: metrics[name] for name in PHASE_SHARES if metrics[name]}
    assert shares == {"queueing_share": 1 / 8, "computing_share": 3 / 8, "network_wait_share": 4 / 8}


def test_a_rho_of_one_with_a_rounding_error_is_not_unfair():
    assert run_metrics(table({"finish_time_fairness": 1.0 + 1e-12}, {}))["unfair_fraction"] == 0.0


def test_only_jobs_that_count_and_finished_enter():
    jobs = table(
        {"jct_s": 4.0},
        {"jct_s": 200.0, "counted": False, "finish_time_fairness": 9.0},
        UNFINISHED,
        UNFINISHED | {"counted": False},
        UNFINISHED | {"state": "future"},
    )
    metrics = run_metrics(jobs)
    assert (metrics["jobs"], metrics["unfinished_jobs"]) == (2, 1)
    assert (metrics["average_slowdown"], metrics["worst_finish_time_fairness"]) == (2.0, 1.0)


@pytest.mark.parametrize(
    "jobs",
    [
        table(UNFINISHED),
        table({"counted": False}),
        table(UNFINISHED | {"state": "future"}, UNFINISHED),
        table(ZERO),
    ],
    ids=["none finished", "none counts", "none arrived", "none has work"],
)
def test_where_nothing_can_be_measured_metrics_are_unknown(jobs):
    metrics = run_metrics(jobs)
    known = {name: value for name, value in metrics.items() if not np.isnan(value)}
    assert set(known) == {"jobs", "unfinished_jobs"}


def test_jobs_without_work_have_no_slowdown_but_a_share_of_the_time():
    metrics = run_metrics(table({"jct_s": 4.0, "computing_s": 4.0}, ZERO | {"jct_s": 4.0, "queueing_s": 4.0}))
    assert metrics["jobs"] == 2
    assert metrics["average_slowdown"] == 2.0
    assert metrics["queueing_share"] == 0.5


@pytest.mark.long
def test_phases_of_a_real_run_add_up_to_all_of_its_time(real):
    assert real[list(PHASES)].sum(axis=1).to_numpy() == pytest.approx(real["jct_s"].to_numpy(), abs=1e-6)
    metrics = run_metrics(real)
    assert sum(metrics[name] for name in PHASE_SHARES) == pytest.approx(1.0)
    assert all(0.0 <= metrics[name] <= 1.0 for name in PHASE_SHARES)


@pytest.mark.long
def test_a_run_in_which_everything_goes_wrong():
    """Servers fail, compute times jitter, and the run is cut off while jobs run, wait and have not even come."""
    workload = ddlsched.microsoft_160(seed=1, scale=0.01)
    disturbances = Disturbances(jitter_cv=0.3, server_mtbf_s=20.0, server_repair_s=2.0, restart_s=0.5)
    options = {"disturbances": disturbances, "warmup_s": 2.0, "until_s": 9.0}
    jobs = job_metrics(ddlsched.simulate(workload, placement="first-fit", **options))
    assert set(jobs["state"]) >= {"finished", "running", "future"}
    finished = jobs[jobs["state"] == "finished"]
    assert finished["restarts"].any()
    assert finished[list(PHASES)].sum(axis=1).to_numpy() == pytest.approx(finished["jct_s"].to_numpy(), abs=1e-6)
    assert (
        jobs[["slowdown", "finish_time_fairness"]].notna().all(axis=1).tolist()
        == (jobs["state"] == "finished").tolist()
    )
    metrics = run_metrics(jobs)
    arrived = jobs[jobs["arrival_s"].between(2.0, 9.0)]
    assert metrics["jobs"] == len(arrived) == class_metrics(jobs)["jobs"].sum()
    assert metrics["unfinished_jobs"] == (arrived["state"] != "finished").sum() > 0
    assert metrics["restart_share"] > 0.0
    assert sum(metrics[name] for name in PHASE_SHARES) == pytest.approx(1.0)


def test_a_share_is_of_all_time_and_not_an_average_of_jobs(real):
    assert run_metrics(real)["network_wait_share"] == pytest.approx(
        np.average(real["network_wait_s"] / real["jct_s"], weights=real["jct_s"])
    )


def test_every_metric_has_a_name_for_tables(real):
    assert set(run_metrics(real)) - {"jobs"} == set(ALL_METRICS) - set(METRICS)


@pytest.mark.long
@given(st.randoms(use_true_random=False))
def test_metrics_do_not_depend_on_the_order_of_jobs(real, random):
    shuffled = real.iloc[random.sample(range(len(real)), len(real))]
    assert run_metrics(shuffled) == pytest.approx(run_metrics(real))


@pytest.mark.long
def test_metrics_survive_a_parquet_file(real, tmp_path):
    real.to_parquet(tmp_path / "run.parquet")
    read = pd.read_parquet(tmp_path / "run.parquet")
    assert run_metrics(read) == run_metrics(real)
    pd.testing.assert_frame_equal(class_metrics(read), class_metrics(real))


# ---- Of classes


def test_class_metrics_by_hand():
    classes = class_metrics(
        table({"gpus": 3, "jct_s": 4.0}, {"gpus": 4, "jct_s": 8.0}, {"gpus": 16}, UNFINISHED | {"gpus": 16})
    )
    assert classes["size_class"].tolist() == ["2-4", "8+"]
    assert classes[["jobs", "unfinished_jobs"]].to_numpy().tolist() == [[2, 0], [2, 1]]
    assert classes["average_jct_s"].tolist() == [6.0, 2.0]
    assert classes["average_slowdown"].tolist() == [3.0, 1.0]


def test_five_to_seven_gpus_are_a_class_where_there_are_such_jobs():
    names = [
        class_metrics(table(*({"gpus": n} for n in sizes)))["size_class"].tolist() for sizes in ([1, 2, 8], [8, 6, 1])
    ]
    assert names == [["1", "2-4", "8+"], ["1", "5-7", "8+"]]


def test_a_class_in_which_no_job_finished_is_there_and_unknown():
    classes = class_metrics(table({}, UNFINISHED | {"gpus": 8}))
    assert classes["size_class"].tolist() == ["1", "8+"]
    assert classes["unfinished_jobs"].tolist() == [0, 1]
    assert np.isnan(classes["average_jct_s"][1])


def test_classes_of_a_real_run_make_up_the_run(real):
    classes, metrics = class_metrics(real), run_metrics(real)
    assert classes["jobs"].tolist() == [80, 40, 40]
    assert np.average(classes["average_slowdown"], weights=classes["jobs"]) == pytest.approx(
        metrics["average_slowdown"]
    )
    assert classes["worst_finish_time_fairness"].max() == metrics["worst_finish_time_fairness"]


def classes_of(policy: str, seed: int, factor: float, *jobs: dict) -> pd.DataFrame:
    scaled = [job | {"jct_s": job.get("jct_s", 2.0) * factor * (1 + 0.01 * seed)} for job in jobs]
    return class_metrics(table(*scaled)).assign(policy=policy, seed=seed)


def eight_seeds(*, slow: float = 2.0, big=lambda seed: ({"gpus": 8},), starved: tuple[int, ...] = ()) -> pd.DataFrame:
    """Return classes of two policies; jobs of 8 GPUs in the seeds of ``big``, unfinished in some under the slow one."""
    parts = []
    for seed in range(8):
        parts.append(classes_of("base", seed, 1.0, {}, *big(seed)))
        unfinished = UNFINISHED if seed in starved else {}
        parts.append(classes_of("slow", seed, slow, {}, *(job | unfinished for job in big(seed))))
    return pd.concat(parts, ignore_index=True)


@pytest.mark.long
def test_classes_are_compared_by_themselves():
    found = compare_classes(eight_seeds(), baseline="base", metrics=["average_jct_s"])
    assert found["size_class"].tolist() == ["1", "1", "8+", "8+"]
    slow = found[found["policy"] == "slow"]
    assert slow["change"].tolist() == pytest.approx([1.0, 1.0])
    assert slow["verdict"].tolist() == slow["verdict_holm"].tolist() == ["worse", "worse"]
    assert set(found["seeds"]) == {8}


@pytest.mark.long
def test_seeds_without_a_job_of_a_class_say_nothing_of_it():
    found = compare_classes(
        eight_seeds(big=lambda seed: ({"gpus": 8},) * (seed < 7)), baseline="base", metrics=["average_jct_s"]
    )
    assert found["seeds"].tolist() == [8, 8, 7, 7]
    assert found["seeds_left_out"].tolist() == [0, 0, 0, 0]
    assert found["verdict"].tolist() == ["undecided", "worse"] * 2


@pytest.mark.long
def test_a_class_seen_in_too_few_seeds_gets_no_verdict():
    found = compare_classes(
        eight_seeds(big=lambda seed: ({"gpus": 8},) * (seed < 3)), baseline="base", metrics=["average_jct_s"]
    )
    assert found["seeds"].tolist() == [8, 8, 3, 3]
    assert found["verdict"].tolist() == ["undecided", "worse", "undecided", "undecided"]


@pytest.mark.long
def test_a_class_that_starves_under_one_policy_gets_no_verdict():
    """Means are then of the seeds in which it finished under all: fewer, and not a fair sample of all seeds."""
    found = compare_classes(eight_seeds(starved=(5,)), baseline="base", metrics=["average_jct_s", "unfinished_jobs"])
    slow = found[(found["policy"] == "slow") & (found["size_class"] == "8+")].set_index("metric")
    assert slow.loc["average_jct_s", ["seeds", "seeds_left_out", "verdict"]].tolist() == [7, 1, "undecided"]
    assert slow.loc["unfinished_jobs", ["seeds", "mean"]].tolist() == [8, 1 / 8]
    assert "left out for all policies, one having nothing to measure: up to 1." in readable(found, baseline="base")


@pytest.mark.long
def test_a_class_that_never_finishes_is_shown_as_unknown():
    found = compare_classes(eight_seeds(starved=tuple(range(8))), baseline="base", metrics=["average_jct_s"])
    assert found["seeds"].tolist() == [8, 8, 0, 0]
    assert (
        found.loc[found["seeds"] == 0, ["mean", "low", "high", "difference", "change", "p_value"]].isna().all(axis=None)
    )
    assert found["verdict"].tolist() == ["undecided", "worse", "undecided", "undecided"]
    assert "| 8+   | Average JCT (s) | base   | -" in readable(found, baseline="base")


@pytest.mark.long
def test_a_policy_that_lacks_a_run_is_refused():
    classes = eight_seeds()
    with pytest.raises(InputError, match=r"'slow' has no run of seeds \[3\]"):
        compare_classes(classes[(classes["policy"] != "slow") | (classes["seed"] != 3)], baseline="base")


def test_classes_of_nothing_are_refused():
    empty = class_metrics(table({"counted": False}))
    assert list(empty.columns)[:1] == ["size_class"]
    with pytest.raises(InputError, match="no job counts"):
        compare_classes(empty.assign(policy="a", seed=1), baseline="a")


def test_usual_metrics_of_classes_are_there(real):
    assert set(CLASS_METRICS) <= set(class_metrics(real).columns)


@pytest.mark.parametrize(("share", "place"), [(0.0, 0), (0.2, 1), (0.5, 2)])
def test_a_sampled_run_is_of_a_class_by_the_share_of_waits_in_communication(share: float, place: int) -> None:
    jobs = pd.DataFrame({"network_wait_s": [share], "communication_s": [1.0 - share]})
    columns = SimpleNamespace(grouped=np.array([0]))
    run: Any = SimpleNamespace(jobs=jobs, finished=SimpleNamespace(state=SimpleNamespace(jobs=columns)))
    assert metrics.sampling_class(run) == [*metrics.STATED][place]
