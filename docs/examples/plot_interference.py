"""
Jobs that slow each other on a GPU
==================================

A penalty for every job that shares a GPU.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [0.0, 0.1, 0.3, 0.6, 1.0]
results = [ddlsched.simulate(workload, interference=f"uniform:share={value}") for value in values]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Longer by this share for each other job", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
