"""
How busy the GPUs are
=====================

The share of GPUs that compute, over time.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
result = ddlsched.simulate(workload)
print(f"{result.summary()['gpu_utilisation']:.1%} over the whole run")
figure = result.plot.utilisation()
