"""
Contention models
=================

How transfers that share a link slow each other down is a plug-in too.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
names = ["linear", "equal-share", "max-min", "1gbe"]
results = {name: ddlsched.simulate(workload, contention=name) for name in names}
means_s = {name: result.summary()["average_jct_s"] for name, result in results.items()}
print(means_s)

with in_style():
    figure, axes = new_figure(0.7 + 0.25 * len(means_s))
    axes.barh(list(means_s), list(means_s.values()), color=PALETTE["blue"])
    axes.invert_yaxis()
    axes.set_xlabel("Average JCT (s)", loc="right")
    axes.grid(axis="x")
