"""
Moving running jobs
===================

A placement with ``moves`` may give a running job other GPUs when its iteration ends. This one gathers jobs that are
spread over servers as soon as one has room.
"""

from dataclasses import dataclass

import ddlsched


@dataclass(frozen=True, kw_only=True)
class Gather:
    """First fit; a job on several servers moves to one that has room."""

    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[: job.num_gpus] if len(gpus) >= job.num_gpus else None

    def moves(self, running, cluster):
        for job in (job for job in running if len(job.servers) > 1):
            free = cluster.eligible_gpus(job)
            for server in range(cluster.num_servers):
                room = [gpu for gpu in free if cluster.server_of(gpu) == server][: job.num_gpus]
                if len(room) == job.num_gpus:
                    return [(job, room)]
        return []


workload = ddlsched.microsoft_160(seed=1, scale=0.02)
price = ddlsched.Disturbances(restart_s=1.0, state_mb=2000)
given = {"exclusive": True, "communication": "bounded-overlap:limit=8", "contention": "max-min"}
gathered = ddlsched.simulate(workload, placement=Gather(), disturbances=price, **given)
stays = ddlsched.simulate(workload, placement="first-fit", **given)
for result in (stays, gathered):
    print(f"{result.jobs['restarts'].sum()} moves, average JCT {result.summary()['average_jct_s']:.1f} s")
figure = gathered.plot.placements()
