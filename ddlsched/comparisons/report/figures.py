"""The interactive charts of a report, as the data and layouts that plotly.js draws.

Colours are not in here: the page sets them, in its light or its dark form, from the number of the policy in each
trace's ``meta``, by which it also shows and hides them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ddlsched.comparisons.charts.jct_charts import cumulative
from ddlsched.comparisons.charts.placement_map import placement_boxes
from ddlsched.comparisons.charts.run_charts import Band
from ddlsched.comparisons.charts.style import INK, JOB_COLOURS, SHADES, short, wrapped
from ddlsched.comparisons.report.reported import CHANGED, ComparedSetting, Reported, class_name
from ddlsched.results.paired_comparison import METRICS
from ddlsched.results.statistics import Interval

_MOST_POINTS = 201
_MOST_BOXES = 8000
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_ROW_PIXELS = 34
_LINE_PIXELS = 17


@dataclass(frozen=True)
class InteractiveChart:
    """A chart of the page.

    Attributes
    ----------
    title, note
        What it shows, and how to read it.
    height
        Of the drawing, pixels, without its legend.
    traces, layout
        As plotly.js takes them.
    placement
        In place of traces, the rectangles of a placement map; see :func:`placement_chart`.
    """

    title: str
    note: str
    height: int
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    placement: dict[str, Any] | None = None


def interactive_charts(reported: Reported, setting: ComparedSetting) -> Iterator[InteractiveChart]:
    """Yield the charts of one workload on one cluster, but for placement maps."""
    number = {policy: place for place, policy in enumerate(reported.policies)}
    if changed := reported.changes(setting):
        yield _changes(changed, number, reported.comparison.baseline)
    if average := reported.intervals(setting, "average_jct_s"):
        yield _average(average, number)
    if groups := reported.class_intervals(setting):
        yield _by_class(groups, number)
    if samples := reported.jct_s(setting):
        yield _distributions(samples, number)
        yield _network(reported.network_shares(setting), number)
    yield _utilisation(reported.bands(setting), number)


def _changes(
    changed: Mapping[str, Mapping[str, Interval]], number: Mapping[str, int], baseline: str
) -> InteractiveChart:
    policies = [policy for policy in number if any(policy in measured for measured in changed.values())]
    traces = []
    for policy in policies:
        found = {metric: measured[policy] for metric, measured in changed.items() if policy in measured}
        names = [METRICS[metric].replace(" (s)", "") for metric in found]
        marks = {"symbol": _SYMBOLS[number[policy] % len(_SYMBOLS)], "size": 9}
        several = any(interval.seeds > 1 for interval in found.values())
        hover = "%{y}: %{x:+.1f} %" + " [%{customdata[0]:+.1f}, %{customdata[1]:+.1f}]" * several
        trace = _trace(policy, number, type="scatter", mode="markers", orientation="h", marker=marks, y=names)
        ends = [_compact((interval.low, interval.high)) for interval in found.values()]
        traces.append(trace | {"hovertemplate": hover, "customdata": ends} | _estimates(found.values(), "x"))
    layout = {
        "scattermode": "group",
        "xaxis": {"title": {"text": f"Change against {_text(baseline)} (%)"}, "rangemode": "tozero", "zeroline": True},
        "yaxis": _categories([METRICS[metric].replace(" (s)", "") for metric in CHANGED if metric in changed]),
    }
    note = (
        "Left of 0: jobs finish sooner than with the baseline. Whiskers: 95 % interval of the mean over seeds of "
        "the change on the same seed; one that crosses 0 leaves it undecided."
    )
    height = 100 + len(changed) * (24 + 20 * len(policies))
    return InteractiveChart("Change against the baseline", note, height, traces, layout)


def _average(average: Mapping[str, Interval], number: Mapping[str, int]) -> InteractiveChart:
    traces = []
    for policy, interval in average.items():
        hover = _seconds(interval)
        trace = _trace(policy, number, type="bar", orientation="h", y=[_wrapped(policy)], showlegend=False)
        # A value that does not fit into its bar stands beside it: inside, it would be shrunk until it did.
        value = {"textposition": "auto", "insidetextanchor": "start", "constraintext": "none", "textangle": 0}
        shown = {"hovertemplate": hover, "text": [short(interval.mean)], "cliponaxis": False}
        traces.append(trace | shown | value | _estimates([interval], "x"))
    layout = {
        "barmode": "overlay",
        "bargap": 0.3,
        "xaxis": {"title": {"text": METRICS["average_jct_s"]}, "rangemode": "tozero"},
        "yaxis": _categories([_wrapped(policy) for policy in average]),
    }
    note = (
        "Mean and 95 % interval over seeds. Seeds differ more than policies do: whether two policies differ is "
        "told by the change on the same seed, above, not by whether these intervals overlap."
    )
    return InteractiveChart("Average JCT", note, 80 + _rows_pixels(average), traces, layout)


def _seconds(interval: Interval) -> str:
    ends = f" [{short(interval.low)}, {short(interval.high)}]" if interval.seeds > 1 else ""
    return f"{short(interval.mean)} s{ends}"


def _by_class(groups: Mapping[str, Mapping[str, Interval]], number: Mapping[str, int]) -> InteractiveChart:
    policies = [policy for policy in number if any(policy in group for group in groups.values())]
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"barmode": "overlay", "bargap": 0.15}
    width = 1.0 / len(groups)
    for place, (size, group) in enumerate(groups.items()):
        axis = str(place + 1) if place else ""
        left = place * width + (0.09 if place else 0.0)
        layout[f"xaxis{axis}"] = _categories([_wrapped(policy) for policy in policies], reverse=False) | {
            "domain": [left, (place + 1) * width],
            "title": {"text": class_name(size), "standoff": 8},
            "showticklabels": False,
            "showgrid": False,
            "anchor": f"y{axis}",
        }
        layout[f"yaxis{axis}"] = {"anchor": f"x{axis}", "rangemode": "tozero", "nticks": 5}
        for policy, interval in group.items():
            hover = f"{class_name(size)}: {_seconds(interval)}"
            trace = _trace(policy, number, type="bar", x=[_wrapped(policy)], hovertemplate=hover)
            place_of = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "showlegend": place == 0}
            traces.append(trace | place_of | _estimates([interval], "y"))
    layout["yaxis"]["title"] = {"text": METRICS["average_jct_s"]}
    note = "By the number of GPUs of a job; mean and 95 % interval over seeds. Each panel has its own scale."
    return InteractiveChart("Average JCT by job size", note, 300, traces, layout)


def _distributions(samples: Mapping[str, np.ndarray], number: Mapping[str, int]) -> InteractiveChart:
    traces = []
    for policy, values in samples.items():
        x, share = cumulative(values, _MOST_POINTS)
        line = {"dash": _DASHES[number[policy] % len(_DASHES)], "width": 2}
        trace = _trace(policy, number, type="scatter", mode="lines", line=line, x=_compact(x), y=_compact(share))
        traces.append(trace | {"hovertemplate": "%{y:.1%} of jobs within %{x:.4g} s"})
    layout = {
        "xaxis": {"type": "log", "title": {"text": "JCT (s), log scale"}, "tickformat": "~g", "dtick": "D2"},
        "yaxis": {"title": {"text": "Share of jobs"}, "range": [0, 1.01], "tickformat": ".0%"},
    }
    note = "Share of all jobs of all seeds that took at most so long. Further left is better."
    return InteractiveChart("Distribution of JCT", note, 360, traces, layout)


def _network(shares: pd.DataFrame, number: Mapping[str, int]) -> InteractiveChart:
    most = float(np.nanmax(100 * shares.to_numpy(), initial=0.0)) or 1.0
    cells = [[None if np.isnan(share) else round(100 * share, 2) for share in row] for row in shares.to_numpy()]
    shown = {
        "texttemplate": "%{z:.1f}",
        "textfont": {"color": INK},
        "hovertemplate": "%{y}, %{x}: %{z:.1f} % of JCT<extra></extra>",
    }
    labels = [_wrapped(str(policy)) for policy in shares.index]
    table = {"type": "heatmap", "z": cells, "x": list(shares.columns), "y": labels, "hoverongaps": False}
    rows = {"rows": [number[str(policy)] for policy in shares.index]}  # which the page leaves out with their policy
    traces = [table | shown | {"coloraxis": "coloraxis", "xgap": 2, "ygap": 2, "meta": rows}]
    scale = [[place / (len(SHADES) - 1), colour] for place, colour in enumerate(SHADES)]
    layout = {
        "coloraxis": {"cmin": 0, "cmax": most, "colorscale": scale, "showscale": False},
        "xaxis": {"type": "category", "showgrid": False, "fixedrange": True},
        "yaxis": _categories(labels) | {"showgrid": False},
    }
    note = "Per cent of the JCT of a class's jobs in which they communicated or waited to; mean over seeds."
    return InteractiveChart("Network's share of JCT", note, 60 + _rows_pixels(map(str, shares.index)), traces, layout)


def _utilisation(found: Mapping[str, Band], number: Mapping[str, int]) -> InteractiveChart:
    traces = []
    for policy, band in found.items():
        middle_s = _compact((band.edges_s[:-1] + band.edges_s[1:]) / 2)
        group = {"legendgroup": str(number[policy])}
        outline = {"x": [*middle_s, *middle_s[::-1]], "y": _compact(100 * np.concatenate((band.high, band.low[::-1])))}
        area = {"fill": "toself", "hoverinfo": "skip", "showlegend": False, "line": {"width": 0}}
        traces.append(_trace(policy, number, type="scatter", mode="lines", **group, **area, **outline))
        line = {"dash": _DASHES[number[policy] % len(_DASHES)], "width": 2}
        mean = {"x": middle_s, "y": _compact(100 * band.mean), "hovertemplate": "%{y:.1f} % at %{x:.4g} s"}
        traces.append(_trace(policy, number, type="scatter", mode="lines", line=line, **group, **mean))
    layout = {
        "xaxis": {"title": {"text": "Time (s)"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "GPUs computing (%)"}, "rangemode": "tozero"},
    }
    note = "Mean over seeds, with its 95 % interval as a band. A run that is over counts as 0."
    return InteractiveChart("Utilisation over time", note, 360, traces, layout)


def placement_chart(placements: pd.DataFrame, servers: Sequence[int], policy: str) -> InteractiveChart | None:
    """Return the placement map of a policy, or None if it has too many rectangles to be drawn interactively.

    Its rectangles are whole numbers, for the page to unfold: ``times_s``, in ascending order; ``stays``, each
    a job's name, its first and last time (indices) and its colour; ``boxes``, each its stay, first and last time
    (indices), first GPU, number of GPUs, place among the jobs that share the row, and their number.
    """
    for shared in (True, False):
        boxes = placement_boxes(placements, shared=shared)
        if len(boxes) <= _MOST_BOXES:
            break
    else:
        return None
    times_s = sorted(set(placements["from_s"]) | set(placements["to_s"]))
    place_of = {time_s: place for place, time_s in enumerate(times_s)}
    stays: dict[tuple[Any, ...], int] = {}
    rows = []
    for box in boxes.to_dict("records"):
        span = place_of[box["stay_from_s"]], place_of[box["stay_to_s"]]
        stay = stays.setdefault((_text(str(box["job_id"])), *span, box["colour"]), len(stays))
        times = place_of[box["from_s"]], place_of[box["to_s"]]
        gpus = box["last_gpu"] - box["first_gpu"] + 1
        within = (round((box["bottom"] - box["first_gpu"]) * box["jobs"]), box["jobs"]) if shared else (0, 1)
        rows.append([stay, *times, box["first_gpu"], gpus, *within])
    several = "Jobs on a GPU at once share its row." if shared else "Of jobs on a GPU at once the first is shown."
    data = {
        "times_s": _compact(times_s, 6),
        "stays": [list(stay) for stay in stays],
        "boxes": rows,
        "servers": list(servers),
        "colours": JOB_COLOURS,
    }
    note = f"First seed. {several} Colours only tell neighbouring jobs apart; grey: no job."
    height = int(np.clip(90 + 11 * sum(servers), 240, 860))
    return InteractiveChart(f"Placement: {policy}", note, height, placement=data)


def _trace(policy: str, number: Mapping[str, int], **what: Any) -> dict[str, Any]:
    return {"name": _wrapped(policy, 36), "meta": {"policy": number[policy]}, "showlegend": True} | what


def _estimates(found: Iterable[Interval], axis: str) -> dict[str, Any]:
    """Return means along an axis with the ends of their intervals."""
    found = list(found)
    above = _compact([interval.high - interval.mean for interval in found])
    below = _compact([interval.mean - interval.low for interval in found])
    error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5, "width": 4}
    return {axis: _compact([interval.mean for interval in found]), f"error_{axis}": error}


def _categories(labels: Sequence[str], *, reverse: bool = True) -> dict[str, Any]:
    """Return an axis with a place for each label that is shown, the first on top."""
    order = {"categoryorder": "array", "categoryarray": list(labels), "type": "category", "fixedrange": True}
    return order | ({"autorange": "reversed"} if reverse else {})


def _text(label: str) -> str:
    """Return a user's text so that plotly, which knows some HTML and fills in ``%{x}``, shows it as it is."""
    return html.escape(label.replace("%{", "%\N{WORD JOINER}{"), quote=False)


def _wrapped(label: str, width: int = 24) -> str:
    return "<br>".join(map(_text, wrapped(label, width).split("\n")))


def _rows_pixels(labels: Iterable[str]) -> int:
    """Return the height of as many rows, each high enough for the tallest label."""
    lines = [_wrapped(label).count("<br>") + 1 for label in labels]
    return len(lines) * max(_ROW_PIXELS, 8 + _LINE_PIXELS * max(lines))


def _compact(values: Iterable[float], digits: int = 5) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]
