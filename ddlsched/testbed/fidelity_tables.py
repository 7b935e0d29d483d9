"""How far simulated runs are from measured ones: tables of errors, agreement on ranks, and gains."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.results.statistics import Interval, mean_interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["error_table", "gain_table", "job_errors", "makespan_table", "rank_table"]

# Measured: a row a (mix, policy, repeat, job_id) with jct_s, iteration_s, finish_s.
# Simulated: a row a (mix, model, policy, job_id) with the same.
_JOB = ["mix", "policy", "job_id"]


def job_errors(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return for each job, policy and model what was measured (median of the repeats), simulated, and the errors.

    Parameters
    ----------
    measured
        Columns mix, policy, repeat, job_id, jct_s, iteration_s.
    simulated
        Columns mix, model, policy, job_id, jct_s, iteration_s.

    Returns
    -------
    pandas.DataFrame
        Columns mix, policy, job_id, model, measured_jct_s, simulated_jct_s, jct_error, measured_iteration_s,
        simulated_iteration_s, iteration_error; an error is simulated / measured - 1.
    """
    middle = measured.groupby(_JOB, sort=False)[["jct_s", "iteration_s"]].median().reset_index()
    both = middle.merge(simulated, on=_JOB, suffixes=("_measured", "_simulated"), validate="one_to_many")
    table = both[[*_JOB, "model"]].copy()
    for name in ("jct", "iteration"):
        table[f"measured_{name}_s"] = both[f"{name}_s_measured"]
        table[f"simulated_{name}_s"] = both[f"{name}_s_simulated"]
        table[f"{name}_error"] = both[f"{name}_s_simulated"] / both[f"{name}_s_measured"] - 1
    return table


def error_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the errors by model and policy, and by model over all policies.

    Columns: model, policy ("all" for all), jobs, mean_abs_jct_error, p95_abs_jct_error, mean_jct_error (its sign says
    whether simulated jobs take longer), mean_abs_iteration_error.
    """
    import pandas as pd

    every = errors.assign(policy="all")
    rows = []
    for (model, policy), part in pd.concat([errors, every]).groupby(["model", "policy"], sort=False):
        rows.append(
            {
                "model": model,
                "policy": policy,
                "jobs": len(part),
                "mean_abs_jct_error": part.jct_error.abs().mean(),
                "p95_abs_jct_error": part.jct_error.abs().quantile(0.95),
                "mean_jct_error": part.jct_error.mean(),
                "mean_abs_iteration_error": part.iteration_error.abs().mean(),
            }
        )
    return pd.DataFrame(rows)


def makespan_table(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return mix, policy, model, measured_s (median of the repeats), simulated_s and error of each makespan."""
    whole = measured.groupby(["mix", "policy", "repeat"], sort=False).finish_s.max()
    middle = whole.groupby(["mix", "policy"], sort=False).median().rename("measured_s").reset_index()
    ours = simulated.groupby(["mix", "policy", "model"], sort=False).finish_s.max().rename("simulated_s").reset_index()
    table = middle.merge(ours, on=["mix", "policy"])
    return table.assign(error=table.simulated_s / table.measured_s - 1)


def _means(measured: pd.DataFrame) -> pd.Series:
    """Return the mean JCT of each run."""
    return measured.groupby(["mix", "policy", "repeat"], sort=False).jct_s.mean()


def gain_table(measured: pd.DataFrame, simulated: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return what each policy gains in mean JCT over the baseline, measured with a 95 % interval, and simulated.

    Columns: mix, policy, model, measured_gain, low, high, simulated_gain; 0.1 is a JCT a tenth shorter. Repeats are
    paired by number; with fewer than three of them there is no interval (NaN).
    """
    import pandas as pd

    runs = _means(measured)
    means = simulated.groupby(["mix", "model", "policy"], sort=False).jct_s.mean()
    rows = []
    for (mix, model), part in means.groupby(["mix", "model"], sort=False):
        ours = part.droplevel(["mix", "model"])
        for policy in ours.index:
            if policy != baseline:
                own = runs.xs(mix, level="mix")
                gains = 1 - own.xs(policy, level="policy") / own.xs(baseline, level="policy")
                interval = _interval(gains.dropna().to_numpy())
                rows.append((mix, policy, model, *interval, 1 - ours[policy] / ours[baseline]))
    columns = ["mix", "policy", "model", "measured_gain", "low", "high", "simulated_gain"]
    return pd.DataFrame(rows, columns=columns)


def _interval(values: np.ndarray) -> tuple[float, float, float]:
    if len(values) < 3:
        return float(values.mean()), float("nan"), float("nan")
    found: Interval = mean_interval(values)
    return found.mean, found.low, found.high


def rank_table(measured: pd.DataFrame, simulated: pd.DataFrame) -> pd.DataFrame:
    """Return by model how well the order of policies agrees.

    Columns: model, mixes, mean_rank_correlation (Spearman's, over the policies of a mix), pairs (of policies of a mix
    whose measured mean JCTs differ by more than the repeats do), pairs_right (of those, simulated in the same order),
    mean_regret (how much longer the measured mean JCT is under the policy that the simulation would choose).
    """
    import pandas as pd

    runs = _means(measured)
    simulated_means = simulated.groupby(["model", "mix", "policy"], sort=False).jct_s.mean()
    rows = []
    for model, of_model in simulated_means.groupby("model", sort=False):
        found = [_agreement(runs[mix], part.droplevel(["model", "mix"])) for mix, part in of_model.groupby("mix")]
        correlations = [one[0] for one in found if not np.isnan(one[0])]
        rows.append(
            {
                "model": model,
                "mixes": len(found),
                "mean_rank_correlation": float(np.mean(correlations)) if correlations else float("nan"),
                "pairs": sum(one[1] for one in found),
                "pairs_right": sum(one[2] for one in found),
                "mean_regret": float(np.mean([one[3] for one in found])),
            }
        )
    return pd.DataFrame(rows)


def _agreement(runs: pd.Series, simulated: pd.Series) -> tuple[float, int, int, float]:
    """Return rank correlation, decided pairs, those simulated rightly, and regret in one mix."""
    from scipy.stats import spearmanr

    spans = {policy: part.to_numpy() for policy, part in runs.groupby("policy")}
    middle = {policy: float(np.median(values)) for policy, values in spans.items()}
    policies = [policy for policy in simulated.index if policy in spans]
    ours, theirs = [simulated[policy] for policy in policies], [middle[policy] for policy in policies]
    distinct = len(set(ours)) > 1 and len(set(theirs)) > 1
    correlation = float(spearmanr(ours, theirs).statistic) if distinct else float("nan")
    pairs = right = 0
    for a, b in itertools.combinations(policies, 2):
        if spans[a].max() < spans[b].min() or spans[b].max() < spans[a].min():
            pairs += 1
            right += (middle[a] < middle[b]) == (simulated[a] < simulated[b])
    chosen = min(policies, key=lambda policy: simulated[policy])
    return correlation, pairs, right, middle[chosen] / min(theirs) - 1
