"""
Sharing GPUs, or one job a GPU
==============================

By default jobs share a GPU while its memory holds them. Gavel and Sia give a GPU to one job at a
time; ``exclusive=True`` does so here.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
shared, alone = ddlsched.simulate(workload), ddlsched.simulate(workload, exclusive=True)
for result in (shared, alone):
    jobs = result.jobs
    print(
        result.most_jobs_on_a_gpu,
        "jobs on a GPU;",
        f"average JCT {jobs['jct_s'].mean():.1f} s,",
        f"{jobs['queueing_s'].mean():.1f} s of it in the queue",
    )
figure = alone.plot.phases()
