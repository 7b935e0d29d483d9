"""
What one run is worth
=====================

Lengths that differ by a hair (0.1 %, or one iteration) give another average JCT, since jobs that end in another order
leave other GPUs. Each dot is a run of the same 160 jobs: one dot of each policy says little of which is better.
"""

import ddlsched
from ddlsched.comparisons.charts.style import in_style, new_figure
from ddlsched.simulation import drawn

workload = ddlsched.microsoft_160(seed=3, scale=0.02)
averages_s = {
    name: [
        ddlsched.simulate(drawn(workload, draw), scheduler=name, exclusive=True).summary()["average_jct_s"]
        for draw in range(1, 21)
    ]
    for name in ("srsf-1", "srsf-2", "ada-srsf")
}
for name, each_s in averages_s.items():
    print(f"{name}: {min(each_s):.1f} to {max(each_s):.1f} s, mean {sum(each_s) / len(each_s):.1f} s")

with in_style():
    figure, axes = new_figure(1.6)
    for row, each_s in enumerate(averages_s.values()):
        axes.plot(each_s, [row] * len(each_s), "o", alpha=0.5)
        axes.plot(sum(each_s) / len(each_s), row, "k|", markersize=18)
    axes.set_yticks(range(len(averages_s)), list(averages_s))
    axes.set_ylim(2.6, -0.6)
    axes.set_xlabel("Average JCT of a run (s); line: mean of 20 runs", loc="right")
