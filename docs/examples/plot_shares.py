"""
Shares that follow the bytes sent
=================================

A contention model's ``weight`` may read what a transfer has sent; ``mltcp`` gives more to those further along, and so
does this one, in two steps.
"""

from dataclasses import dataclass

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure
from ddlsched.network.contention import MaxMin


@dataclass(frozen=True, kw_only=True)
class NearlyDoneFaster(MaxMin):
    """Once half of its message is sent, a transfer gets three times the share."""

    message_parts: int = 2

    def weight(self, transfer):
        return 3.0 if round(transfer.bytes_left) <= transfer.message_bytes / 2 else 1.0


workload = ddlsched.microsoft_160(seed=1, scale=0.02)
overlap = "bounded-overlap:limit=8"
models = {"max-min": "max-min", "mltcp": "mltcp", "mine": NearlyDoneFaster(), "strict": "strict-levels:by=gpus,first=4"}
results = {name: ddlsched.simulate(workload, communication=overlap, contention=each) for name, each in models.items()}
means_s = {name: result.summary()["average_jct_s"] for name, result in results.items()}
print(means_s)

with in_style():
    figure, axes = new_figure(0.7 + 0.25 * len(means_s))
    axes.barh(list(means_s), list(means_s.values()), color=PALETTE["blue"])
    axes.invert_yaxis()
    axes.set_xlabel("Average JCT (s)", loc="right")
