"""
An order of your own
====================

A policy is a class with one method; this order prefers jobs of few GPUs.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
from dataclasses import dataclass


@dataclass(frozen=True)
class FewestGpusFirst:
    """Jobs of fewer GPUs first, then by arrival."""

    def key(self, job, now_s):
        return job.num_gpus, job.arrival_s


mine = ddlsched.simulate(workload, order=FewestGpusFirst(), exclusive=True)
theirs = ddlsched.simulate(workload, order="srsf", exclusive=True)
print(f"mine {mine.summary()['average_jct_s']:.1f} s, SRSF {theirs.summary()['average_jct_s']:.1f} s")
figure = mine.plot.phases()
