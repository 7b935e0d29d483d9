"""Charts of one run: ``result.plot.jct()`` and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlsched.comparisons.charts import style
from ddlsched.comparisons.charts.jct_charts import distributions, legend_below, legend_label, legend_lines, over_seeds
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.deferred import pd
from ddlsched.errors import InputError
from ddlsched.results.reliability import GPU_TIME_PARTS, gpu_time_of
from ddlsched.results.result import PHASES
from ddlsched.results.statistics import CONFIDENCE
from ddlsched.results.tenants import free_gpus_over_time, gpus_over_time, tenant_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ddlsched.results.result import Result

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
    from scipy.special import stdtrit

    # Student's interval: to resample each bin of time of each policy would take seconds and look the same.
    half = stdtrit(len(values) - 1, (1.0 + CONFIDENCE) / 2.0) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return Band(edges_s, mean, np.maximum(mean - half, 0.0), np.minimum(mean + half, 1.0), len(values))


def _binned(table: pd.DataFrame, edges_s: np.ndarray) -> np.ndarray:
    """Return the mean of ``busy_gpus`` in each bin; GPU-seconds are kept, however samples and bins lie."""
    time_s = np.concatenate(([0.0], table["time_s"].to_numpy(dtype=np.float64)))
    computed_gpu_s = np.cumsum(table["busy_gpus"].to_numpy(dtype=np.float64) * np.diff(time_s))
    at_edges_gpu_s = np.interp(edges_s, time_s, np.concatenate(([0.0], computed_gpu_s)))
    return np.asarray(np.diff(at_edges_gpu_s) / np.diff(edges_s))


@style.in_style()
def utilisation(bands: Mapping[str, Band], *, colour: Mapping[str, str] | None = None) -> Figure:
    """Return a line and a band a policy.

    Parameters
    ----------
    bands
        By policy.
    colour
        Of some policies, in place of the style's own.
    """
    shade, called = style.colours(list(bands), colour), style.short_labels(list(bands))
    figure, axes = style.new_figure(2.2 + 0.16 * legend_lines(called.values()))
    for number, (policy, band) in enumerate(bands.items()):
        line = {"color": shade[policy], "linestyle": style.DASHES[number % 5], "label": legend_label(called[policy])}
        axes.stairs(100 * band.high, band.edges_s, baseline=100 * band.low, fill=True, color=shade[policy], alpha=0.2)
        axes.plot((band.edges_s[:-1] + band.edges_s[1:]) / 2, 100 * band.mean, linewidth=1.2, **line)
    axes.set(xlim=(0, None), ylim=(0, None), ylabel="GPUs computing (%)")
    axes.margins(x=0)
    axes.grid(axis="y")
    axes.set_xlabel(f"Time (s)\n{over_seeds(band.seeds for band in bands.values())}", loc="right")
    axes.axhline(0, color=style.MUTED, linewidth=0.6)
    legend_below(figure, [axes])
    return figure


_PHASE_COLOURS = dict(
    zip(PHASES, map(style.PALETTE.__getitem__, ("grey", "blue", "sky", "green", "vermillion", "purple")), strict=True)
)
_PHASE_NAMES = (
    "in the queue",
    "computing",
    "waiting for its GPUs",
    "communicating",
    "waiting for the network",
    "restart",
)


def _largest(table: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the columns with the largest sums, and one of all others."""
    large = table.sum().nlargest(count).index
    return table[large].assign(others=table.drop(columns=large).sum(axis=1))


def _name_rows(axes: Axes, names: Sequence[str], label: str) -> None:
    """Let axes have a row a name, the first on top, and say what is measured to the right."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label, loc="right")
    axes.grid(axis="x")


class RunCharts:
    """Charts of one run, each a matplotlib figure, which notebooks show and ``figure.savefig`` writes.

    ``size`` is width and height, inches.
    """

    def __init__(self, result: Result) -> None:
        self._result = result

    def __repr__(self) -> str:
        return "<charts of a run: fragmentation, jct, phases, placements, tenant_jobs, tenants, utilisation, waterfall>"

    def jct(self, *, size: style.Size = None) -> Figure:
        """Return the cumulative distribution of the completion times of the counted jobs that finished.

        Raises
        ------
        InputError
            None did.
        """
        jobs = self._result.jobs
        jct_s = jobs.loc[jobs["counted"], "jct_s"].dropna()
        if jct_s.empty:
            raise InputError("no counted job finished; expected one at least, for the distribution of JCT")
        return style.resized(distributions({"jobs": jct_s.to_numpy()}, axis="JCT (s)"), size)

    @style.in_style()
    def phases(self, *, size: style.Size = None) -> Figure:
        """Return where the time of jobs went from arrival to finish: a bar a number of GPUs, mean seconds a job."""
        jobs = self._result.jobs
        means = jobs[jobs["counted"] & (jobs["state"] == "finished")].groupby("gpus")[list(PHASES)].mean()
        figure, axes = style.new_figure(1.5 + 0.24 * max(len(means), 1))
        left = np.zeros(len(means))
        for phase, name in zip(PHASES, _PHASE_NAMES, strict=True):
            if means[phase].any():
                axes.barh(range(len(means)), means[phase], left=left, color=_PHASE_COLOURS[phase], label=name)
                left += means[phase].to_numpy()
        _name_rows(axes, [str(gpus) for gpus in means.index], "Mean time from arrival to finish (s)")
        axes.set_ylabel("GPUs of a job")
        legend_below(figure, [axes])
        return style.resized(figure, size)

    def placements(self, *, size: style.Size = None) -> Figure:
        """Return which job was on which GPU when, a row a GPU."""
        counts = np.diff(self._result.cluster.first_gpus).tolist()
        return style.resized(placement_map(self._result.placements, counts), size)

    @style.in_style()
    def tenants(self, *, size: style.Size = None) -> Figure:
        """Return how many GPUs each tenant's jobs have, over time, one on top of the other."""
        table = gpus_over_time(self._result)
        figure, axes = style.new_figure(3.2)
        shades = [colour for name, colour in style.PALETTE.items() if name != "black"]
        if len(table.columns) > len(shades):
            table = _largest(table, len(shades) - 1)
        bottom = np.zeros(len(table))
        for (queue, gpus), colour in zip(table.items(), shades, strict=False):
            top = bottom + gpus.to_numpy()
            axes.fill_between(table.index, bottom, top, step="post", color=colour, label=str(queue), linewidth=0)
            bottom = top
        return self._over_time(figure, axes, "GPUs in use (line: all)", size)

    @style.in_style()
    def tenant_jobs(self, *, size: style.Size = None) -> Figure:
        """Return each tenant's mean wait (a line to its 95th percentile), mean JCT and preemptions, a row a tenant."""
        table = tenant_table(self._result)
        figure, panels = style.new_panels(1.1 + 0.24 * len(table), 3)
        rows = range(len(table))
        shown = (("wait_s", "Mean wait, line: p95 (s)"), ("jct_s", "Mean JCT (s)"), ("preemptions", "Preemptions"))
        for axes, (column, label), colour in zip(panels, shown, ("orange", "blue", "vermillion"), strict=True):
            axes.barh(rows, table[column], color=style.PALETTE[colour])
            _name_rows(axes, [str(queue) if axes is panels[0] else "" for queue in table.index], label)
        panels[0].hlines(rows, 0, table["p95_wait_s"], color=style.PALETTE["grey"], linewidth=1)
        return style.resized(figure, size)

    @style.in_style()
    def fragmentation(self, *, size: style.Size = None) -> Figure:
        """Return how many GPUs are free over time, and how many of these on servers of which jobs have others."""
        table = free_gpus_over_time(self._result)
        figure, axes = style.new_figure(2.6)
        said = {"free": "free", "fragments": "of these beside jobs on their server"}
        for (column, label), colour in zip(said.items(), ("sky", "vermillion"), strict=True):
            shade = style.PALETTE[colour]
            axes.fill_between(table.index, 0, table[column], step="post", color=shade, label=label, linewidth=0)
        return self._over_time(figure, axes, "GPUs (line: all)", size)

    def _over_time(self, figure: Figure, axes: Axes, label: str, size: style.Size) -> Figure:
        """Return the figure with axes of a number of GPUs over time."""
        axes.axhline(self._result.cluster.num_gpus, color=style.PALETTE["grey"], linewidth=1)
        axes.margins(x=0)
        axes.set_xlim(left=0)
        axes.set_ylim(0, self._result.cluster.num_gpus * 1.05)
        axes.set_ylabel(label)
        axes.set_xlabel("Time (s)", loc="right")
        legend_below(figure, [axes])
        return style.resized(figure, size)

    def utilisation(self, *, size: style.Size = None) -> Figure:
        """Return the share of GPUs that computed, over time."""
        bands = utilisation_bands({"run": [self._result.samples]}, self._result.cluster.num_gpus)
        return style.resized(utilisation(bands), size)

    @style.in_style()
    def waterfall(self, *, size: style.Size = None) -> Figure:
        """Return what of the time that jobs held GPUs went where, from all of it down to what trained, GPU hours."""
        hours = gpu_time_of(self._result)[["held", *GPU_TIME_PARTS]].sum() / 3600
        lost = list(GPU_TIME_PARTS[:-1])
        names = ["held by jobs", *lost, "training"]
        left = hours["held"] - hours[lost].cumsum()
        starts = [0.0, *left, 0.0]
        widths = [hours["held"], *hours[lost], hours["training"]]
        shades = [style.PALETTE[name] for name in ("grey", *["vermillion"] * len(lost), "blue")]
        figure, axes = style.new_figure(2.2)
        axes.barh(range(len(names)), widths, left=starts, color=shades)
        for place, (start, width) in enumerate(zip(starts, widths, strict=True)):
            share = width / hours["held"] if hours["held"] else 0.0
            shown = style.short(width) if width < 100 else f"{width:,.0f}"
            axes.text(start + width, place, f" {shown} ({share:.1%})", va="center")
        said = [name.replace("_", " ").replace("gpus and network", "others") for name in names]
        _name_rows(axes, said, "GPU hours")
        axes.set_xlim(0, max(1.7 * hours["held"], 1e-9))
        return style.resized(figure, size)
