"""
A first run
===========

160 jobs on 64 GPUs, and how long they took.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
result = ddlsched.simulate(workload, scheduler="ada-srsf")
print(result)
figure = result.plot.jct()
