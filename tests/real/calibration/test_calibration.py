"""Contention constants from measured all-reduces: the file, the fits, their intervals, the command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from command_line import run

from ddlsched.errors import FaultyInputError, InputError
from ddlsched.plugins.names import resolve
from ddlsched.real import calibrate_command
from ddlsched.real.calibration.fit import (
    FORMS,
    calibrate,
    errors_on_halves,
    fit_constants,
    intervals,
    predicted_s,
    presets,
)
from ddlsched.real.calibration.measurements import Measurements, read_measurements

TRUE = {"latency_s": 1e-3, "per_byte_s": 8.5e-10, "penalty_per_byte_s": 2.4e-10}
LINEAR = next(form for form in FORMS if len(form.constants) == 3)
RING = next(form for form in FORMS if form.ring_bytes)


def settings(repeats: int = 1) -> Measurements:
    """Return 4 x 4 settings on four servers, without times."""
    jobs, sizes = (grid.ravel().repeat(repeats) for grid in np.meshgrid([1.0, 2, 4, 8], [1e6, 4e6, 16e6, 64e6]))
    return Measurements(jobs, sizes, np.ones(len(jobs)), np.full(len(jobs), 4.0))


def timed(rows: Measurements, noise: float = 0.0, seed: int = 0) -> Measurements:
    """Return the rows with times of the true constants, each off by a random factor."""
    factor = np.exp(np.random.default_rng(seed).normal(0.0, noise, len(rows)))
    return Measurements(rows.jobs, rows.message_bytes, predicted_s(LINEAR, TRUE, rows) * factor, rows.servers)


def written(tmp_path: Path, rows: Measurements) -> Path:
    path = tmp_path / "measured.csv"
    lines = [
        f"{int(k)},{m:.0f},{float(s)!r},4" for k, m, s in zip(rows.jobs, rows.message_bytes, rows.seconds, strict=True)
    ]
    path.write_text("concurrent_jobs,message_bytes,transfer_s,servers\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True])
def test_presets_without_intervals_are_those_with_them(alone):
    rows = timed(settings(), noise=0.05)
    if alone:
        rows = rows.rows(rows.jobs == 1)
    assert presets(rows) == {fit.form.name: fit.preset for fit in calibrate(rows)}
    assert len(presets(rows)) == (3 if alone else 4)


# ---- The file


def test_a_file_is_read(tmp_path):
    rows = timed(settings())
    read = read_measurements(written(tmp_path, rows))
    for name in ("jobs", "message_bytes", "seconds", "servers"):
        assert getattr(read, name).tolist() == pytest.approx(getattr(rows, name).tolist(), rel=1e-12)


def test_published_microseconds_are_read(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text("concurrent_jobs,message_bytes,mean_latency_us\n2,10485760,218651.9\n")
    rows = read_measurements(path)
    assert rows.seconds.tolist() == pytest.approx([0.2186519])
    assert rows.servers is None


def test_every_bad_row_is_named(tmp_path):
    path = tmp_path / "bad.csv"
    bad = ["0,1e6,1,4", "1,-5,1,4", "1,1e6,soon,4", "2,1e6,0,4", "2.5,1e6,1,1", "1,1e6,1,4", "1,,1,4", "1,1e6,1"]
    path.write_text("concurrent_jobs,message_bytes,transfer_s,servers\n" + "\n".join(bad) + "\n")
    with pytest.raises(FaultyInputError) as caught:
        read_measurements(path)
    faults = sorted(caught.value.faults, key=lambda fault: fault.split("row ")[1])
    places = [(fault.split(" (line")[0][-1], fault.split("column ")[-1].split(":")[0]) for fault in faults]
    assert places[:-1] == [
        ("1", "concurrent_jobs"),
        ("2", "message_bytes"),
        ("3", "transfer_s"),
        ("4", "transfer_s"),
        ("5", "concurrent_jobs"),
        ("5", "servers"),
        ("7", "message_bytes"),
    ]
    assert faults[-1].startswith(f"{path}, row 8 (line 9): has 3 values")
    assert all("expected" in fault and str(path) in fault for fault in caught.value.faults)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("concurrent_jobs,message_bytes,transfer_s\n", "holds no rows"),
        ("concurrent_jobs,message_bytes\n1,2\n", "'transfer_s' is missing"),
        ("concurrent_jobs,message_bytes,transfer_s,mean_latency_us\n1,2,3,4\n", "expected one of them"),
        ("concurrent_jobs,message_bytes,transfer_s,hosts\n1,2,3,4\n", "unknown column 'hosts'"),
    ],
)
def test_a_file_of_other_columns_is_refused(tmp_path, text, said):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_measurements(path)


# ---- The fits


@pytest.mark.long
def test_exact_times_give_the_constants_back():
    fit = calibrate(timed(settings()))[0]
    assert fit.form is LINEAR
    assert fit.values == pytest.approx(TRUE, rel=1e-6)
    assert fit.tested_error.high < 1e-6


def test_ring_bytes_are_divided_out():
    rows = settings()
    seconds = 1e-3 + rows.jobs * rows.message_bytes * (2 * 3 / 4) * 8e-10
    constants = fit_constants(RING, Measurements(rows.jobs, rows.message_bytes, seconds, rows.servers))
    assert constants == pytest.approx({"latency_s": 1e-3, "per_byte_s": 8e-10}, rel=1e-6)


def test_a_constant_is_never_negative():
    rows = settings()
    seconds = rows.jobs * rows.message_bytes * 1e-9 - (rows.jobs - 1) * rows.message_bytes * 1e-10
    assert fit_constants(LINEAR, Measurements(rows.jobs, rows.message_bytes, seconds))["penalty_per_byte_s"] == 0


@pytest.mark.long
def test_times_that_do_not_grow_with_bytes_give_a_model_that_simulate_takes():
    rows = settings()
    for fit in calibrate(Measurements(rows.jobs, rows.message_bytes, np.ones(len(rows)))):
        assert resolve("contention", fit.preset).alone_per_byte_s > 0


@pytest.mark.slow
def test_intervals_hold_the_true_constants_about_as_often_as_they_say():
    held = []
    for seed in range(20):
        found = intervals(LINEAR, timed(settings(), noise=0.05, seed=seed), resamples=200, seed=seed)
        held += [found[name].low <= true <= found[name].high for name, true in TRUE.items()]
    assert np.mean(held) >= 0.85


def test_repeats_of_one_setting_are_fitted_or_tested_together():
    # With repeats that agree, but settings that do not, rows of a fitted setting would look well predicted.
    rng = np.random.default_rng(1)
    rows = settings()
    off = np.exp(rng.normal(0.0, 0.3, len(rows)))
    once = Measurements(rows.jobs, rows.message_bytes, predicted_s(LINEAR, TRUE, rows) * off)
    often = once.rows(np.arange(len(rows)).repeat(10))
    assert errors_on_halves(LINEAR, often).mean() == pytest.approx(errors_on_halves(LINEAR, once).mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda rows: rows.jobs == 2, "every row has concurrent_jobs 2; expected 1, or at least two numbers"),
        (lambda rows: rows.message_bytes == 1e6, "every row has message_bytes"),
        (lambda rows: (rows.jobs < 3) & (rows.message_bytes < 5e6), "there are 4 settings"),
    ],
)
def test_rows_that_cannot_tell_the_constants_are_refused(chosen, said):
    rows = timed(settings())
    with pytest.raises(InputError, match=said):
        calibrate(rows.rows(chosen(rows)))


@pytest.mark.long
def test_all_reduces_that_were_all_alone_tell_latency_and_time_of_a_byte(tmp_path):
    rows = timed(settings())
    alone = rows.rows(rows.jobs == 1)
    fits = {fit.form.name: fit for fit in calibrate(alone)}
    assert "linear" not in fits
    fit = fits["linear, no penalty"]
    assert fit.values == pytest.approx({name: TRUE[name] for name in fit.form.constants}, rel=1e-6)
    assert "penalty" not in fit.preset
    path = tmp_path / "alone.csv"
    lines = [f"1,{size:.0f},{seconds}" for size, seconds in zip(alone.message_bytes, alone.seconds, strict=True)]
    path.write_text("concurrent_jobs,message_bytes,transfer_s\n" + "\n".join(lines) + "\n")
    done = run("calibrate", path, "--chart", tmp_path / "fit.png")
    assert (done.exit_code, (tmp_path / "fit.png").exists()) == (0, True)
    assert "the penalty of sharing was not measured" in done.stdout


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_preset_is_what_simulate_takes(form):
    constants = {name: TRUE[name] for name in form.constants}
    model = resolve("contention", form.preset(constants, timed(settings())))
    for name in ("latency_s", "per_byte_s", "penalty_per_byte_s"):
        assert getattr(model, name) == pytest.approx(constants.get(name, 0.0), rel=1e-5)


# ---- The command


@pytest.mark.long
def test_the_command_prints_a_table_and_the_text_for_simulate(tmp_path):
    done = run("calibrate", written(tmp_path, timed(settings(), noise=0.02)))
    assert done.exit_code == 0
    assert "--contention linear:latency_s=" in done.stdout
    assert "penalty" in done.stdout
    assert "No model is near" not in done.stdout


@pytest.mark.long
def test_the_command_answers_in_json_and_draws(tmp_path):
    done = run("calibrate", written(tmp_path, timed(settings())), "--json", "--chart", tmp_path / "fit.png")
    found = json.loads(done.stdout)
    assert found["rows"] == found["settings"] == 16
    best = found["models"][0]
    assert {name: constant["value"] for name, constant in best["constants"].items()} == pytest.approx(TRUE, rel=1e-6)
    assert resolve("contention", best["contention"]).latency_s == pytest.approx(1e-3, rel=1e-5)
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_command_says_where_no_model_is_near(tmp_path):
    done = run("calibrate", written(tmp_path, timed(settings(), noise=1.0)))
    assert "No model is near: more than 20 % off" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected either FILE.csv"),
        (["FILE", "--measure", "127.0.0.1:1"], "expected either FILE.csv"),
        (["FILE", "--chart", "fit.gif"], "expected .png or .svg"),
        (["FILE", "--chart", "."], "expected .png or .svg"),
        (["FILE", "--chart", "/dev/null"], "expected .png or .svg"),
        (["FILE", "--out", "x.csv"], "belong to --measure"),
        (["nowhere.csv"], "nowhere.csv: no such file"),
        (["--measure", "127.0.0.1:1"], "expected --token-file"),
    ],
)
def test_the_command_refuses_what_it_cannot_use(tmp_path, arguments, said):
    path = str(written(tmp_path, timed(settings())))
    done = run("calibrate", *[path if argument == "FILE" else argument for argument in arguments])
    assert done.exit_code == 2
    assert said in done.stderr


def test_every_bad_row_is_a_line_on_stderr(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("concurrent_jobs,message_bytes,transfer_s\n0,1,1\n1,1,-1\n")
    done = run("calibrate", path)
    assert done.exit_code == 2
    assert [line.split("row ")[1][0] for line in done.stderr.splitlines()] == ["1", "2"]


@pytest.mark.parametrize("errors", [(0.5, 0.1), (0.1, 0.5)])
def test_that_no_model_is_near_is_said_of_the_nearest_one(errors: tuple[float, float]) -> None:
    fits: Any = [
        SimpleNamespace(
            form=SimpleNamespace(name="a"),
            tested_error=SimpleNamespace(value=error, low=error, high=error),
            constants={},
            preset="a",
        )
        for error in errors
    ]
    rows = MagicMock(settings=np.array([0]), all_alone=False)
    assert ("No model is near" in calibrate_command._table("rows.csv", rows, fits, [])) is (errors[0] > 0.2)
