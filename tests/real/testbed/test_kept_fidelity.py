"""What drawn measured and simulated runs say of each other, table by table and as text, as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_numbers import assert_kept

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.charts import real_charts, style
from ddlsched.real.testbed import fidelity
from ddlsched.real.testbed.fidelity import WITH, WITHOUT, FidelityReport, Planned, report_of
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.job import Job, Workload

POLICIES = ("two", "free", "one")
"""In no order, so that one that is sorted shows."""


def drawn(mixes: int, repeats: int, models: tuple[str, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Draw what was measured and what was simulated; in mix 1 one policy was not run, and one repeat was limited."""
    rng = np.random.default_rng(mixes)
    measured, simulated = [], []
    for mix in range(mixes - 1, -1, -1):
        name = f"m{mix}"
        for place, policy in enumerate(POLICIES):
            base = 10 + 3 * place + rng.uniform(0, 4, 3)
            for number, job in enumerate("cab"):
                whole = {"mix": name, "policy": policy, "job_id": job}
                for repeat in range(repeats) if (mix, policy) != (1, "one") else ():
                    jct_s = base[number] * rng.uniform(0.97, 1.03)
                    limited = repeat == 0 and mix == 0
                    times = {"jct_s": jct_s, "iteration_s": jct_s / 7, "finish_s": jct_s + number}
                    measured.append({**whole, "repeat": repeat, **times, "machine_limited": limited})
                for model in models:
                    jct_s = base[number] * rng.uniform(0.8, 1.3)
                    times = {"jct_s": jct_s, "iteration_s": jct_s / 6, "finish_s": jct_s + number}
                    simulated.append({**whole, "model": model, **times})
    return pd.DataFrame(measured), pd.DataFrame(simulated)


def rows_of(table: pd.DataFrame) -> dict[str, str]:
    """Return a line a row, whose columns the first one names."""
    lines = table.to_csv(index=False, float_format="%.5g").splitlines()
    return {str(number): line for number, line in enumerate(lines)}


def reports() -> dict[str, FidelityReport]:
    several = ("connection-shares", f"{WITHOUT}windows")
    cases = {"many": (5, 3, several), "few": (2, 2, ("max-min",)), "alone": (1, 1, ("max-min",))}
    return {
        name: report_of(*drawn(mixes, repeats, models), dict.fromkeys(models, f"{name}:a=1"), "free")
        for name, (mixes, repeats, models) in cases.items()
    }


TABLES = ("jobs", "errors", "makespans", "ranks", "gains", "spreads")


@pytest.fixture
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "_RESAMPLES", 4)


@pytest.mark.long
@pytest.mark.usefixtures("_few_resamples")
def test_tables_and_texts_are_what_they_were() -> None:
    kept: dict[str, str] = {}
    for case, report in reports().items():
        for name in TABLES if case != "many" else TABLES[1:]:
            kept |= {f"{case} {name} {row}": told for row, told in rows_of(getattr(report, name)).items()}
        kept |= {f"{case} text {number}": line for number, line in enumerate(report.text().splitlines())}
        kept[f"{case} runs"] = f"{report.limited_runs} of {report.runs}"
    assert_kept("fidelity", kept)


@pytest.mark.long
@pytest.mark.usefixtures("_few_resamples")
def test_what_is_written_are_all_tables_and_two_charts_of_whole_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The points are those of the first and the last model, and nothing is drawn that leaves out or adds."""
    told: list[Any] = []
    monkeypatch.setattr(real_charts, "measured_against_simulated", lambda jobs: ("points", list(jobs.model.unique())))
    monkeypatch.setattr(real_charts, "error_distribution", lambda jobs: ("errors", list(jobs.model.unique())))
    monkeypatch.setattr(style, "save", lambda figure, path: told.append((figure, path.name)) or [path])
    models = ("max-min", f"{WITH}packets", "linear", f"{WITHOUT}steps", "shares")
    report = report_of(*drawn(2, 2, models), dict.fromkeys(models, ""), "free")
    names = ("measured_against_simulated", "error_distribution")
    assert report.write(tmp_path) == [tmp_path / name for name in names]
    points, errors = ("points", ["max-min", "shares"]), ("errors", ["max-min", "linear", "shares"])
    assert told == list(zip((points, errors), names, strict=True))
    for name in TABLES:
        written = pd.read_csv(tmp_path / f"{name}.csv")
        pd.testing.assert_frame_equal(written, getattr(report, name), check_dtype=False, rtol=1e-5)
    summary = pd.read_csv(tmp_path / "gains_over_mixes.csv")
    assert [*summary.columns] == [*fidelity.gain_summary(report.gains).columns]
    assert summary.policy.tolist() == fidelity.gain_summary(report.gains).policy.tolist()


def test_a_run_is_named_by_all_that_decides_it() -> None:
    """Files of a comparison that was begun before are found again, so that a name may not change."""

    def key(policy: str = "p", repeat: int = 0, servers: int = 2, name: str = "m", **given: Any) -> str:
        iteration = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=1000)
        job = Job(job_id="a", arrival_s=0.0, num_gpus=2, iterations=3, iteration=iteration, gpu_memory_mb=1.0)
        policies = {"p": {"scheduler": "srsf-1", **given}, "q": {"order": "las"}}
        mix = fidelity.Mix(
            name=name, workload=Workload.of([job]), cluster=Cluster(num_servers=servers), policies=policies
        )
        return Planned(mix, policy, repeat).key

    others = [key("q"), key(repeat=1), key(servers=3), key(name="n"), key(seed=1)]
    assert len({key(), *others}) == 6
    assert key() == key()
    assert len(key()) == 24
