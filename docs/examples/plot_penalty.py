"""
What sharing a link costs beside the share
==========================================

The linear model's penalty (η) is the extra time of a byte for each further transfer on a link.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
values = [0.0, 1e-10, 2.35e-10, 5e-10, 1e-9]
models = [f"linear:per_byte_s=8.56e-10,penalty_per_byte_s={value}" for value in values]
results = [ddlsched.simulate(workload, contention=model) for model in models]
means_s = [result.summary()["average_jct_s"] for result in results]
print(means_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(values, means_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Penalty (s/B)", ylabel="Average JCT (s)")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
