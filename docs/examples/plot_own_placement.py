"""
A placement of your own
=======================

This one fills the last servers first.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)


class LastFit:
    """The highest-numbered GPUs that have room."""

    def place(self, job, cluster):
        gpus = cluster.eligible_gpus(job)
        return gpus[-job.num_gpus :]


result = ddlsched.simulate(workload, placement=LastFit(), exclusive=True)
figure = result.plot.placements()
