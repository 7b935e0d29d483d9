"""
Which links are busy
====================

``result.links`` has a row a link.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

links = ddlsched.simulate(workload, placement="first-fit").links
print(links.head())

with in_style():
    figure, axes = new_figure(2.2)
    axes.bar(range(len(links)), 100 * links["utilisation"], color=PALETTE["blue"])
    axes.set(xlabel="Server", ylabel="Time its link was used (%)", ylim=(0, 100))
    axes.set_xticks(range(0, len(links), 4))
    axes.grid(axis="y")
