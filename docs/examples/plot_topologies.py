"""
Networks between the servers
============================

The same jobs on a star, a two-tier and a three-tier network.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure, wrapped

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
names = ["star", "leaf-spine:servers_per_leaf=4,oversubscription=4", "fat-tree", "clos:rack_oversubscription=2"]
results = {name: ddlsched.simulate(workload, topology=name, contention="max-min") for name in names}
means_s = {name: result.summary()["average_jct_s"] for name, result in results.items()}
print(means_s)

with in_style():
    figure, axes = new_figure(0.7 + 0.4 * len(means_s))
    axes.barh([wrapped(name) for name in means_s], list(means_s.values()), color=PALETTE["blue"])
    axes.invert_yaxis()
    axes.set_xlabel("Average JCT (s)", loc="right")
    axes.grid(axis="x")
