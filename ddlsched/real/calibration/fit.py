"""Fits the constants of contention models to measured all-reduces, with intervals and the error on rows not fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below
from ddlsched.comparisons.charts.style import DASHES, PALETTE, in_style, new_figure, plain_ticks, short
from ddlsched.errors import InputError
from ddlsched.real.calibration.measurements import Measurements

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE = 0.95
HALVES = 100
RESAMPLES = 500
_LARGEST_CONDITION = 1e9
_FREE = 2
"""Settings more than constants, at least, for an interval."""


@dataclass(frozen=True)
class ModelForm:
    """A model's time of an all-reduce: a sum of constants, each times an amount known of a measurement.

    Parameters
    ----------
    name
        For tables.
    model
        The name that ``simulate --contention`` knows.
    constants
        Parameters of that model, in the order of :meth:`amounts`.
    ring_bytes
        Whether it moves a ring's 2 (n - 1) / n of the message, so that the number of servers must be known.
    """

    name: str
    model: str
    constants: tuple[str, ...]
    ring_bytes: bool = False

    def amounts(self, rows: Measurements) -> np.ndarray:
        """Return what each constant is multiplied with, a row a measurement."""
        moved, steps = rows.message_bytes, np.zeros(len(rows))
        if self.ring_bytes:
            if rows.servers is None:
                raise InputError(f"{self.name}: the number of servers is unknown; expected a column 'servers'")
            steps = 2 * (rows.servers - 1)
            moved = moved * steps / rows.servers
        columns = {
            "latency_s": np.ones(len(rows)),
            "per_byte_s": rows.jobs * moved,
            "penalty_per_byte_s": (rows.jobs - 1) * moved,
            "step_s": rows.jobs * steps,
        }
        return np.column_stack([columns[name] for name in self.constants])

    def preset(self, constants: Mapping[str, float], rows: Measurements) -> str:
        """Return the text that ``simulate --contention`` takes; a penalty that no row tells is left to its default."""
        given = {"penalty_per_byte_s": 0.0} if self.model == "linear" and not rows.all_alone else {}
        values = given | {name: constants[name] for name in self.constants}
        order = ("latency_s", "per_byte_s", "penalty_per_byte_s")
        return with_constants(self.model, {name: values[name] for name in order if name in values})


def with_constants(model: str, values: Mapping[str, float]) -> str:
    """Return a contention model with its constants as ``simulate --contention`` takes it."""
    return f"{model}:" + ",".join(f"{name}={value:.6g}" for name, value in values.items())


FORMS = (
    ModelForm("linear, b alone", "linear", ("per_byte_s",)),
    ModelForm("linear, no penalty", "linear", ("latency_s", "per_byte_s")),
    ModelForm("max-min or equal-share", "max-min", ("latency_s", "per_byte_s"), ring_bytes=True),
    ModelForm("linear", "linear", ("latency_s", "per_byte_s", "penalty_per_byte_s")),
)
"""The simplest first. Rings over the same servers have the same rate under max-min as under equal share."""


@dataclass(frozen=True)
class Constant:
    """A fitted constant and the ends of its 95 % interval, seconds or seconds a byte."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ModelFit:
    """A model fitted to all rows.

    Parameters
    ----------
    form
        The model.
    constants
        By name.
    error
        Mean of abs(predicted / measured - 1) over the rows, which were all fitted.
    tested_error
        The same over rows that were not fitted: the mean over random halves, and where 95 % of the halves lie.
    preset
        For ``simulate --contention``.
    """

    form: ModelForm
    constants: Mapping[str, Constant]
    error: float
    tested_error: Constant
    preset: str

    @property
    def values(self) -> dict[str, float]:
        """The constants without their intervals."""
        return {name: constant.value for name, constant in self.constants.items()}


def calibrate(rows: Measurements, *, seed: int = 0) -> list[ModelFit]:
    """Return every model that the rows can tell, the one with the least error on rows not fitted first.

    Where every measured all-reduce was alone, models with a penalty are left out.

    Raises
    ------
    InputError
        The rows cannot tell latency, time of a byte and penalty apart.
    """
    fits = [_fit(form, rows, seed) for form in told_forms(rows)]
    # A network on which a byte takes no time is none; "b alone" never comes to that.
    fits = [fit for fit in fits if fit.values["per_byte_s"] > 0]
    # Of models that differ by less than 0.1 percentage points the simplest is first: the sort is stable.
    return sorted(fits, key=lambda fit: round(fit.tested_error.value, 3))


def presets(rows: Measurements) -> dict[str, str]:
    """Return the presets of :func:`calibrate` by the names of their forms, without the time that intervals take.

    Raises
    ------
    InputError
        As :func:`calibrate`.
    """
    fitted = {form: fit_constants(form, rows) for form in told_forms(rows)}
    return {form.name: form.preset(found, rows) for form, found in fitted.items() if found["per_byte_s"] > 0}


def told_forms(rows: Measurements) -> list[ModelForm]:
    """Return the forms whose constants rows can tell, whatever the times in them; InputError if they tell none."""
    told = [form for form in FORMS if not (rows.all_alone and "penalty_per_byte_s" in form.constants)]
    _refuse_untold(rows, max(told, key=lambda form: len(form.constants)))
    return [form for form in told if not form.ring_bytes or rows.servers is not None]


def fit_constants(form: ModelForm, rows: Measurements) -> dict[str, float]:
    """Return the constants >= 0 with the least squares of the relative errors."""
    from scipy.optimize import nnls

    design = form.amounts(rows) / rows.seconds[:, None]
    scale = np.linalg.norm(design, axis=0)
    scale[scale == 0] = 1.0  # of the penalty where every measured all-reduce was alone
    values, _ = nnls(design / scale, np.ones(len(rows)))
    return dict(zip(form.constants, (values / scale).tolist(), strict=True))


def predicted_s(form: ModelForm, constants: Mapping[str, float], rows: Measurements) -> np.ndarray:
    """Return the time of an all-reduce of each row, seconds."""
    times: np.ndarray = form.amounts(rows) @ np.array([constants[name] for name in form.constants])
    return times


def random_halves(rows: Measurements, number: int, *, seed: int = 0) -> np.ndarray:
    """Return masks of the rows of a random half of the settings, a row a half."""
    rng = np.random.default_rng(seed)
    settings = rows.settings
    count = settings.max() + 1
    return np.array([np.isin(settings, rng.permutation(count)[: count // 2]) for _ in range(number)])


def errors_on_halves(form: ModelForm, rows: Measurements, *, halves: int = HALVES, seed: int = 0) -> np.ndarray:
    """Return the mean relative error on the tested half of the settings, for each of many random halves.

    Rows that repeat one measurement are all fitted or all tested. A half that cannot tell the constants is not counted.
    """
    errors = []
    for fitted in random_halves(rows, halves, seed=seed):
        if tells(form, rows.rows(fitted)):
            constants = fit_constants(form, rows.rows(fitted))
            errors.append(_error(form, constants, rows.rows(~fitted)))
    return np.array(errors)


def _fit(form: ModelForm, rows: Measurements, seed: int) -> ModelFit:
    constants = fit_constants(form, rows)
    tested = errors_on_halves(form, rows, seed=seed)
    ends = np.quantile(tested, [0.025, 0.975]) if len(tested) else [np.nan, np.nan]
    tested_error = Constant(float(tested.mean()) if len(tested) else float("nan"), *map(float, ends))
    with_intervals = intervals(form, rows, seed=seed)
    return ModelFit(form, with_intervals, _error(form, constants, rows), tested_error, form.preset(constants, rows))


def _error(form: ModelForm, constants: Mapping[str, float], rows: Measurements) -> float:
    return float(np.abs(predicted_s(form, constants, rows) / rows.seconds - 1).mean())


def intervals(form: ModelForm, rows: Measurements, *, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Constant]:
    """Return the constants, and percentiles of those fitted to resampled settings.

    The level is widened so that they would be Student's interval if the fits were normal, as in
    :func:`ddlsched.results.statistics.mean_interval`.
    """
    constants, settings = fit_constants(form, rows), rows.settings
    count = settings.max() + 1
    outside = share_outside(count, len(form.constants))
    members = [np.flatnonzero(settings == number) for number in range(count)]
    rng = np.random.default_rng(seed)
    found: list[list[float]] = []
    while len(found) < resamples:
        drawn = rows.rows(np.concatenate([members[number] for number in rng.integers(count, size=count)]))
        if tells(form, drawn):
            found.append(list(fit_constants(form, drawn).values()))
    low, high = np.quantile(found, [outside, 1 - outside], axis=0)
    return {name: Constant(constants[name], float(low[i]), float(high[i])) for i, name in enumerate(form.constants)}


def share_outside(settings: int, constants: int) -> float:
    """Return which share of the fits to resampled settings lies beyond each end of an interval."""
    from scipy.stats import norm, t

    spare = settings - constants
    return float(norm.sf(np.sqrt(settings / spare) * t.ppf((1 + CONFIDENCE) / 2, spare)))


def tells(form: ModelForm, rows: Measurements) -> bool:
    """Return whether rows differ in enough for each constant to have one value."""
    design = form.amounts(rows)
    lengths = np.linalg.norm(design, axis=0)
    return bool((lengths > 0).all()) and np.linalg.cond(design / lengths) < _LARGEST_CONDITION


def _refuse_untold(rows: Measurements, richest: ModelForm) -> None:
    count, needed = rows.settings.max() + 1, len(richest.constants) + _FREE
    if len(np.unique(rows.message_bytes)) < 2:
        raise InputError(
            f"every row has message_bytes {rows.message_bytes[0]:g}; expected at least two sizes, "
            "without which latency cannot be told from the time of a byte"
        )
    if len(np.unique(rows.jobs)) < 2 and not rows.all_alone:
        raise InputError(
            f"every row has concurrent_jobs {rows.jobs[0]:g}; expected 1, or at least two numbers, such as 1 and 4, "
            "without which the penalty cannot be told from the time of a byte"
        )
    if count < needed:
        raise InputError(
            f"there are {count} settings of concurrent_jobs and message_bytes; expected at least {needed} for intervals"
        )
    if not tells(richest, rows):
        raise InputError(
            "latency, time of a byte and penalty cannot be told apart by these rows; "
            "expected several sizes for several numbers of concurrent_jobs"
        )


_COLOURS = ("blue", "orange", "green", "vermillion", "purple")
_MARKERS = "os^Dv"


@in_style()
def fit_chart(rows: Measurements, fit: ModelFit) -> Figure:
    """Return measured times (points) and the model's (lines) over the number of concurrent jobs.

    Of more than five message sizes five are drawn, evenly spread; servers as in the size's first row.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure(2.6)
    sizes = np.unique(rows.message_bytes)
    shown = sizes[np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), len(_COLOURS))).round().astype(int))]
    for number, size in enumerate(shown):
        own = rows.rows(rows.message_bytes == size)
        colour, label = PALETTE[_COLOURS[number]], f"{short(size / 1e6)} MB"
        axes.plot(own.jobs, own.seconds, _MARKERS[number], color=colour, markersize=3.2, label=label)
        jobs = np.linspace(own.jobs.min(), own.jobs.max(), 50)
        servers = None if own.servers is None else np.full(50, own.servers[0])
        line = predicted_s(fit.form, fit.values, Measurements(jobs, np.full(50, size), np.ones(50), servers))
        axes.plot(jobs, line, color=colour, linestyle=DASHES[number], linewidth=1.0)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set(xlabel="All-reduces at a time (points measured, lines fitted)", ylabel="Time of one (s)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    error = f"{100 * fit.tested_error.value:.1f} % off on rows not fitted"
    figure.suptitle(f"{fit.form.name}: {error}", x=0.01, ha="left", fontsize=8.5)
    legend_below(figure, [axes])
    return figure
