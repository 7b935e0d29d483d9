"""
Servers that fail
=================

Failures send jobs back to the queue; what they had done since the last iteration is lost.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
unlucky = ddlsched.Disturbances(server_mtbf_s=60.0, server_repair_s=5.0, restart_s=1.0)
result = ddlsched.simulate(workload, disturbances=unlucky, seed=1)
print(int(result.summary()["restarts"]), "restarts;", f"{result.jobs['lost_s'].sum():.1f} s of work lost")
figure = result.plot.phases()
