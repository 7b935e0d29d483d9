"""
More servers
============

How completion times fall with the size of the cluster.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [8, 16, 32, 64]
results = [ddlsched.simulate(workload, servers=value) for value in values]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Servers of 4 GPUs", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
    axes.minorticks_off()
    axes.grid(axis="y")
