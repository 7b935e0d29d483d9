"""What a comparison of measured and simulated runs says: tables as text and files, and two charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.io.files import replacing
from ddlsched.real.testbed.fidelity_tables import (
    error_table,
    gain_summary,
    gain_table,
    job_errors,
    judged,
    makespan_table,
    rank_table,
    spread_table,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["WITH", "WITHOUT", "FidelityReport", "report_of"]

WITHOUT, WITH = "- ", "+ "
"""How the names of models begin that leave something out of another, or add to it; in the tables, and not drawn."""

_ELSEWHERE = (
    "; exponent, window and loss of connection-shares were chosen in experiments/fidelity, at 100 Mbit/s, and so was "
    "the overhead of packet-rings"
)

_ERROR_ENDS = {"mean_abs_jct_error": ("mean_low", "mean_high"), "p95_abs_jct_error": ("p95_low", "p95_high")}
_GAIN_ENDS = {"measured_gain": ("low", "high"), "difference": ("difference_low", "difference_high")}


@dataclass(frozen=True)
class FidelityReport:
    """Tables of :mod:`ddlsched.real.testbed.fidelity_tables`, and the models' constants."""

    models: Mapping[str, object]
    jobs: pd.DataFrame
    errors: pd.DataFrame
    makespans: pd.DataFrame
    ranks: pd.DataFrame
    gains: pd.DataFrame
    spreads: pd.DataFrame
    limited_runs: int
    runs: int

    def text(self) -> str:
        """Return the tables for a terminal, shares in percent."""
        lines = [f"  {name:22}  {model}" for name, model in self.models.items()]
        elsewhere = _ELSEWHERE if "connection-shares" in self.models else ""
        parts = [f"models, fitted to jobs alone and pairs{elsewhere}:", *lines, "", "error of simulated times (%):"]
        parts += [_percent(self.errors, ("model", "policy", "mixes", "jobs"), _ERROR_ENDS), ""]
        if len(self.spreads):
            title = "what repeats of a run differ by, longest less shortest JCT of a job (%):"
            parts += [title, _percent(self.spreads, ("policy", "mixes", "jobs")), ""]
        off = self.makespans.assign(abs_error=self.makespans.error.abs())
        by_model = off.groupby("model", sort=False).abs_error.mean().rename("mean_abs_makespan_error").reset_index()
        parts += ["error of simulated makespans (%):", _percent(by_model, ("model",)), ""]
        if len(self.gains):
            parts += ["agreement on the order of policies:", self.ranks.to_string(index=False, float_format="%.3f"), ""]
            whole = self.gains.mix.nunique() > 1
            shown = gain_summary(self.gains) if whole else self.gains
            title = "gain in mean JCT over the first policy (%; differences in points):"
            parts += [title, _percent(shown, ("mix", "policy", "model", "mixes"), _GAIN_ENDS), ""]
        parts += self._of_the_machine()
        return "\n".join(parts).rstrip() + "\n"

    def _of_the_machine(self) -> list[str]:
        """Return what is to be said of runs in which the machine was the limit; they are left out, unless all were."""
        if not self.limited_runs:
            return []
        which = f"In {self.limited_runs} of {self.runs} runs the machine may have been the limit, not the network"
        if self.limited_runs < self.runs:
            return [f"{which}: they are left out."]
        return [f"{which}: the figures say little; expected a machine with nothing else to do."]

    def write(self, folder: Path) -> list[Path]:
        """Write every table as CSV and the charts as PNG and SVG; return the charts' paths.

        The scatter plot has the first and the last model only: with more their points hide each other.
        """
        from ddlsched.comparisons.charts.real_charts import error_distribution, measured_against_simulated
        from ddlsched.comparisons.charts.style import save

        tables = {name: getattr(self, name) for name in ("jobs", "errors", "makespans", "ranks", "gains", "spreads")}
        for name, table in (tables | {"gains_over_mixes": gain_summary(self.gains)}).items():
            with replacing(folder / f"{name}.csv", name) as file:
                table.to_csv(file, index=False, float_format="%.6g")
        drawn = self.jobs[~self.jobs.model.str.startswith((WITHOUT, WITH))]
        ends = drawn[drawn.model.isin(drawn.model.iloc[[0, -1]])]
        paths = save(measured_against_simulated(ends), folder / "measured_against_simulated")
        return paths + save(error_distribution(drawn), folder / "error_distribution")


def _percent(table: pd.DataFrame, names: tuple[str, ...], ends: Mapping[str, tuple[str, str]] = {}) -> str:
    """Return a table with all columns but these times 100; ``ends`` are the columns of the intervals of some."""
    shown = table.copy()
    for column in shown.columns.difference(list(names)):
        shown[column] = shown[column] * 100
    for value, (low, high) in ends.items():
        if value in shown:
            rows = zip(shown[value], shown.pop(low), shown.pop(high), strict=True)
            shown[value] = [f"{v:.1f}" if math.isnan(a) else f"{v:.1f} [{a:.1f}, {b:.1f}]" for v, a, b in rows]
    return str(shown.to_string(index=False, float_format="%.1f"))


def report_of(
    measured: pd.DataFrame, simulated: pd.DataFrame, models: Mapping[str, object], baseline: str
) -> FidelityReport:
    """Return what measured and simulated runs say of each other."""
    runs = measured.groupby(["mix", "policy", "repeat"]).machine_limited.max()
    measured = judged(measured)
    jobs = job_errors(measured, simulated)
    return FidelityReport(
        models=models,
        jobs=jobs,
        errors=error_table(jobs),
        makespans=makespan_table(measured, simulated),
        ranks=rank_table(measured, simulated),
        gains=gain_table(measured, simulated, baseline),
        spreads=spread_table(measured),
        limited_runs=int(runs.sum()),
        runs=len(runs),
    )
