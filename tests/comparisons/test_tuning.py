"""Tuning: what is varied, resuming, and the check on held-out seeds."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from command_line import run

import ddlsched
from ddlsched.comparisons import tuning
from ddlsched.comparisons.tuning import knobs, with_values
from ddlsched.errors import UnknownNameError

SMALL = "microsoft-160:scale=0.002"
OVERLAP = {"communication": "bounded-overlap:limit=1"}


def test_numbers_and_truth_values_are_varied_around_their_defaults() -> None:
    found = {knob.name: knob for knob in knobs({"placement": "lwf", "order": "srsf"}, [])}
    kappa = found["placement.kappa"]
    assert (kappa.default, kappa.low, kappa.high) == (1, 1, 4)
    assert found["order.communication"].choices == (False, True)


def test_ranges_and_choices_are_as_given() -> None:
    (knob,) = knobs(OVERLAP, ["communication.limit=1:8"])
    assert (knob.low, knob.high, knob.default) == (1, 8, 1)
    (knob,) = knobs({"communication": "preemptive"}, ["communication.by=bytes,service"])
    assert knob.choices == ("bytes", "service")


@pytest.mark.parametrize(
    ("policies", "ranges", "said"),
    [
        (OVERLAP, ["communication.limits=1:8"], "no field is named 'communication.limits'.*Did you mean"),
        (OVERLAP, ["communication.limit=8:1"], "expected communication.limit=LOW:HIGH with LOW < HIGH"),
        (OVERLAP, ["communication.limit=1:2.5"], "'2.5' is not a whole number"),
        (OVERLAP, ["communication.limit=3"], "has one value"),
        (OVERLAP, ["communication.limit=1:2", "communication.limit=1:4"], "given twice"),
        ({"order": "fifo"}, [], "no number or truth value to tune"),
        ({"order": "fifoo"}, [], "no order is named 'fifoo'"),
    ],
)
def test_what_cannot_be_varied_is_refused(policies: dict[str, str], ranges: list[str], said: str) -> None:
    with pytest.raises(ddlsched.InputError, match=said):
        knobs(policies, ranges)


def test_seeds_that_are_held_out_are_those_of_the_page_unless_told() -> None:
    assert [*signature(tuning.tune).parameters["held_out"].default] == [*range(101, 113)]
    assert "`--held-out`, 101 to 112" in (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")


def test_values_are_put_into_the_texts() -> None:
    texts = with_values({"placement": "lwf:kappa=1", "order": "srsf"}, {"order.communication": True})
    assert texts == {"placement": "lwf:kappa=1", "order": "srsf:communication=true"}
    limited = with_values({"communication": "bounded-overlap"}, {"communication.limit": 3})
    assert limited == {"communication": "bounded-overlap:limit=3"}


@pytest.mark.usefixtures("in_a_new_folder")
@pytest.mark.slow
def test_a_search_finds_the_best_goes_on_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    told: list[tuple[int, int]] = []
    search = {"ranges": ["communication.limit=1,2,3"], "seeds": (1, 2), "held_out": (11, 12), "processes": 1}
    first = tuning.tune(SMALL, OVERLAP, trials=4, watch=lambda *done: told.append(done), **search)
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert first.trials["communication.limit"].iloc[0] == 1  # the policy untuned
    assert (
        first.values["communication.limit"] == first.trials.loc[first.trials["value"].idxmin(), "communication.limit"]
    )
    expected = ddlsched.compare(
        SMALL,
        [{"name": "a", "communication": text} for text in (OVERLAP["communication"],)]
        + [{"name": "b", **first.policies}],
        seeds=[11, 12],
        folder="compared",
        processes=1,
    ).table()
    change = expected.query("policy == 'b' and metric == 'average_jct_s'")["change"].iloc[0]
    assert first.held_out_change == pytest.approx(change, nan_ok=True)
    monkeypatch.setattr("ddlsched.comparisons.sweeps.run._simulated", _never)
    again = tuning.tune(SMALL, OVERLAP, trials=4, **search)  # nothing is left to simulate
    assert again.values == first.values
    with pytest.raises(ddlsched.InputError, match="holds another search"):
        tuning.tune(SMALL, OVERLAP, trials=4, **(search | {"seeds": (1, 3)}))


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_a_search_that_was_killed_in_its_first_trial_tries_the_untuned_policies_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("optuna")
    search = {"ranges": ["communication.limit=1,2,3"], "seeds": (1,), "held_out": (11,), "processes": 1, "trials": 1}
    with monkeypatch.context() as patch:
        patch.setattr(tuning._Search, "value", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(SMALL, OVERLAP, **search)
    assert tuning.tune(SMALL, OVERLAP, **search).values == {"communication.limit": 1}


def _interrupted(search: tuning._Search, trial: Any, _: object) -> None:
    [knob.suggest(trial) for knob in search.knobs]
    raise KeyboardInterrupt


def _never(*_: object) -> None:
    raise AssertionError("a run was simulated again")


@pytest.mark.parametrize(
    ("tuned", "held", "seeds", "said"),
    [
        (-0.2, (0.1, 0.0, 0.2), 12, "no better than the untuned"),
        (-0.2, (-0.04, -0.06, -0.02), 12, "of the gain on the tuning seeds, 20 % is left"),
        (-0.2, (-0.15, -0.32, 0.02), 12, "holds 0"),
        (-0.2, (-0.18, -0.2, -0.1), 3, "give no interval"),
        (-0.2, (-0.18, -0.2, -0.1), 12, None),
    ],
)
def test_a_gain_that_is_not_there_on_held_out_seeds_is_warned_of(
    tuned: float, held: tuple[float, float, float], seeds: int, said: str | None
) -> None:
    checked = dict(zip(("change", "change_low", "change_high"), held, strict=True))
    warning = tuning._warning("average_jct_s", {"change": tuned}, checked, seeds, False)
    assert warning is None if said is None else said in str(warning)


def test_more_of_a_metric_may_be_better() -> None:
    more = {"change": 0.2, "change_low": 0.1, "change_high": 0.3}
    assert tuning._warning("gpu_utilisation", {"change": 0.2}, more, 12, False) is None
    assert "no better" in str(tuning._warning("average_jct_s", {"change": -0.1}, more, 12, False))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((SMALL,), "expected --placement, --order, --communication, --allocation, --path or --admission"),
        ((SMALL, "--placement", "lwf", "--seeds", "1-6", "--held-out", "6-9"), "on and held out; expected each in one"),
        ((SMALL, "--placement", "lwf", "--metric", "speed"), "metric 'speed': is not compared"),
        ((SMALL, "--placement", "lwf", "--seeds", "x"), "--seeds: expected how many"),
        (("microsft-160", "--placement", "lwf"), "no workload is named 'microsft-160'"),
    ],
)
@pytest.mark.usefixtures("in_a_new_folder")
def test_the_command_refuses_in_a_line(arguments: tuple[str, ...], said: str) -> None:
    done = run("tune", *arguments)
    (line,) = done.stderr.splitlines()  # without a bar of trials
    assert said in line
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_the_command_prints_flags_and_changes() -> None:
    pytest.importorskip("optuna")
    flags = ["--communication", "bounded-overlap:limit=3", "--vary", "communication.limit=1,3", "--trials", 2]
    flags += ["--seeds", "1,2", "--held-out", "11,12", "--processes", 1, "--json"]
    done = run("tune", SMALL, *flags)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["policies"] == {"communication": f"bounded-overlap:limit={found['values']['communication.limit']}"}
    assert found["held_out_interval"] is None


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_an_admission_is_tuned_too() -> None:
    pytest.importorskip("optuna")
    Path("queues.yaml").write_text("queues: [{name: a, gpus: 8}]\n")
    Path("gen.py").write_text(
        "from dataclasses import replace\nimport ddlsched\ndef queued(seed):\n"
        "    jobs = ddlsched.microsoft_160(seed=seed, scale=0.002).jobs\n"
        "    return ddlsched.Workload.of([replace(job, queue='a') for job in jobs if job.num_gpus <= 8])\n"
    )
    flags = ["--queues", "queues.yaml", "--admission", "kueue", "--vary", "admission.fair_sharing=false,true"]
    flags += ["--trials", 1, "--seeds", "1,2", "--held-out", "11,12", "--processes", 1, "--json"]
    done = run("tune", "gen.py:queued", *flags)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["policies"] == {"admission": "kueue:fair_sharing=false"}


def test_the_first_failure_of_a_trial_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = tuning._Search("microsoft-160", {}, [], "average_jct_s", {}, tmp_path, 1)
    for failures, told in (([], None), (["broken"], "broken"), (["first", "second"], "first")):
        done = SimpleNamespace(summaries=lambda: None, failures=failures)
        monkeypatch.setattr(tuning, "sweep", lambda *_, done=done, **__: done)
        assert search.simulated({"tuned": {}}, [1]) == (None, told)


def test_a_search_without_a_result_says_what_failed() -> None:
    class Study:
        trials = (SimpleNamespace(user_attrs={}), SimpleNamespace(user_attrs={"failure": "no room"}))

        @property
        def best_params(self) -> None:
            raise ValueError

    with pytest.raises(ddlsched.SimulationError, match="no trial finished: no room"):
        tuning._checked(None, Study(), [1], [101])  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.usefixtures("in_a_new_folder")
def test_untuned_policies_that_fail_end_the_search_before_its_first_trial() -> None:
    pytest.importorskip("optuna")
    kind = "@dataclass(frozen=True, kw_only=True)\nclass Mine:\n    limit: int = 1\n"
    Path("mine.py").write_text(f"from dataclasses import dataclass\n\n\n{kind}")
    done = run("tune", SMALL, "--placement", "mine.py:Mine", "--seeds", "1,2", "--held-out", "11,12", "--processes", 1)
    assert done.exit_code == 1
    assert "nothing to compare with: untuned, seed 1: placement Mine: has no place" in done.stderr
    assert "1/40" not in done.stderr


def test_a_workload_that_names_no_jobs_is_refused_with_one_seed_too() -> None:
    with pytest.raises(UnknownNameError):
        tuning.tune("nothing-160", OVERLAP, seeds=(1,))


def test_the_change_is_that_of_the_tuned_policies() -> None:
    rows = [(name, seed, jct_s) for name, jct_s in (("untuned", 4.0), ("tuned", 3.0)) for seed in (1, 2)]
    runs = pd.DataFrame(rows, columns=["policy", "seed", "average_jct_s"])
    search: Any = SimpleNamespace(metric="average_jct_s", simulated=lambda *_: (runs, None))
    assert tuning._change(search, {}, (1, 2))["change"] == pytest.approx(-0.25)
