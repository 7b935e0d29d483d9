"""
Jobs of your own
================

A workload from a table, a row a job.
"""

import pandas as pd

import ddlsched

table = pd.DataFrame(
    {
        "job_id": ["a", "b", "c"],
        "arrival_s": [0.0, 1.0, 2.0],
        "gpus": [8, 4, 2],
        "iterations": [100, 200, 300],
        "forward_s": 0.02,
        "backward_s": 0.04,
        "message_bytes": 1e8,
        "gpu_memory_mb": 8000.0,
    }
)
workload = ddlsched.Workload.from_frame(table)
print(workload)
result = ddlsched.simulate(workload, servers=4, gpus_per_server=2)
print(result.jobs[["job_id", "start_s", "jct_s", "network_wait_s"]])
figure = result.plot.placements()
