"""
Two jobs that meet
==================

Two jobs of three GPUs reach into the middle one of three servers, and share its network card. Where both send at
once, each is slower. A policy that lets one wait delays it once; from then on each sends while the other computes.
"""

from ddlsched import Cluster, DataParallelIteration, Job, Workload, simulate
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

step = DataParallelIteration(forward_s=0.1, backward_s=0.2, message_bytes=125e6)
workload = Workload.of(
    [
        Job(job_id=name, arrival_s=0, num_gpus=3, iterations=4, iteration=step, gpu_memory_mb=20_000)
        for name in ("job A", "job B")
    ]
)
cluster = Cluster(num_servers=3, gpus_per_server=2)
titles = {"bounded-overlap:limit=2": "both may send", "bounded-overlap:limit=1": "one at a time"}

rows = []
for policy, title in titles.items():
    result = simulate(workload, cluster, placement="first-fit", communication=policy, timeline=True)
    rows += [(f"{title}:\n{name}", result.timeline.query("job_id == @name")) for name in ("job A", "job B")]
    print(title, result.jobs["jct_s"].tolist())

with in_style():
    figure, axes = new_figure(2.2, width_inches=4.5)  # read on a phone, too
    for place, (_, lines) in enumerate(rows):
        for kind, colour in (("compute", PALETTE["sky"]), ("transfer", PALETTE["vermillion"])):
            spans_s = lines.loc[lines["kind"] == kind, ["start_ns", "end_ns"]].drop_duplicates().to_numpy() / 1e9
            bars = [(start_s, end_s - start_s) for start_s, end_s in spans_s]
            axes.broken_barh(bars, (place - 0.3, 0.6), color=colour, edgecolor="white", linewidth=0.6)
    axes.set(yticks=range(len(rows)), yticklabels=[label for label, _ in rows], xlabel="Time (s)", xlim=(0, 2.3))
    axes.invert_yaxis()
    axes.legend(["computes", "sends"], loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=2, frameon=False)
