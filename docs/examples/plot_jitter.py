"""
Compute times that vary
=======================

With jitter, the workers of a job wait for the slowest before each all-reduce. On this crowded cluster others use the
GPUs meanwhile, and the average hardly moves.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [0.0, 0.05, 0.1, 0.2, 0.4]
results = [ddlsched.simulate(workload, disturbances=ddlsched.Disturbances(jitter_cv=value)) for value in values]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Coefficient of variation of compute times", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
