"""
Kinds of GPUs
=============

A matrix says how fast each model trains on each kind; a placement sees it as ``cluster.speed(job, gpu)``.
"""

from dataclasses import dataclass, replace

import ddlsched
from ddlsched.cluster.cluster import Throughputs


@dataclass(frozen=True, kw_only=True)
class FastestFirst:
    """The free GPUs on which the job is fastest."""

    def place(self, job, cluster):
        gpus = sorted(cluster.eligible_gpus(job), key=lambda gpu: -cluster.speed(job, gpu))
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None


workload = ddlsched.microsoft_160(seed=1, scale=0.02)
models = sorted({job.model for job in workload})
rows = [(model, kind, v) for n, model in enumerate(models) for kind, v in (("new", 2.0 + n % 3), ("old", 1.0))]
servers = [ddlsched.Server(gpu_kind=kind) for kind in ("old", "new") for _ in range(8)]
cluster = ddlsched.Cluster(servers=servers, exclusive=True, throughputs=Throughputs(values=tuple(rows)))
blind = ddlsched.simulate(workload, cluster, placement="first-fit")
aware = ddlsched.simulate(workload, cluster, placement=FastestFirst())
alike = ddlsched.simulate(workload, replace(cluster, throughputs=None), placement="first-fit")
for result in (alike, blind, aware):
    print(f"average JCT {result.summary()['average_jct_s']:.1f} s")
figure = aware.plot.utilisation()
