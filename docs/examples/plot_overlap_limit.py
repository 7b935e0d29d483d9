"""
How many transfers may overlap
==============================

``bounded-overlap`` starts a transfer only beside fewer than ``limit`` others on its links.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [1, 2, 3, 4, 8]
results = [ddlsched.simulate(workload, communication=f"bounded-overlap:limit={value}") for value in values]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Limit (transfers on a link)", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
