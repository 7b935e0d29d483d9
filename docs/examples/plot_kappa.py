"""
LWF's kappa
===========

LWF puts a job on the least loaded GPUs, but jobs of more than kappa GPUs on as few servers as they
fit.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [1, 2, 4, 8, 16, 32]
results = [ddlsched.simulate(workload, placement=f"lwf:kappa={value}") for value in values]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="kappa (GPUs)", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values], minor=False)
    axes.minorticks_off()
    axes.grid(axis="y")
