"""
The inside of servers
=====================

With ``nvlink_gbps`` an all-reduce inside a server takes time, and GPUs use their own network cards.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure

iteration = ddlsched.DataParallelIteration(forward_s=0.0, backward_s=0.001, message_bytes=1e9)
times_ms = {}
for name in ("rail-optimised", "rail-optimised:nvlink_gbps=3600", "rail-optimised:nvlink_gbps=2400"):
    for gpus in (8, 16, 32):
        job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=gpus, iterations=1, iteration=iteration, gpu_memory_mb=1)
        hosts = ddlsched.Cluster(num_servers=4, gpus_per_server=8, topology=name)
        result = ddlsched.simulate(ddlsched.Workload.of([job]), hosts, contention="max-min")
        times_ms[f"{name.partition(':')[2] or 'inside free'}, {gpus} GPUs"] = (
            1000 * result.jobs["communication_s"].item()
        )
print(times_ms)

with in_style():
    figure, axes = new_figure(0.7 + 0.25 * len(times_ms))
    axes.barh(list(times_ms), list(times_ms.values()), color=PALETTE["blue"])
    axes.invert_yaxis()
    axes.set_xlabel("All-reduce of 1 GB (ms)", loc="right")
