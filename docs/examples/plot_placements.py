"""
Which job was on which GPU
==========================

A row a GPU; jobs that share a GPU share its row.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
result = ddlsched.simulate(workload, exclusive=True)
figure = result.plot.placements()
