"""Draws all charts of a comparison's folder, as PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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

T = TypeVar("T")


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


def figures(
    reported: Reported, setting: ComparedSetting, labels: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """Yield the name of each chart that a setting has something for, and what draws it.

    ``labels`` are what charts call some policies.
    """
    called = {policy: (labels or {}).get(policy, policy) for policy in reported.policies}
    baseline = reported.comparison.baseline
    kept = colours(list(reported.comparison.asked["policies"]))  # a policy keeps its colour whatever it is called
    shade = {called[policy]: kept[policy] for policy in reported.policies}

    def named(by_policy: Mapping[str, T]) -> dict[str, T]:
        return {called[policy]: value for policy, value in by_policy.items()}

    if average := intervals(reported, setting, "average_jct_s"):
        yield "average-jct", partial(bars, named(average), axis=METRICS["average_jct_s"], colour=shade)
    if changed := changes_of(reported, setting):
        rows = [Change(METRICS[metric].replace(" (s)", ""), named(measured)) for metric, measured in changed.items()]
        axis = f"Change against {(labels or {}).get(baseline, baseline)} (%)"
        yield "changes", partial(changes, rows, axis=axis, colour=shade)
    if groups := class_intervals(reported, setting):
        by_class = {class_name(size): named(group) for size, group in groups.items()}
        yield "jct-by-size", partial(grouped_bars, by_class, axis=METRICS["average_jct_s"], colour=shade)
    if samples := jct_s(reported, setting):
        yield "jct-distribution", partial(distributions, named(samples), axis="JCT (s)", colour=shade)
        axis = "Communicating or waiting for the network (% of JCT; mean over seeds)"
        shares = network_shares(reported, setting).rename(index=called)
        yield "network-share", partial(heat_map, shares, axis=axis)
    yield "utilisation", partial(utilisation, named(bands(reported, setting)), colour=shade)
    if setting == reported.settings[0]:
        for policy in reported.policies:
            placements = reported.placements(policy)
            if placements is not None and not placements.empty:
                servers = reported.servers(setting.cluster)
                yield f"placement-{slug(policy)}", partial(placement_map, placements, servers, title=called[policy])
