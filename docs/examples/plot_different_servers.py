"""
Servers that differ
===================

Twelve old servers and four fast ones with better cards.
"""

import ddlsched

old = ddlsched.Server(gpus=4, gpu_memory_mb=16000.0)
new = ddlsched.Server(gpus=8, gpu_memory_mb=80000.0, relative_speed=3.0, nic_gbps=100.0)
cluster = ddlsched.Cluster(servers=(old,) * 12 + (new,) * 4)
result = ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=0.02), cluster)
print(result.gpus.groupby("server")["utilisation"].mean().round(3).to_dict())
figure = result.plot.placements()
