"""
Gradients in buckets
====================

With several buckets, the all-reduce of one overlaps the backward pass that makes the next.
"""

import ddlsched
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure


def jct_s(buckets):
    """Return the completion time of a job of eight GPUs on two servers."""
    work = ddlsched.DataParallelIteration(forward_s=0.02, backward_s=0.04, message_bytes=1e8, buckets=buckets)
    job = ddlsched.Job(job_id="a", arrival_s=0.0, num_gpus=8, iterations=100, iteration=work, gpu_memory_mb=1.0)
    return ddlsched.simulate(ddlsched.Workload.of([job])).jobs.loc[0, "jct_s"]


counts = [1, 2, 4, 8, 16]
times_s = [jct_s(buckets) for buckets in counts]

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(counts, times_s, "o-", color=PALETTE["blue"])
    axes.set(xlabel="Buckets", ylabel="JCT (s)", ylim=(0, None))
    axes.grid(axis="y")
