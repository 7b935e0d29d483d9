"""Charts of the experiment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from ddlsched.comparisons.charts.style import DASHES, PALETTE, in_style, new_panels, save

__all__ = ["growth_chart", "published_chart"]

COLOURS = {
    "central": PALETTE["grey"],
    "published": PALETTE["vermillion"],
    "plan": PALETTE["sky"],
    "plan, staying": PALETTE["blue"],
}
NAMES = {
    "central": "through one host",
    "published": "replica 0 serves all",
    "plan": "plan",
    "plan, staying": "plan, ranks stay with their state",
}

TICKS_S = (1, 3, 10, 30, 100, 300)


@in_style()
def published_chart(found: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw the seconds of the 6.7B model's changes at the stated bandwidths, by scheme."""
    figure, panels = new_panels(2.3, 3, width_inches=7.0)
    for axes, (change, group) in zip(
        panels, found[found["model"] == "6.7B"].groupby("change", sort=False), strict=True
    ):
        seconds = {"central": group["central_s"].iloc[0], **group.set_index("scheme")["transfer_s"]}
        places = np.arange(len(seconds))
        axes.barh(places, list(seconds.values()), color=[COLOURS[scheme] for scheme in seconds], height=0.7)
        for place, value in zip(places, seconds.values(), strict=True):
            axes.annotate(f" {value:.1f}", (value, place), va="center", fontsize=7)
        axes.set_yticks(places, [NAMES[scheme] for scheme in seconds] if axes is panels[0] else [""] * len(seconds))
        axes.invert_yaxis()
        axes.set_xlim(0, 17)
        axes.set_title(f"8 to 16 GPUs, {change} doubled")
        axes.set_xlabel("Transfer (s)")
    return save(figure, stem)


@in_style()
def growth_chart(growth: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw the seconds of doubling a job against its GPUs."""
    figure, panels = new_panels(2.4, 3, width_inches=7.0)
    for axes, (change, group) in zip(panels, growth.groupby("change", sort=False), strict=True):
        for dashes, scheme in zip(DASHES, COLOURS, strict=False):
            axes.plot(
                group["from_gpus"], group[scheme], color=COLOURS[scheme], linestyle=dashes, marker="o", markersize=3
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(group["from_gpus"], [str(gpus) for gpus in group["from_gpus"]])
        axes.set_ylim(1, 500)
        axes.set_yticks(TICKS_S, [f"{tick:g}" for tick in TICKS_S] if axes is panels[0] else [""] * len(TICKS_S))
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.set_title(f"{change} doubled")
        axes.set_xlabel("GPUs before")
    panels[0].set_ylabel("Transfer (s)")
    figure.legend(list(panels[0].lines), [NAMES[scheme] for scheme in COLOURS], loc="outside lower center", ncols=4)
    return save(figure, stem)
