"""
Which path a flow takes
=======================

On a leaf-spine network, flows may be hashed to paths (ECMP) or take the least congested.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
names = ["route", "ecmp", "least-congested"]
network = "leaf-spine:servers_per_leaf=4,oversubscription=4"
results = {name: ddlsched.simulate(workload, topology=network, contention="max-min", path=name) for name in names}
means_s = {name: result.summary()["average_jct_s"] for name, result in results.items()}
print(means_s)

with in_style():
    figure, axes = new_figure(0.7 + 0.25 * len(means_s))
    axes.barh(list(means_s), list(means_s.values()), color=PALETTE["blue"])
    axes.invert_yaxis()
    axes.set_xlabel("Average JCT (s)", loc="right")
    axes.grid(axis="x")
