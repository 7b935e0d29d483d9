"""
Stopping running jobs, at a price
=================================

An order with ``stops`` takes GPUs from jobs that go after those that wait. Going on costs a restart, and on other
servers the state crosses the network. In this workload, which large jobs dominate, it does not pay: a job that goes on
is spread over more servers.
"""

from dataclasses import dataclass

import ddlsched
from ddlsched.policies.stopping import StopsByKey


@dataclass(frozen=True, kw_only=True)
class FewGpusFirst(StopsByKey):
    """Jobs of fewer GPUs first, also before those that run."""

    def key(self, job, now_s):
        return job.num_gpus, job.arrival_ns


workload = ddlsched.microsoft_160(seed=1, scale=0.02)
given = {"exclusive": True, "communication": "bounded-overlap:limit=8", "contention": "max-min"}
price = ddlsched.Disturbances(restart_s=5.0, state_mb=2000)
waits = ddlsched.simulate(workload, order="fifo", **given)
stops = ddlsched.simulate(workload, order=FewGpusFirst(), disturbances=price, **given)
for result in (waits, stops):
    jobs = result.jobs
    print(
        f"{jobs['restarts'].sum()} stops, {jobs['servers'].mean():.2f} servers a job, JCT {jobs['jct_s'].mean():.1f} s"
    )
figure = stops.plot.phases()
