"""Constants fitted to written measurements, with intervals, errors, tables and charts, as they were to five digits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from kept_numbers import answered, assert_kept, digest
from matplotlib.colors import to_hex

from ddlsched.network.weighted_shares import ConnectionShares
from ddlsched.real.calibration import fit, shares
from ddlsched.real.calibration.agent import RingRequest
from ddlsched.real.calibration.measurements import (
    Measured,
    Measurements,
    MeasurePlan,
    Reach,
    read_measurements,
    write_measurements,
)
from ddlsched.real.calibration.shares import ShareRows, fit_size_shares, fit_wait, read_alone, wait_text
from ddlsched.real.channel import Address

SIZES = (1e6, 3e6, 8e6, 2e7)


def five(*numbers: float) -> str:
    """Five digits: solvers of other versions and processors agree in more."""
    return " ".join(f"{number:.5g}" for number in numbers)


def measured(seed: int, jobs: tuple[int, ...], servers: tuple[int, ...], *, told: bool = True) -> Measurements:
    """Times of rings, the more the later, of settings of which some are repeated."""
    rng = np.random.default_rng(seed)
    settings = [(k, size, n) for k in jobs for size in SIZES for n in servers for _ in range(1 + (k == 1))]
    count, sizes, of = np.array(settings, np.float64).T
    steps = 2 * (of - 1)
    seconds = 2e-3 + count * (sizes * steps / of * 8e-10 + steps * 1e-4) + (count - 1) * sizes * 3e-10
    return Measurements(count, sizes, seconds * np.exp(rng.normal(0, 0.05, len(settings))), of if told else None)


ROWS = {
    "many": measured(1, (1, 2, 4), (4,)),
    "rings": measured(2, (1, 3), (2, 4, 8)),
    "alone": measured(3, (1,), (2, 5)),
    "untold": measured(4, (1, 2, 5), (3,), told=False),
}


def constants(of: Any) -> str:
    return " ".join(f"{name} {five(each.value, each.low, each.high)}" for name, each in of.items())


@pytest.mark.long
@pytest.mark.parametrize("name", ROWS)
def test_fits_are_what_they_were(name: str) -> None:
    rows, found = ROWS[name], {}
    for form in fit.FORMS:
        if form.ring_bytes and rows.servers is None:
            continue
        if "penalty_per_byte_s" not in form.constants or not rows.all_alone:
            some = constants(fit.intervals(form, rows, resamples=60, seed=3))
            halves = fit.errors_on_halves(form, rows, halves=20, seed=2)
            errors, preset = five(halves.mean(), halves.max()), form.preset(fit.fit_constants(form, rows), rows)
            found[form.name] = f"{some} {len(halves)} {errors} {preset}"
    found["presets"] = str(fit.presets(rows))
    found["halves"] = digest(fit.random_halves(rows, 5, seed=1).astype(int).tolist())
    found["reach"] = f"{Reach.of(rows)} {rows.settings.tolist()}"
    assert_kept(f"fits-{name}", found)


@pytest.mark.long
def test_calibrations_are_told_and_drawn_as_they_were(tmp_path: Path) -> None:
    found = {}
    for name in ("many", "untold"):
        rows = ROWS[name]
        fits = fit.calibrate(rows, seed=4)
        for each in fits:
            numbers = five(each.error, each.tested_error.value, each.tested_error.low, each.tested_error.high)
            found[f"{name} {each.form.name}"] = f"{numbers} {constants(each.constants)} {each.preset}"
        figure = fit.fit_chart(rows, fits[0])
        (axes,) = figure.axes
        lines = [
            (five(*np.ravel(line.get_xydata())), to_hex(line.get_color()), line.get_linestyle(), line.get_marker())
            for line in axes.lines
        ]
        texts = [axes.get_xlabel(), axes.get_ylabel(), axes.get_yscale(), [line.get_label() for line in axes.lines]]
        found[f"{name} chart"] = f"{len(lines)} {digest([*lines, *texts, figure.get_suptitle()])}"
        head = ["concurrent_jobs", "message_bytes", "transfer_s"] + (["servers"] if rows.servers is not None else [])
        columns = [rows.jobs, rows.message_bytes, rows.seconds] + ([rows.servers] if rows.servers is not None else [])
        file = tmp_path / f"{name}.csv"
        file.write_text(
            "\n".join(
                [",".join(head), *(",".join(f"{cell:.10g}" for cell in row) for row in zip(*columns, strict=True))]
            )
        )
        if name == "many":
            continue
        said = run("calibrate", file, "--chart", tmp_path / "a.png").stdout.replace(str(tmp_path), "")
        found[f"{name} told"] = f"{len(said.splitlines())} {digest([re.sub('[0-9.]+', '', said)])}"
    assert_kept("calibrations", found)


def beside(chunks: bool, seed: int) -> ShareRows:
    rng = np.random.default_rng(seed)
    rows = []
    for servers in (2, 4):
        for small, large in ((2e6, 5e6), (2e6, 9e6), (4e6, 2e7), (5e6, 5.5e6)):
            busy = 2e-3 + small * 8e-10 * 2 * (servers - 1) / servers
            rows.append((small, large, servers, 0, busy * float(rng.uniform(2.0, 3.5))))
    rows += (
        [(6e6, 0, 3, 1e6, 0.02 * float(rng.uniform(1, 2))), (5e6, 0, 2, 2e6, 0.03), (5e6, 0, 2, 0, 0.03)]
        if chunks
        else []
    )
    return ShareRows(*np.array(rows, np.float64).T)


def test_shares_and_waits_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "_RESAMPLES", 25)
    monkeypatch.setattr(shares, "intervals", lambda *given, **named: fit.intervals(*given, resamples=25, **named))
    found = {}
    for seed, (chunks, name) in enumerate(((True, "rings"), (False, "rings"), (True, "many"))):
        made = fit_size_shares(beside(chunks, seed), ROWS[name], seed=seed)
        found[f"{seed}"] = f"{constants(made.constants)} {made.chunk_bytes}"
        found[f"{seed} presets"] = f"{made.whole} {made.of_connections} {made.in_chunks}"
    rng = np.random.default_rng(7)
    servers = np.repeat([2.0, 4.0, 8.0], 4)
    sizes = np.tile(SIZES, 3)
    none = np.zeros(12)
    rows = ShareRows(sizes, none, servers, none, 2 * sizes * 1e-9 * (1 + 0.03 * servers) * rng.uniform(0.9, 1.1, 12))
    for model in (ConnectionShares(per_byte_s=1e-9), ConnectionShares(latency_s=1e-3, per_byte_s=1.2e-9)):
        wait = fit_wait(rows, model, seed=5)
        found[f"wait {model.latency_s}"] = f"{five(wait.value, wait.low, wait.high)} {wait_text(rows, wait)}"
    assert_kept("shares", found)


def refuse_untold(rows: Measurements) -> None:
    fit.told_forms(rows)


HOSTS = tuple(Address("127.0.0.1", port) for port in (5000, 5001, 5002))
REQUEST: dict[str, Any] = {
    "run": "0" * 32,
    "hosts": HOSTS[:2],
    "rank": 1,
    "jobs": 2,
    "message_bytes": 800,
    "repeats": 3,
}


def parsed(memory: int = 3200, **more: Any) -> RingRequest:
    try:
        return RingRequest.parsed(json.loads(json.dumps(REQUEST | more, default=str)), memory)
    except Exception as error:
        return f"{type(error).__name__} {error}"  # type: ignore[return-value]


TRIED: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "plan": (MeasurePlan, {"hosts": HOSTS, "jobs": (1, 4), "message_bytes": (100, 12, 1002)}, {
        "hosts": (HOSTS[:1], HOSTS[:2], (HOSTS[0],) * 2, tuple(Address("a", port) for port in range(1, 66))),
        "jobs": ((0,), (1,), (64,), (65,), (1.0,)), "message_bytes": ((11,), (12,), (2**40,), (2**40 + 1,)),
        "repeats": (0, 1, 1000, 1001),
    }),
    "request": (parsed, {}, {
        "memory": (3199, 3200), "run": ("0" * 31, "g" * 32), "hosts": (HOSTS[:1], HOSTS, HOSTS * 22), "rank": (-1, 0,
            2),
        "jobs": (0, 1, 64, 65), "message_bytes": (0, 4, 8, 802), "repeats": (0, 1, 1000, 1001), "more": (1,),
    }),
}  # fmt: skip
OF_FILES: dict[str, tuple[Callable[[Path], Any], str, tuple[str, ...]]] = {
    "measurements": (read_measurements, "concurrent_jobs,message_bytes,transfer_s,servers,repeat\n", (
        "1,5,2,2,1\n2,6,3,,\n", "1,5,2,2,1\n", "0,5,2,2,1\n", "1,0,2,2,1\n", "1,5,0,2,1\n", "1,5,2,1,1\n",
        "1000000,5,1000000,1000000,1\n",
        "1000001,5,1,2,1\n", "1,5,1000001,2,1\n", "1,5,1,1000001,1\n", "1.5,5,1,2,1\n",
    )),
    "microseconds": (read_measurements, "concurrent_jobs,message_bytes,mean_latency_us\n", ("1,5,2\n", "1,5,1e12\n",
        "1,5,1.1e12\n")),
    "shares": (shares.read_shares, ",".join(shares.COLUMNS) + "\n", (
        "1,2,2,0,1\n" * 2, "1,2,2,0,1\n" * 3, "1,2,2,0,1\n" * 2 + "1,2,2,9,1\n", "1,2,2,0,1\n" * 2 + "1,0,2,0,1\n",
        "1,1,2,0,1\n",
        "1,-1,2,0,1\n", "0,2,2,0,1\n", "1,2,1,0,1\n", "1,2,2,0,0\n", "1,2,2,0,1000001\n", "1,2,2,-1,1\n",
    )),
    "alone": (read_alone, "servers,message_bytes,transfer_s,compute_s\n", ("2,1,1,\n" * 2, "2,1,1,x\n3,2,5,\n4,1,1,\n",
        "1,1,1,\n" * 3)),
}  # fmt: skip


def valued(make: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return what is made, columns as they are."""
    return values(make(*given, **named))


def values(made: Any) -> str:
    held = vars(made) if hasattr(made, "__dict__") else {}
    columns = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in held.items()}
    return str(columns or made)


def test_plans_requests_and_files_are_read_or_refused_as_they_were(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for what, (make, usual, others) in TRIED.items():
        given = [
            ("", {}),
            *((f"{name} {n}", {name: each}) for name, some in others.items() for n, each in enumerate(some)),
        ]
        for text, more in given:
            found[f"{what} {text}".strip()] = digest([answered(valued, make, **usual | more)])
    plan = MeasurePlan(**TRIED["plan"][1], seed=3)
    found["runs"] = f"{plan.runs} {values(plan.planned)}"
    for name, (read, head, bodies) in OF_FILES.items():
        for place, body in enumerate(bodies):
            (file := tmp_path / "a.csv").write_text(head + body)
            answer = answered(valued, read, file)
            found[f"{name} {place}"] = digest([answer.replace(str(tmp_path), "")])
    for told, rows in ROWS.items():
        for keep in (slice(0, 3), slice(0, None, 8), slice(0, 8), slice(3, None, 4)):
            found[f"enough {told} {keep}"] = digest([answered(refuse_untold, rows.rows(np.arange(len(rows))[keep]))])
    rows_of = [Measured(2, 8, 0.123456789123, 2, 2), Measured(2, 8, 1.5, 2, 1), Measured(1, 4, 2e-7, 3, 1)]
    write_measurements(rows_of, tmp_path / "b.csv")
    found["written"] = str((tmp_path / "b.csv").read_text().splitlines())
    reach, narrow = Reach((1e6, 2.5e6), (2, 4), (1, 3)), Reach((1e6, 1e6), None, (1, 1))
    jobs = [((1e6,), 2), ((2.5e6, 1e6), 4), ((3e6,), 5), ((), 1), ((0.99e6, 2e6), 3)]
    found["beyond"] = f"{reach} {[each.beyond(some) for each in (reach, narrow) for some in (jobs, jobs[:2])]}"
    outside = [fit.share_outside(settings, 2) for settings in (3, 5, 9, 40)]
    found["outside"] = five(*outside, inf)
    assert_kept("made-of-calibrations", found)
