"""
Where the time of jobs goes
===========================

Queue, computing, waiting for GPUs and for the network: the phases of a job add up to its completion
time (JCT).
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
result = ddlsched.simulate(workload)
print(result.jobs[["gpus", "jct_s", "computing_s", "communication_s", "network_wait_s"]].describe().round(2))
figure = result.plot.phases()
