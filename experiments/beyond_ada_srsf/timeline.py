"""What GPUs and links do under SRSF(1) with LWF-1 and under Block-SRTF: a picture, and the figures of its window.

python experiments/beyond_ada_srsf/timeline.py            held seed 1 at full size, 3 s of it
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from run import BASELINES, BLOCKS, NEW

import ddlsched
from ddlsched.comparisons.charts.style import IDLE, INK, JOB_COLOURS, in_style, save, shown_figure
from ddlsched.results.paired_comparison import markdown
from ddlsched.results.result import Result
from ddlsched.results.slices import compute_slices, transfer_slices
from ddlsched.units import NS_PER_S

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLICIES = {"SRSF(1), LWF-1": BASELINES["SRSF(1)"], NEW: BLOCKS}
SEED, FROM_S, TO_S, SERVERS = 1, 1500.0, 1503.0, 8
LINK_HEIGHT, GAP = 2.4, 1.0
"""Of a link's row, and of what is left between servers, in rows of a GPU."""
ONE_SERVER = "#a9a9a3"
"""The colour of jobs that stay on one server."""
ONE_TRANSFER = ["job_id", "task", "iteration"]


def slices(result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what GPUs computed, and what each link sent, in the window: start_s and end_s, cut at its ends."""
    compute, sent = compute_slices(result), transfer_slices(result)
    for table in (compute, sent):
        for name in ("start", "end"):
            table[f"{name}_s"] = (table[f"{name}_ns"] / NS_PER_S).clip(FROM_S, TO_S)
    compute, sent = (table[table["end_s"] > table["start_s"]] for table in (compute, sent))
    return compute, sent.explode("links").rename(columns={"links": "link"}).reset_index(drop=True)


def pauses(sent: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each link and pause of a transfer: job_id, link, start_s and end_s of the pause."""
    sent = sent.sort_values("start_s")
    goes_on_s = sent.groupby([*ONE_TRANSFER, "link"])["start_s"].shift(-1)
    paused = sent.assign(start_s=sent["end_s"], end_s=goes_on_s)
    return paused[paused["end_s"] > paused["start_s"]]


def spanning(result: Result) -> dict[str, frozenset[int]]:
    """Return the servers of each job on several that runs in the window."""
    jobs = result.jobs[(result.jobs["start_s"] < TO_S) & (result.jobs["finish_s"] > FROM_S)]
    server_of = result.cluster.server_of_gpu
    servers = {job: frozenset(int(server_of[gpu]) for gpu in result.gpus_of(job)) for job in jobs["job_id"]}
    return {job: found for job, found in servers.items() if len(found) > 1}


def figures(result: Result) -> dict[str, str]:
    """Return the figures of the window, over the whole cluster."""
    compute, sent = slices(result)
    servers = spanning(result)
    meeting = [(a, b) for a, b in combinations(servers.values(), 2) if a & b]
    computed_s, sent_s = ((table["end_s"] - table["start_s"]).sum() for table in (compute, sent))
    interrupted = pauses(sent).drop_duplicates([*ONE_TRANSFER, "start_s"])
    return {
        "jobs finished before": f"{(result.jobs['finish_s'] <= FROM_S).sum()}",
        "jobs on several servers": f"{len(servers)}",
        "pairs of them that share links": f"{len(meeting)}",
        "of which cross": f"{sum(not (a <= b or b <= a) for a, b in meeting)}",
        "GPUs computing (%)": f"{100 * computed_s / (result.cluster.num_gpus * (TO_S - FROM_S)):.0f}",
        "GPUs with a job, none of which computes": f"{len(_idle(result, compute))}",
        "links sending (%)": f"{100 * sent_s / (result.cluster.num_servers * (TO_S - FROM_S)):.0f}",
        "interruptions of transfers": f"{len(interrupted)}",
    }


def _idle(result: Result, compute: pd.DataFrame) -> set[int]:
    """Return the GPUs that have jobs through the whole window and compute for none."""
    there = result.jobs[(result.jobs["start_s"] <= FROM_S) & (result.jobs["finish_s"] >= TO_S)]
    return {gpu for job in there["job_id"] for gpu in result.gpus_of(job)} - set(compute["gpu"])


@in_style()
def picture(results: dict[str, Result]) -> Figure:
    """Return a column a policy: of each of the first servers a row a GPU and, under them, one for its link."""
    figure = shown_figure(7.2, 7.4)
    panels = figure.subplots(1, len(results), sharey=True)
    height = next(iter(results.values())).cluster.gpus_per_server + LINK_HEIGHT + GAP
    for axes, (policy, result) in zip(panels, results.items(), strict=True):
        _draw(axes, result, height)
        axes.set_title(policy, loc="left")
        axes.set_xlabel("Time (s)", loc="right")
        axes.locator_params(axis="x", nbins=4, integer=True)
    panels[0].set_yticks([server * height + 2.0 for server in range(SERVERS)], [f"server {s}" for s in range(SERVERS)])
    figure.legend(**_legend(), loc="outside lower left", ncols=2)
    return figure


def _draw(axes: Axes, result: Result, height: float) -> None:
    compute, sent = slices(result)
    compute = compute[compute["gpu"] < result.cluster.first_gpus[SERVERS]]
    sent = sent[sent["link"] < SERVERS]
    paused = pauses(sent)
    shown = sorted({*compute["job_id"], *sent["job_id"]} & set(spanning(result)), key=int)
    shade = {job: JOB_COLOURS[place % len(JOB_COLOURS)] for place, job in enumerate(shown)}
    for server in range(SERVERS):
        top, first = server * height, result.cluster.first_gpus
        gpus = range(first[server], first[server + 1])
        for place, gpu in enumerate(gpus):
            _bars(axes, compute[compute["gpu"] == gpu], shade, top + place, 0.85)
        top += len(gpus) + 0.15
        axes.fill_between([FROM_S, TO_S], top, top + LINK_HEIGHT, color=IDLE, linewidth=0)
        own = sent[sent["link"] == server]
        _bars(axes, paused[paused["link"] == server], shade, top + 0.45 * LINK_HEIGHT, 0.1 * LINK_HEIGHT)
        _bars(axes, own, shade, top, LINK_HEIGHT, edgecolor=INK, linewidth=0.3)
        for job, start_s, end_s in zip(own["job_id"], own["start_s"], own["end_s"], strict=True):
            if end_s - start_s > 0.05 * len(job):  # wide enough for the text
                axes.text((start_s + end_s) / 2, top + LINK_HEIGHT / 2, job, ha="center", va="center_baseline", size=5)
    axes.set(xlim=(FROM_S, TO_S), ylim=(SERVERS * height - GAP + 0.5, -0.5))
    axes.tick_params(axis="y", length=0)


def _bars(
    axes: Axes, table: pd.DataFrame, shade: dict[str, str], top: float, height: float, **style: float | str
) -> None:
    spans = list(zip(table["start_s"], table["end_s"] - table["start_s"], strict=True))
    colours = [shade.get(job, ONE_SERVER) for job in table["job_id"]]
    axes.broken_barh(spans, (top, height), facecolors=colours, **{"linewidth": 0.0, **style})


def _legend() -> dict[str, list[Any]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = {
        "thin rows, a GPU each: compute of a job on one server": Patch(color=ONE_SERVER),
        "compute of a job on several servers, a colour each": Patch(color=JOB_COLOURS[0]),
        "thick row, the server's link: transfer of a job (number if it fits)": Patch(
            facecolor=JOB_COLOURS[0], edgecolor=INK
        ),
        "line in it: the transfer is interrupted": Line2D([], [], color=JOB_COLOURS[0], linewidth=2),
    }
    return {"handles": list(rows.values()), "labels": list(rows)}


def main() -> int:
    """Simulate both, print the figures and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/beyond_ada_srsf"), metavar="DIR", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    workload = ddlsched.microsoft_160(seed=SEED)
    results = {
        policy: ddlsched.simulate(workload, seed=SEED, timeline=(FROM_S, TO_S), **options)
        for policy, options in POLICIES.items()
    }
    found = {policy: figures(result) for policy, result in results.items()}
    print(f"## {FROM_S:.0f} to {TO_S:.0f} s of held seed {SEED} at full size\n")
    print(markdown([{"": name} | {p: found[p][name] for p in POLICIES} for name in found[NEW]]))
    print("\nPicture:", *save(picture(results), arguments.out / "charts" / "timeline"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
