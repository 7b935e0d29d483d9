"""Charts of a comparison: ``comparison.plot.average_jct()`` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlsched.comparisons.folder import slug
from ddlsched.comparisons.report.report_charts import figures
from ddlsched.comparisons.report.reported import ComparedSetting, Reported
from ddlsched.errors import InputError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ddlsched.comparisons.comparison import Comparison

__all__ = ["ComparisonCharts"]


class ComparisonCharts:
    """Charts of a comparison, each a matplotlib figure, which notebooks show and ``figure.savefig`` writes.

    Of several workloads or clusters a chart is of the first, unless ``workload`` and ``cluster`` say which.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._reported = Reported(comparison)

    def __repr__(self) -> str:
        return "<charts of a comparison: average_jct, changes, jct, jct_by_size, network, placements, utilisation>"

    def average_jct(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return a bar a policy with its interval over seeds."""
        return self._figure("average-jct", workload, cluster)

    def changes(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return the paired changes against the baseline, with their intervals."""
        return self._figure("changes", workload, cluster)

    def jct_by_size(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return the average JCT of each size class of jobs."""
        return self._figure("jct-by-size", workload, cluster)

    def jct(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return the cumulative distributions of JCT."""
        return self._figure("jct-distribution", workload, cluster)

    def network(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return the share of JCT that jobs communicated or waited for the network."""
        return self._figure("network-share", workload, cluster)

    def utilisation(self, workload: str | None = None, cluster: str | None = None) -> Figure:
        """Return the share of GPUs that computed, over time."""
        return self._figure("utilisation", workload, cluster)

    def placements(self, policy: str) -> Figure:
        """Return which job was on which GPU when, in a policy's first run."""
        if policy not in self._reported.policies:
            raise UnknownNameError(f"no policy is named {policy!r}.{did_you_mean(policy, self._reported.policies)}")
        return self._figure(f"placement-{slug(policy)}", None, None)

    def _figure(self, name: str, workload: str | None, cluster: str | None) -> Figure:
        setting = self._setting(workload, cluster)
        drawn = dict(figures(self._reported, setting))
        if name not in drawn:
            raise InputError(
                f"{setting.workload} on {setting.cluster}: nothing finished of which a chart could be drawn"
            )
        return drawn[name]()

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
