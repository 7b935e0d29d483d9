"""How many GPUs compute over time, as the mean over seeds with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts.jct_charts import legend_below, legend_label, legend_lines, over_seeds
from ddlsched.comparisons.charts.style import DASHES, MUTED, colours, in_style, new_figure, short_labels
from ddlsched.results.statistics import CONFIDENCE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Band", "utilisation", "utilisation_bands"]

_BINS = 96


@dataclass(frozen=True)
class Band:
    """A policy's utilisation over time, a value a bin of time, each from 0 to 1.

    Parameters
    ----------
    edges_s
        Of the bins, one more than there are values.
    mean, low, high
        Mean over seeds, and the ends of its 95 % interval, bin by bin.
    seeds
        How many.
    """

    edges_s: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def utilisation_bands(samples: Mapping[str, Sequence[pd.DataFrame]], num_gpus: int) -> dict[str, Band]:
    """Return the utilisation of each policy over the same bins of time; a run that is over computes nothing.

    Parameters
    ----------
    samples
        By policy, a table a seed: ``time_s``, ascending, and ``busy_gpus``, the mean number of GPUs that
        computed since the row before.
    num_gpus
        Of the cluster.
    """
    last_s = max((float(table["time_s"].max()) for tables in samples.values() for table in tables), default=0.0)
    edges_s = np.linspace(0.0, last_s or 1.0, _BINS + 1)
    return {policy: _band(tables, edges_s, num_gpus) for policy, tables in samples.items() if tables}


def _band(tables: Sequence[pd.DataFrame], edges_s: np.ndarray, num_gpus: int) -> Band:
    values = np.array([_binned(table, edges_s) for table in tables]) / num_gpus
    mean = values.mean(axis=0)
    if len(values) == 1:
        return Band(edges_s, mean, mean, mean, 1)
    from scipy.stats import t

    # Student's interval: to resample each bin of time of each policy would take seconds and look the same.
    half = t.ppf((1.0 + CONFIDENCE) / 2.0, len(values) - 1) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return Band(edges_s, mean, np.maximum(mean - half, 0.0), np.minimum(mean + half, 1.0), len(values))


def _binned(table: pd.DataFrame, edges_s: np.ndarray) -> np.ndarray:
    """Return the mean of ``busy_gpus`` in each bin; GPU-seconds are kept, however samples and bins lie."""
    time_s = np.concatenate(([0.0], table["time_s"].to_numpy(dtype=np.float64)))
    computed_gpu_s = np.cumsum(table["busy_gpus"].to_numpy(dtype=np.float64) * np.diff(time_s))
    at_edges_gpu_s = np.interp(edges_s, time_s, np.concatenate(([0.0], computed_gpu_s)))
    return np.asarray(np.diff(at_edges_gpu_s) / np.diff(edges_s))


@in_style()
def utilisation(bands: Mapping[str, Band], *, colour: Mapping[str, str] | None = None) -> Figure:
    """Return a line and a band a policy.

    Parameters
    ----------
    bands
        By policy.
    colour
        Of some policies, in place of the style's own.
    """
    shade, called = colours(list(bands), colour), short_labels(list(bands))
    figure, axes = new_figure(2.2 + 0.16 * legend_lines(called.values()))
    for number, (policy, band) in enumerate(bands.items()):
        line = {"color": shade[policy], "linestyle": DASHES[number % 5], "label": legend_label(called[policy])}
        axes.stairs(100 * band.high, band.edges_s, baseline=100 * band.low, fill=True, color=shade[policy], alpha=0.2)
        axes.plot((band.edges_s[:-1] + band.edges_s[1:]) / 2, 100 * band.mean, linewidth=1.2, **line)
    axes.set(xlim=(0, None), ylim=(0, None), ylabel="GPUs computing (%)")
    axes.margins(x=0)
    axes.grid(axis="y")
    axes.set_xlabel(f"Time (s)\n{over_seeds(band.seeds for band in bands.values())}", loc="right")
    axes.axhline(0, color=MUTED, linewidth=0.6)
    legend_below(figure, [axes])
    return figure
