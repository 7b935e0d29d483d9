"""Draws all charts of a comparison's folder, as PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ddlsched.comparisons.charts.jct_charts import Change, bars, changes, distributions, grouped_bars, heat_map
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.comparisons.charts.style import colours, save
from ddlsched.comparisons.charts.utilisation import utilisation
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.report.number_texts import (
    bands,
    changes_of,
    class_intervals,
    class_name,
    intervals,
    jct_s,
    network_shares,
)
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.errors import InputError
from ddlsched.results.paired_comparison import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_charts", "figures"]


def draw_charts(comparison: Reported | Path | str) -> list[Path]:
    """Draw the charts of a comparison into its ``charts/`` and return the files, a PNG and an SVG of each.

    Of several workloads or clusters each has a folder of its own in there.

    Raises
    ------
    InputError
        It is no comparison's folder, a file of it cannot be read, or a chart cannot be written.
    """
    reported = comparison if isinstance(comparison, Reported) else Reported.open(comparison)
    files = []
    for setting in reported.settings:
        for name, draw in figures(reported, setting):
            files += _saved(draw(), reported.charts(setting) / name)
    return files


def _saved(figure: Figure, stem: Path) -> list[Path]:
    try:
        return save(figure, stem)
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        raise InputError(f"{stem}.png: {problem}; expected a folder to write charts to") from None


def figures(reported: Reported, setting: ComparedSetting) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield the name of each chart that a setting has something for, and what draws it."""
    shade = colours(reported.policies)
    if average := intervals(reported, setting, "average_jct_s"):
        yield "average-jct", partial(bars, average, axis=METRICS["average_jct_s"], colour=shade)
    if changed := changes_of(reported, setting):
        rows = [Change(METRICS[metric].replace(" (s)", ""), measured) for metric, measured in changed.items()]
        axis = f"Change against {reported.comparison.baseline} (%)"
        yield "changes", partial(changes, rows, axis=axis, colour=shade)
    if groups := class_intervals(reported, setting):
        named = {class_name(size): group for size, group in groups.items()}
        yield "jct-by-size", partial(grouped_bars, named, axis=METRICS["average_jct_s"], colour=shade)
    if samples := jct_s(reported, setting):
        yield "jct-distribution", partial(distributions, samples, axis="JCT (s)", colour=shade)
        axis = "Communicating or waiting for the network\n(% of JCT; mean over seeds)"
        yield "network-share", partial(heat_map, network_shares(reported, setting), axis=axis)
    yield "utilisation", partial(utilisation, bands(reported, setting), colour=shade)
    if setting == reported.settings[0]:
        for policy in reported.policies:
            placements = reported.placements(policy)
            if placements is not None and not placements.empty:
                servers = reported.servers(setting.cluster)
                yield f"placement-{slug(policy)}", partial(placement_map, placements, servers, title=policy)
