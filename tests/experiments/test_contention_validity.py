"""The contention-validity experiment on made-up measurements in the formats of the real ones."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from experiment_scripts import EXPERIMENTS, scripts_of

from ddlsched.errors import InputError
from ddlsched.network.contention import ONE_GBE_MEASURED, EqualShare, Linear
from ddlsched.real.calibration.fit import FORMS, fit_constants, predicted_s
from ddlsched.real.calibration.measurements import Measurements

FOLDER = EXPERIMENTS / "contention_validity"
run, pairs, latencies, placements, measured = scripts_of(
    "contention_validity", "run", "pairs", "latencies", "placements", "measured"
)
Training = pairs.Training
needs_data = pytest.mark.skipif(
    bool(measured.missing(run.PUBLIC_DATA)), reason="needs the measurements in shared/data beside the project"
)


@pytest.fixture
def quick(monkeypatch) -> None:
    """Fewer and shorter runs."""
    monkeypatch.setattr(pairs, "SHARES", np.linspace(0.0, 0.96, 4))
    monkeypatch.setattr(pairs, "UNTIL_S", 10.0)
    monkeypatch.setattr(pairs, "PENALTIES", (0.0, 0.5))
    monkeypatch.setattr(pairs, "DRAWS", 1)
    models = [dataclasses.replace(model, choices=model.choices[:2]) for model in pairs.MODELS]
    models[-1] = dataclasses.replace(models[-1], connections=(1, 2))
    monkeypatch.setattr(pairs, "MODELS", tuple(models))


@pytest.fixture
def data(tmp_path) -> Path:
    """Made-up measurements of a few jobs, all-reduces and placements."""
    for name in measured.FILES.values():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    jobs = [f"Model{number},{gpus},2" for number in range(3) for gpus in (2, 4)]
    rng = np.random.default_rng(0)
    ratios = pd.DataFrame(rng.uniform(0.5, 1.0, (6, 6)).round(3), index=jobs, columns=jobs)
    ratios.to_csv(tmp_path / measured.FILES["pairs"])
    rows = [f"{k},{m},{1e6 * k * m * 1e-8:.6f}" for m in (10**7, 2 * 10**7) for k in range(1, 5)]
    header = "concurrent_jobs,message_bytes,mean_latency_us"
    (tmp_path / measured.FILES["latencies"]).write_text("\n".join([header, *rows]) + "\n")
    alone = [header, *(f"1,{m}000000,{m * 1e4:.6f}" for m in (10, 20, 30))]
    (tmp_path / measured.FILES["alone"]).write_text("\n".join(alone) + "\n")
    (tmp_path / measured.FILES["placements"]).mkdir()
    for app in measured.APPS:
        steps = [
            f"{place},{batch},{0.1 * batch + (0.3 if len(place) > 1 else 0.0)},0.1"
            for place in ("1", "2", "11", "12", "22", "111", "112", "1111", "1212")
            for batch in (1, 2)
        ]
        text = "\n".join(["placement,local_bsz,step_time,sync_time", *steps]) + "\n"
        (tmp_path / measured.FILES["placements"] / f"{app}.csv").write_text(text)
    return tmp_path


# ---- Pairs of jobs


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 1 / 2), (0.5, 1 / 2.5)])
def test_two_jobs_that_only_communicate_halve_each_other(ratio, expected):
    groups = [[Training(1e-4, 1.0), Training(1e-4, 0.9)]]
    alone = [[job] for job in groups[0]]
    model = pairs.linear(ratio)
    done_s, _ = pairs.run(groups, model, per_byte_s=1e-9, until_s=200.0)
    own_s, finish_s = pairs.run(alone, model, per_byte_s=1e-9, iterations=1)
    assert done_s / 200.0 / (own_s / finish_s) == pytest.approx([expected] * 2, rel=0.02)


@pytest.mark.long
def test_more_connections_get_more_of_the_network():
    busy = (pairs.State(0.96, connections=3), pairs.State(0.96))
    found = np.mean([pairs.ratios([busy], pairs.SHARING, seed=seed) for seed in range(6)], axis=(0, 1))
    assert found == pytest.approx([0.75, 0.25], abs=0.06)


def test_jobs_without_communication_do_not_slow_down():
    found = pairs.ratios([(pairs.State(0.0), pairs.State(0.96))], pairs.SHARING, seed=0)
    assert found == pytest.approx(np.ones((1, 2)), abs=0.02)


def test_jobs_are_recognised_from_half_of_their_pairs(quick):
    model = pairs.MODELS[0]
    found = pairs.table(model, model.choices[0])
    rng = np.random.default_rng(0)
    states = rng.integers(10, 90, 12)
    values = found[np.ix_(states, states)]
    fitted = pairs.masks(12, 1)[0]
    _, guessed = pairs.fit([found], values, fitted)
    predicted = found[np.ix_(guessed, guessed)]
    assert np.abs(predicted - values)[~fitted].mean() < 0.25 * np.abs(values.mean() - values)[~fitted].mean()


def test_both_ratios_of_a_pair_are_in_one_half():
    for mask in pairs.masks(7, 5):
        assert (mask == mask.T).all()
        assert mask[np.triu_indices(7)].sum() == 14


def test_predictions_look_at_the_fitted_half_only():
    values = np.random.default_rng(0).uniform(0.3, 1.0, (8, 8))
    fitted = pairs.masks(8, 1)[0]
    other = np.where(fitted, values, 0.111)
    for name, predicted in pairs.plain(values, fitted).items():
        assert (predicted == pairs.plain(other, fitted)[name]).all(), name
    table = np.linspace(0.4, 1, 97)[:, None] * np.ones(97)
    assert (pairs.fit([table], values, fitted)[1] == pairs.fit([table], other, fitted)[1]).all()


# ---- Latencies


def test_simulated_latencies_are_the_fitted_formula():
    rows = Measurements(np.array([1.0, 2, 5]), np.array([1e6, 3e6, 2e6]), np.ones(3))
    constants = {"latency_s": 1e-3, "per_byte_s": 9e-9, "penalty_per_byte_s": 1e-9}
    assert latencies.simulated_s(rows, Linear(**constants)) == pytest.approx(
        predicted_s(FORMS[-1], constants, rows), rel=1e-6
    )


@needs_data
def test_the_measured_preset_is_the_fit():
    rows = measured.latencies(run.PUBLIC_DATA)
    form = next(form for form in FORMS if form.constants == ("per_byte_s",))
    assert fit_constants(form, rows)["per_byte_s"] == pytest.approx(ONE_GBE_MEASURED["per_byte_s"], rel=1e-3)


# ---- Placements


@pytest.mark.long
def test_steps_of_the_linear_model_are_found_again(data):
    by_app = placements.errors(measured.placements(data), 4)
    assert by_app["linear (whole message)"].max() < 0.01
    assert by_app["max-min, equal share (ring)"].min() > 0.01


def test_steps_of_a_ring_grow_with_its_servers():
    rows = pd.DataFrame({"servers": [2, 3, 4], "compute_s": [0.1] * 3})
    model = next(model for model in placements.MODELS if isinstance(model.contention, EqualShare))
    extra = placements.predictions(rows, model)[:, 100] - 0.1
    assert extra / extra[0] == pytest.approx([1, 4 / 3, 3 / 2], rel=0.02)


# ---- Files and the whole


@pytest.mark.long
def test_everything_runs_on_made_up_measurements(quick, data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["run.py", "--data", str(data), "--halves", "2", "--out", str(out)])
    assert run.main() == 0
    errors = pd.read_csv(out / "tables" / "errors.csv")
    assert set(errors["data"]) == {"latencies", "pairs", "placements"}
    assert (errors["low"] <= errors["error"] + 1e-9).all()
    assert "## errors" in capsys.readouterr().out


def test_without_the_measurements_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--data", str(tmp_path)])
    assert run.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line
    assert "--data" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [("a,b\na,0.5,1\nb,1,1\n", None), (",a,b\na,0.5,1\nc,1,1\n", "differ"), (",a,b\na,0.5,1.5\nb,1,1\n", "no ratio")],
)
def test_a_matrix_that_is_none_is_refused(data, text, said):
    (data / measured.FILES["pairs"]).write_text(text)
    if said is None:
        assert measured.pairs(data).shape == (2, 2)
    else:
        with pytest.raises(InputError, match=said):
            measured.pairs(data)


def test_a_batch_without_its_compute_time_is_refused(data):
    path = data / measured.FILES["placements"] / "bert.csv"
    path.write_text(path.read_text() + "11,7,1.0,0.5\n")
    with pytest.raises(InputError, match="batch 7 was not measured on one GPU"):
        measured.placements(data)


@needs_data
@pytest.mark.slow
def test_the_committed_tables_can_be_repeated(tmp_path):
    tables = run.report(run.PUBLIC_DATA, run.HALVES, tmp_path)
    assert {path.stem for path in (FOLDER / "expected").glob("*.csv")} == set(tables)
    for name in tables:
        committed = pd.read_csv(FOLDER / "expected" / f"{name}.csv")
        again = pd.read_csv(tmp_path / "tables" / f"{name}.csv")
        pd.testing.assert_frame_equal(again, committed, rtol=1e-2, atol=1e-4)
