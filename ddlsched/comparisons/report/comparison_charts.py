"""Charts of a comparison: ``comparison.plot.average_jct()`` and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, TypedDict, Unpack

from ddlsched.comparisons.charts.style import Size, resized
from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.report.report_charts import figures
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.errors import InputError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlsched.comparisons.comparison import Comparison

__all__ = ["ComparisonCharts", "Shown"]


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
            self._refuse_unknown(policies)
            reported.policies = list(policies)
        labels = shown.get("labels") or {}
        self._refuse_unknown(labels)
        if len({labels.get(policy, policy) for policy in reported.policies}) < len(reported.policies):
            raise InputError(f"labels: {dict(labels)!r} calls two policies alike; expected a label for each")
        drawn = dict(figures(reported, setting, labels))
        if name not in drawn:
            raise InputError(
                f"{setting.workload} on {setting.cluster}: nothing finished of which a chart could be drawn"
            )
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
