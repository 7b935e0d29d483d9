"""Draws all charts of a comparison's folder, as PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from ddlsched.comparisons.charts.jct_charts import Change, bars, changes, distributions, grouped_bars, heat_map
from ddlsched.comparisons.charts.placement_map import placement_map
from ddlsched.comparisons.charts.run_charts import utilisation
from ddlsched.comparisons.charts.style import Size, colours, resized, save
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.report.reported import ComparedSetting, Reported, class_name
from ddlsched.errors import InputError, UnknownNameError, did_you_mean
from ddlsched.results.paired_comparison import METRICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlsched.comparisons.comparison import Comparison

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
            files += save(draw(), reported.charts(setting) / name)
    return files


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

    if average := reported.intervals(setting, "average_jct_s"):
        yield "average-jct", partial(bars, named(average), axis=METRICS["average_jct_s"], colour=shade)
    if changed := reported.changes(setting):
        rows = [Change(METRICS[metric].replace(" (s)", ""), named(measured)) for metric, measured in changed.items()]
        axis = f"Change against {(labels or {}).get(baseline, baseline)} (%)"
        yield "changes", partial(changes, rows, axis=axis, colour=shade)
    if groups := reported.class_intervals(setting):
        by_class = {class_name(size): named(group) for size, group in groups.items()}
        yield "jct-by-size", partial(grouped_bars, by_class, axis=METRICS["average_jct_s"], colour=shade)
    if samples := reported.jct_s(setting):
        yield "jct-distribution", partial(distributions, named(samples), axis="JCT (s)", colour=shade)
        axis = "Communicating or waiting for the network\n(% of JCT; mean over seeds)"
        shares = reported.network_shares(setting).rename(index=called)
        yield "network-share", partial(heat_map, shares, axis=axis)
    yield "utilisation", partial(utilisation, named(reported.bands(setting)), colour=shade)
    if setting == reported.settings[0]:
        for policy in reported.policies:
            placements = reported.placements(policy)
            if placements is not None and not placements.empty:
                servers = reported.servers(setting.cluster)
                yield f"placement-{slug(policy)}", partial(placement_map, placements, servers, title=called[policy])


class Shown(TypedDict, total=False):
    """What a chart shows, and how.

    Attributes
    ----------
    workload, cluster
        Of which setting; of several, by default the first.
    policies
        Which, and in which order; by default all.
    labels
        What the chart calls some policies.
    size
        Width and height, inches.
    """

    workload: str | None
    cluster: str | None
    policies: Sequence[str] | None
    labels: Mapping[str, str] | None
    size: Size


class ComparisonCharts:
    """Charts of a comparison, each a matplotlib figure, which notebooks show and ``figure.savefig`` writes.

    All take what :class:`Shown` lists, e.g. ``changes(labels={"srsf-1": "SRSF(1)"}, size=(3.3, 2))``.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._reported = Reported(comparison)

    def __repr__(self) -> str:
        return "<charts of a comparison: average_jct, changes, jct, jct_by_size, network, placements, utilisation>"

    def average_jct(self, **shown: Unpack[Shown]) -> Figure:
        """Return a bar a policy with its interval over seeds."""
        return self._figure("average-jct", shown)

    def changes(self, **shown: Unpack[Shown]) -> Figure:
        """Return the paired changes against the baseline, with their intervals."""
        return self._figure("changes", shown)

    def jct_by_size(self, **shown: Unpack[Shown]) -> Figure:
        """Return the average JCT of each size class of jobs."""
        return self._figure("jct-by-size", shown)

    def jct(self, **shown: Unpack[Shown]) -> Figure:
        """Return the cumulative distributions of JCT."""
        return self._figure("jct-distribution", shown)

    def network(self, **shown: Unpack[Shown]) -> Figure:
        """Return the share of JCT that jobs communicated or waited for the network."""
        return self._figure("network-share", shown)

    def utilisation(self, **shown: Unpack[Shown]) -> Figure:
        """Return the share of GPUs that computed, over time."""
        return self._figure("utilisation", shown)

    def placements(self, policy: str, **shown: Unpack[Shown]) -> Figure:
        """Return which job was on which GPU when, in a policy's first run."""
        self._refuse_unknown([policy])
        return self._figure(f"placement-{slug(policy)}", shown)

    def _figure(self, name: str, shown: Shown) -> Figure:
        if unknown := sorted(shown.keys() - Shown.__annotations__.keys()):
            hint = did_you_mean(unknown[0], Shown.__annotations__)
            raise UnknownNameError(f"a chart has no parameter {unknown[0]!r}.{hint}")
        setting, reported = self._setting(shown.get("workload"), shown.get("cluster")), copy(self._reported)
        if (policies := shown.get("policies")) is not None:
            reported.policies = [policies] if isinstance(policies, str) else list(policies)
            self._refuse_unknown(reported.policies)
        labels = shown.get("labels") or {}
        if not isinstance(labels, Mapping):
            raise InputError(f"labels: {labels!r} is no mapping; expected a label by policy")
        self._refuse_unknown(labels)
        if len({labels.get(policy, policy) for policy in reported.policies}) < len(reported.policies):
            raise InputError(f"labels: {dict(labels)!r} calls two policies alike; expected a label for each")
        drawn = dict(figures(reported, setting, labels))
        if name not in drawn:
            raise InputError(f"{setting.workload} on {setting.cluster}: nothing to show of {reported.policies}")
        return resized(drawn[name](), shown.get("size"))

    def _refuse_unknown(self, policies: Iterable[str]) -> None:
        known = self._reported.comparison.asked["policies"]
        for policy in policies:
            if policy not in known:
                raise UnknownNameError(f"no policy is named {policy!r}.{did_you_mean(policy, known)}")

    def _setting(self, workload: str | None, cluster: str | None) -> ComparedSetting:
        settings = self._reported.settings
        for name, given in (("workload", workload), ("cluster", cluster)):
            known = {getattr(setting, name) for setting in settings}
            if given is not None and given not in known:
                raise UnknownNameError(f"no {name} is named {given!r}.{did_you_mean(given, known)}")
        wanted = [s for s in settings if workload in (None, s.workload) and cluster in (None, s.cluster)]
        if not wanted:
            raise InputError("no run finished; expected one at least, for a chart")
        return wanted[0]
