"""
Backfilling
===========

EASY backfilling lets small jobs go ahead where that delays nobody's reservation; strict order does
not.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
strict = ddlsched.simulate(workload, order="fifo", placement="in-order", exclusive=True)
easy = ddlsched.simulate(workload, order="fifo", placement="easy-backfill:error_sigma=0.5", exclusive=True)
for name, result in {"strict FIFO": strict, "EASY backfilling": easy}.items():
    print(f"{name}: {result.summary()['average_jct_s']:.1f} s, {result.jobs['queueing_s'].mean():.1f} s in the queue")
figure = easy.plot.placements()
