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


@pytest.mark.parametrize(("before", "queued"), [(0, True), (2, False), (4, False)])
def test_a_search_says_after_each_trial_how_many_are_done(
    before: int, queued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untuned policies are the first trial, and four are asked for."""
    states, enqueued, told = ["COMPLETE"] * before, list[Any](), list[tuple[int, int]]()

    class Study:
        trials = property(lambda _: [SimpleNamespace(state=SimpleNamespace(name=state)) for state in states])

        def enqueue_trial(self, values: Any) -> None:
            enqueued.append(values)

        def optimize(self, value: Any, n_trials: int) -> None:
            states.extend(["COMPLETE"] * n_trials)

    monkeypatch.setattr(tuning, "_study", lambda *_: Study())
    monkeypatch.setattr(tuning, "_finished", lambda study: len(study.trials))
    monkeypatch.setattr(tuning, "_checked", lambda *_: "checked")
    monkeypatch.setattr(tuning._Search, "simulated", lambda *_: (None, ""))
    search: Any = {"ranges": ["communication.limit=1,2,3"], "folder": tmp_path}
    found: Any = tuning.tune(SMALL, OVERLAP, trials=4, watch=lambda *done: told.append(done), **search)
    assert found == "checked"
    assert told == [(done, 4) for done in range(before, 5)]
    assert enqueued == ([{"communication.limit": 1}] if queued else [])


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


@pytest.mark.parametrize(
    ("value", "low", "high"), [(1, 1, 4), (2, 1, 8), (10, 2, 40), (30, 8, 120), (0.5, 0.125, 2.0), (8.0, 2.0, 32.0)]
)
def test_a_number_is_varied_from_a_quarter_to_four_times_itself_and_a_whole_one_from_1_on(
    value: float, low: float, high: float
) -> None:
    knob = tuning._around("order.weight", value)
    assert knob == tuning.Knob("order", "weight", value, low, high)
    assert knob is not None
    assert (type(knob.low), knob.name) == (type(value), "order.weight")


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.5, None, "1", ()])
def test_no_range_is_told_from_what_is_not_above_0_or_no_number(value: object) -> None:
    assert tuning._around("order.weight", value) is None


class _Trial:
    """Notes what a knob asks of a trial."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: (name, *arguments, named)


@pytest.mark.parametrize(
    ("default", "low", "high", "kind", "log"),
    [
        (1, 1, 9, "int", False),
        (1, 1, 10, "int", True),
        (5, 0, 100, "int", False),
        (5, -10, 100, "int", False),
        (0.5, 0.1, 0.99, "float", False),
        (0.5, 0.25, 2.5, "float", True),
        (0.5, 0.0, 2.5, "float", False),
    ],
)
def test_a_range_of_positive_numbers_is_searched_by_logarithms_from_a_ratio_of_ten_on(
    default: float, low: float, high: float, kind: str, log: bool
) -> None:
    trial: Any = _Trial()
    assert tuning.Knob("a", "b", default, low, high).suggest(trial) == (
        f"suggest_{kind}",
        "a.b",
        low,
        high,
        {"log": log},
    )
    chosen = tuning.Knob("a", "b", default, choices=(low, high)).suggest(trial)
    assert chosen == ("suggest_categorical", "a.b", [low, high], {})


FIELDS = {"o.whole": 4, "o.real": 0.5, "o.truth": False, "o.text": "x", "o.zero": 0}


@pytest.mark.parametrize(
    ("text", "knob"),
    [
        ("o.whole", tuning.Knob("o", "whole", 4, 1, 16)),
        ("o.truth", tuning.Knob("o", "truth", False, choices=(False, True))),
        (" o.whole = 2:3 ", tuning.Knob("o", "whole", 4, 2, 3)),
        ("o.zero=-1:0", tuning.Knob("o", "zero", 0, -1, 0)),
        ("o.real=0:1", tuning.Knob("o", "real", 0.5, 0.0, 1.0)),
        ("o.whole=1, 8,2.5", tuning.Knob("o", "whole", 4, choices=(1, 8, 2.5))),
        ("o.truth=true,false", tuning.Knob("o", "truth", False, choices=(True, False))),
        ("o.text=1,y", tuning.Knob("o", "text", "x", choices=("1", "y"))),
    ],
)
def test_what_is_varied_by_a_text(text: str, knob: tuning.Knob) -> None:
    assert tuning._knob(text, FIELDS) == knob


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("o.hole", "--vary o.hole: no field is named 'o.hole'. Did you mean 'o.whole' or "),
        ("o.zero", "--vary o.zero: o.zero is 0; expected a range, such as o.zero=1:8"),
        ("o.truth=0:1", "--vary o.truth=0:1: the field is False, no number; expected values with commas"),
        ("o.text=a:b", "--vary o.text=a:b: the field is 'x', no number; expected values with commas"),
        ("o.whole=1:2:3", "--vary o.whole=1:2:3: is no range; expected o.whole=LOW:HIGH with LOW < HIGH"),
        ("o.whole=2:2", "--vary o.whole=2:2: is no range; expected o.whole=LOW:HIGH with LOW < HIGH"),
        ("o.whole=2", "--vary o.whole=2: has one value; expected o.whole=LOW:HIGH or several with commas"),
    ],
)
def test_a_text_that_varies_nothing_is_refused(text: str, said: str) -> None:
    with pytest.raises(ddlsched.InputError) as error:
        tuning._knob(text, FIELDS)
    assert str(error.value).startswith(said)


def test_a_policy_of_a_file_keeps_its_file_and_class(tmp_path: Path) -> None:
    assert tuning._head("lwf:kappa=1") == "lwf"
    assert tuning._head("a/b.py:Mine:x=1,y=2") == "a/b.py:Mine"
    assert tuning._head("a/b.py:Mine") == "a/b.py:Mine"
    file = tmp_path / "mine.py"
    file.write_text("def mine():\n    return None\n")
    with pytest.raises(
        ddlsched.InputError, match=r"^order mine: is no dataclass; expected one, whose fields can be tuned"
    ):
        knobs({"order": f"{file}:mine"}, [])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"trials": 0}, "trials is 0; expected 1 or more"),
        ({"seeds": ()}, "there are no seeds to tune on, or none held out; expected one of each at least"),
        ({"held_out": ()}, "there are no seeds to tune on, or none held out; expected one of each at least"),
        ({"held_out": (3, 2, 9)}, r"seeds \[2, 3\] are tuned on and held out; expected each in one of them"),
        ({"metric": "speed"}, "metric 'speed': is not compared; expected one of average_jct_s, median_jct_s, "),
    ],
)
def test_a_search_that_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"metric": "average_jct_s", "trials": 1, "seeds": (2, 3), "held_out": (4,)}
    tuning._refuse(**asked)
    with pytest.raises(ddlsched.InputError, match=rf"^{said}"):
        tuning._refuse(**(asked | given))


@pytest.mark.parametrize(
    ("metric", "tuned", "held", "seeds", "said"),
    [
        (
            "average_jct_s",
            -0.2,
            (0.0, -0.1, 0.1),
            12,
            "overfitted: on the held-out seeds the tuned values are no better",
        ),
        ("average_jct_s", -0.2, (-0.1, -0.15, -0.05), 12, None),
        ("average_jct_s", -0.2, (-0.1, -0.15, -0.05), 6, None),
        ("average_jct_s", -0.2, (-0.1, -0.15, -0.05), 5, "5 held-out seeds give no interval; expected 6 at least"),
        ("average_jct_s", -0.2, (-0.1, -0.15, 0.0), 6, "undecided: the interval of the change on the held-out seeds"),
        ("jain_index", 0.2, (0.1, 0.0, 0.15), 6, "undecided: the interval of the change on the held-out seeds"),
        ("jain_index", 0.4, (0.1, 0.05, 0.15), 6, "overfitted: of the gain on the tuning seeds, 25 % is left"),
        (
            "jain_index",
            -0.2,
            (-0.1, -0.2, -0.05),
            6,
            "overfitted: on the held-out seeds the tuned values are no better",
        ),
    ],
)
def test_the_bounds_of_a_gain_that_is_believed(
    metric: str, tuned: float, held: tuple[float, float, float], seeds: int, said: str | None
) -> None:
    checked = dict(zip(("change", "change_low", "change_high"), held, strict=True))
    told = tuning._warning(metric, {"change": tuned}, checked, seeds, False)
    assert told is None if said is None else str(told).startswith(said)
    assert (
        tuning._warning(metric, {"change": tuned}, checked, seeds, True) == "nothing was better than the values untuned"
    )


def test_trials_that_ended_are_counted() -> None:
    states = ("COMPLETE", "PRUNED", "FAIL", "RUNNING", "WAITING", "COMPLETE")
    study: Any = SimpleNamespace(trials=[SimpleNamespace(state=SimpleNamespace(name=name)) for name in states])
    assert tuning._finished(study) == 3


@pytest.mark.parametrize("held_out", [5, 6])
def test_what_was_found_is_told_with_an_interval_from_six_held_out_seeds_on(
    held_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pd.DataFrame({"number": [0, 1], "params_communication.limit": [1, 2], "value": [4.0, 3.0]})
    study: Any = SimpleNamespace(best_params={"communication.limit": 2}, trials_dataframe=lambda attrs: table)
    knob = tuning.Knob("communication", "limit", 1, 1, 4)
    search: Any = SimpleNamespace(policies=OVERLAP, knobs=[knob], metric="average_jct_s")
    seen = []

    def change(of: Any, named: Any, seeds: Any) -> dict[str, float]:
        assert of is search
        seen.append((named, seeds))
        return {"change": -0.25 / len(seen), "change_low": -0.3 / len(seen), "change_high": -0.2 / len(seen)}

    monkeypatch.setattr(tuning, "_change", change)
    found = tuning._checked(search, study, (1, 2), range(held_out))
    named = {"untuned": {"communication.limit": 1}, "tuned": {"communication.limit": 2}}
    assert seen == [(named, (1, 2)), (named, range(held_out))]
    assert (found.values, found.policies) == (named["tuned"], {"communication": "bounded-overlap:limit=2"})
    assert (found.tuning_change, found.held_out_change) == (-0.25, -0.125)
    assert found.held_out_interval == (None if held_out == 5 else (-0.15, -0.1))
    assert found.trials.columns.tolist() == ["number", "communication.limit", "value"]
    assert found.warning == ("5 held-out seeds give no interval; expected 6 at least" if held_out == 5 else None)


def test_a_check_that_fails_says_so() -> None:
    search: Any = SimpleNamespace(metric="average_jct_s", simulated=lambda *_: (None, "tuned, seed 3: broken"))
    with pytest.raises(ddlsched.SimulationError, match=r"^the check failed: tuned, seed 3: broken$"):
        tuning._change(search, {}, (3,))
