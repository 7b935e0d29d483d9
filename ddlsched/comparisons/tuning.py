"""Tunes the fields of policies with Optuna on some seeds, and checks on others that what was found is no accident.

What of a policy is tuned are fields of its dataclass (:class:`Knob`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ddlsched.comparisons.sweeps.run import Run
from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.deferred import pd
from ddlsched.errors import InputError, SimulationError, UnknownNameError, did_you_mean, need
from ddlsched.io.files import made_folder
from ddlsched.plugins.names import Kind, maker, parsed_value
from ddlsched.results.paired_comparison import ALL_METRICS, compare_runs
from ddlsched.results.statistics import LEAST_SEEDS
from ddlsched.workload.workload_files import workload_of

if TYPE_CHECKING:
    import optuna

_AROUND = 4.0
"""A number whose range nobody gave is varied from its default divided by this to its default times this."""
_LOGARITHMIC = 10.0
"""From this ratio of its ends on, a range of positive numbers is searched by their logarithms."""


@dataclass(frozen=True)
class Knob:
    """A field that is tuned.

    Parameters
    ----------
    door
        The policy's kind, such as ``placement``.
    field
        The field's name.
    default
        Its value untuned.
    low, high
        Ends of a range of numbers, both included, or None.
    choices
        The values, in place of a range.
    """

    door: str
    field: str
    default: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        """How flags and tables call it: ``placement.kappa``."""
        return f"{self.door}.{self.field}"

    def suggest(self, trial: optuna.Trial) -> Any:
        """Return a value for a trial."""
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        assert self.low is not None
        assert self.high is not None
        log = self.low > 0 and self.high / self.low >= _LOGARITHMIC
        if isinstance(self.default, int):
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=log)
        return trial.suggest_float(self.name, self.low, self.high, log=log)


def knobs(policies: Mapping[str, str], ranges: Sequence[str]) -> list[Knob]:
    """Return what is tuned: what ``ranges`` name, or else every number and truth value of the policies.

    Parameters
    ----------
    policies
        By kind, such as ``{"placement": "lwf:kappa=1"}``.
    ranges
        Texts such as ``placement.kappa=1:32``, ``communication.limit=1,2,4`` or ``order.communication`` (of a truth
        value, or around the default of a number).

    Raises
    ------
    InputError
        No such policy or field; a range that is none; nothing to tune.
    """
    fields = {f"{door}.{name}": value for door, text in policies.items() for name, value in _fields(door, text).items()}
    found = [_knob(text, fields) for text in ranges] if ranges else [_around(n, v) for n, v in fields.items()]
    kept = [knob for knob in found if knob is not None]
    if not kept:
        raise InputError(f"{', '.join(policies.values())}: no number or truth value to tune; expected another policy")
    if len({knob.name for knob in kept}) < len(kept):
        raise InputError("--vary: a field is given twice; expected each once")
    return kept


def with_values(policies: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the policies with the values of some fields, by the names of their knobs."""
    texts = {}
    for door, text in policies.items():
        made = maker(cast("Kind", door), text)
        own = {name.partition(".")[2]: value for name, value in values.items() if name.partition(".")[0] == door}
        given = ",".join(f"{name}={_text(value)}" for name, value in (made.values | own).items())
        texts[door] = f"{_head(text)}:{given}" if given else _head(text)
    return texts


def _head(text: str) -> str:
    """Return a policy's text without its parameters: its name, or its file and class."""
    file, of_file, rest = text.partition(".py:")
    return f"{file}.py:{rest.partition(':')[0]}" if of_file else text.partition(":")[0]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fields(door: str, text: str) -> dict[str, Any]:
    """Return the fields of a policy that have a value, given or by default."""
    made = maker(cast("Kind", door), text)
    if not dataclasses.is_dataclass(made.function):
        raise InputError(f"{door} {made.label}: is no dataclass; expected one, whose fields can be tuned")
    defaults = {f.name: f.default for f in dataclasses.fields(made.function) if f.default is not dataclasses.MISSING}
    return defaults | made.values


def _around(name: str, value: Any) -> Knob | None:
    """Return what is tuned of a field whose range nobody gave; None if that cannot be told from its value."""
    door, _, field = name.partition(".")
    if isinstance(value, bool):
        return Knob(door, field, value, choices=(False, True))
    if isinstance(value, int | float) and value > 0:
        low, high = value / _AROUND, value * _AROUND
        return Knob(door, field, value, max(1, round(low)) if isinstance(value, int) else low, high)
    return None


def _knob(text: str, fields: Mapping[str, Any]) -> Knob:
    name, equals, given = (part.strip() for part in text.partition("="))
    if name not in fields:
        raise UnknownNameError(f"--vary {text}: no field is named {name!r}.{did_you_mean(name, fields)}")
    default = fields[name]
    if not equals:
        knob = _around(name, default)
        if knob is None:
            raise InputError(f"--vary {text}: {name} is {default!r}; expected a range, such as {name}=1:8")
        return knob
    door, _, field = name.partition(".")
    if ":" in given:
        if isinstance(default, bool) or not isinstance(default, int | float):
            raise InputError(f"--vary {text}: the field is {default!r}, no number; expected values with commas")
        ends = [parsed_value(f"--vary {text}", type(default), part) for part in given.split(":")]
        if len(ends) != 2 or not ends[0] < ends[1]:
            raise InputError(f"--vary {text}: is no range; expected {name}=LOW:HIGH with LOW < HIGH")
        return Knob(door, field, default, low=ends[0], high=ends[1])
    number: Any = int | float if isinstance(default, int | float) else str
    kind = bool if isinstance(default, bool) else number
    choices = tuple(parsed_value(f"--vary {text}", kind, part.strip()) for part in given.split(","))
    if len(choices) < 2:
        raise InputError(f"--vary {text}: has one value; expected {name}=LOW:HIGH or several with commas")
    return Knob(door, field, default, choices=choices)


_HIGHER_IS_BETTER = frozenset({"gpu_utilisation", "jain_index"})
_FINISHED = ("COMPLETE", "PRUNED")
"""What trials are that have come to their end; one that was interrupted has failed, or runs for ever."""
_KEPT_SHARE = 0.5
"""Of the gain on the tuning seeds, what has to be left on the held-out ones."""


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    Attributes
    ----------
    policies
        Texts of the policies with the best values, by kind, for flags and for ``simulate``.
    values
        The best value of each field that was tuned.
    trials
        A row a trial: number, the fields' values, ``value`` (mean of the metric over the tuning seeds).
    tuning_change, held_out_change
        Change of the metric against the untuned policies, on the tuning and on the held-out seeds (0.1 is 10 % more).
    held_out_interval
        The 95 % interval of the latter; None with fewer than six held-out seeds.
    warning
        What speaks against believing it; None if nothing does.
    """

    policies: dict[str, str]
    values: dict[str, Any]
    trials: pd.DataFrame
    tuning_change: float
    held_out_change: float
    held_out_interval: tuple[float, float] | None
    warning: str | None


def tune(
    workload: str,
    policies: Mapping[str, str],
    *,
    ranges: Sequence[str] = (),
    metric: str = "average_jct_s",
    trials: int = 40,
    seeds: Sequence[int] = range(1, 7),
    held_out: Sequence[int] = range(101, 113),
    options: Mapping[str, Any] | None = None,
    folder: Path | str = "tuning",
    processes: int = -1,
    watch: Callable[[int, int], None] = lambda *_: None,
) -> Tuned:
    """Search the fields of policies for the least (or most) of a metric, and check the best on held-out seeds.

    The same call goes on where the last one stopped: trials are kept in ``folder/study.db``, runs in ``folder/runs``.

    Parameters
    ----------
    workload
        A generator whose jobs the seed makes, such as ``"microsoft-160:scale=0.01"``.
    policies
        Texts by kind: ``placement``, ``order``, ``communication``, ``allocation``, ``path`` or ``admission``.
    ranges
        What is tuned; see :func:`ddlsched.comparisons.tuning.knobs`.
    metric
        A column of :meth:`ddlsched.Comparison.runs`.
    trials
        How many in all; the first are the untuned policies.
    seeds, held_out
        Those on which values are chosen, and those on which the choice is checked; they must not overlap.
    options
        Further arguments of :func:`ddlsched.simulate`, the same for all runs.
    folder
        Made if need be; another search there is refused.
    processes
        Runs at once; -1 for one a core.
    watch
        Is told how many trials are done, of how many.

    Raises
    ------
    InputError
        Optuna is not installed, or what is asked for cannot be.
    SimulationError
        The untuned policies fail, or no trial finished.
    """
    found = knobs(policies, ranges)
    _refuse(metric, trials, seeds, held_out)
    workload_of(workload, seeds[0])  # what names no jobs would fail in every trial
    asked = {"workload": workload, "policies": dict(policies), "metric": metric, "seeds": list(seeds)}
    asked |= {"knobs": [repr(knob) for knob in found], "options": {k: repr(v) for k, v in (options or {}).items()}}
    search = _Search(workload, policies, found, metric, dict(options or {}), Path(folder), processes)
    study = _study(Path(folder), asked, metric)
    untuned = {knob.name: knob.default for knob in found}
    if failure := search.simulated({"untuned": untuned}, seeds)[1]:  # kept: the first trial finds its runs done
        raise SimulationError(f"there is nothing to compare with: {failure}")
    if {trial.state.name for trial in study.trials}.isdisjoint({*_FINISHED, "WAITING"}):
        study.enqueue_trial(untuned)
    while (done := _finished(study)) < trials:
        watch(done, trials)
        study.optimize(lambda trial: search.value(trial, seeds), n_trials=1)
    watch(done, trials)
    return _checked(search, study, seeds, held_out)


def _refuse(metric: str, trials: int, seeds: Sequence[int], held_out: Sequence[int]) -> None:
    if metric not in ALL_METRICS:
        raise InputError(f"metric {metric!r}: is not compared; expected one of {', '.join(ALL_METRICS)}")
    if trials < 1:
        raise InputError(f"trials is {trials}; expected 1 or more")
    if not seeds or not held_out:
        raise InputError("there are no seeds to tune on, or none held out; expected one of each at least")
    if both := set(seeds) & set(held_out):
        raise InputError(f"seeds {sorted(both)} are tuned on and held out; expected each in one of them")


def _study(folder: Path, asked: Mapping[str, Any], metric: str) -> optuna.Study:
    """Return the study of a folder, new or gone on with."""
    need("tuning", "optuna", extra="tune")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made_folder(folder, "the search")
    study = optuna.create_study(
        storage=f"sqlite:///{(folder / 'study.db').resolve()}",
        study_name="ddlsched",
        direction="maximize" if metric in _HIGHER_IS_BETTER else "minimize",
        load_if_exists=True,
    )
    text = json.dumps(asked, sort_keys=True)
    if study.user_attrs.setdefault("asked", text) != text:
        expected = "expected a new folder, or the same jobs, policies and ranges"
        raise InputError(f"{folder}: holds another search; {expected}")
    study.set_user_attr("asked", text)
    # A sampler that went on with the same seed would propose what it has proposed.
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    return study


def _finished(study: optuna.Study) -> int:
    return sum(trial.state.name in _FINISHED for trial in study.trials)


@dataclass(frozen=True)
class _Search:
    """What every trial has in common."""

    workload: str
    policies: Mapping[str, str]
    knobs: Sequence[Knob]
    metric: str
    options: Mapping[str, Any]
    folder: Path
    processes: int

    def value(self, trial: optuna.Trial, seeds: Sequence[int]) -> float:
        """Return the metric's mean over the seeds with a trial's values; a trial that fails is pruned."""
        import optuna

        values = {knob.name: knob.suggest(trial) for knob in self.knobs}
        runs, failure = self.simulated({"tuned": values}, seeds)
        if failure is not None or runs[self.metric].isna().any():
            trial.set_user_attr("failure", failure or f"{self.metric} has no value")
            raise optuna.TrialPruned
        return float(runs[self.metric].mean())

    def simulated(
        self, named: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
    ) -> tuple[pd.DataFrame, str | None]:
        """Return a row a policy and seed with its metrics, and what failed first, if something did."""
        runs = [
            Run(
                labels={"policy": name},
                workload=self.workload,
                seed=seed,
                options={**self.options, **with_values(self.policies, values)},
            )
            for name, values in named.items()
            for seed in seeds
        ]
        done = sweep(runs, self.folder / "runs", processes=self.processes)
        return done.summaries(), str(done.failures[0]) if done.failures else None


def _checked(search: _Search, study: optuna.Study, seeds: Sequence[int], held_out: Sequence[int]) -> Tuned:
    try:
        best = dict(study.best_params)
    except ValueError:
        why = next((trial.user_attrs["failure"] for trial in study.trials if "failure" in trial.user_attrs), "")
        raise SimulationError(f"no trial finished: {why}") from None
    named = {"untuned": {knob.name: knob.default for knob in search.knobs}, "tuned": best}
    tuning = _change(search, named, seeds)
    checked = _change(search, named, held_out)
    table = study.trials_dataframe(attrs=("number", "params", "value"))
    return Tuned(
        policies=with_values(search.policies, best),
        values=best,
        trials=table.rename(columns=lambda name: name.removeprefix("params_")),
        tuning_change=tuning["change"],
        held_out_change=checked["change"],
        held_out_interval=(checked["change_low"], checked["change_high"]) if len(held_out) >= LEAST_SEEDS else None,
        warning=_warning(search.metric, tuning, checked, len(held_out), best == named["untuned"]),
    )


def _change(search: _Search, named: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, float]:
    runs, failure = search.simulated(named, seeds)
    if failure is not None:
        raise SimulationError(f"the check failed: {failure}")
    table = compare_runs(runs, baseline="untuned", metrics=[search.metric])
    row = table[table["policy"] == "tuned"].iloc[0]
    return {name: float(row[name]) for name in ("change", "change_low", "change_high")}


def _warning(
    metric: str, tuning: Mapping[str, float], checked: Mapping[str, float], held_out: int, unchanged: bool
) -> str | None:
    """Return why the best values should not be believed."""
    if unchanged:
        return "nothing was better than the values untuned"
    sign = -1.0 if metric in _HIGHER_IS_BETTER else 1.0
    gained, kept = -sign * tuning["change"], -sign * checked["change"]
    if kept <= 0:
        return "overfitted: on the held-out seeds the tuned values are no better than the untuned"
    if kept < _KEPT_SHARE * gained:
        return f"overfitted: of the gain on the tuning seeds, {100 * kept / gained:.0f} % is left on the held-out ones"
    if held_out < LEAST_SEEDS:
        return f"{held_out} held-out seeds give no interval; expected {LEAST_SEEDS} at least"
    if checked["change_low"] <= 0 <= checked["change_high"]:
        return "undecided: the interval of the change on the held-out seeds holds 0"
    return None
