"""
Why did a job wait?
===================

A recorded run names, for each moment that a job waited, what it waited for and who held it.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure
from ddlsched.engine.outcome import Window
from ddlsched.results.explanation import explain

first = ddlsched.simulate(workload)
job_id = first.jobs.loc[first.jobs["network_wait_s"].idxmax(), "job_id"]
result = ddlsched.simulate(workload, timeline=Window(job_id=job_id))
held = explain(result, job_id).groupby("held_by")["seconds"].sum().nlargest(5)
print(f"job {job_id} waited for:")
print(held)

with in_style():
    figure, axes = new_figure(2.0)
    axes.barh([f"job {job}" for job in held.index], held, color=PALETTE["vermillion"])
    axes.invert_yaxis()
    axes.set_xlabel(f"held what job {job_id} waited for (s)", loc="right")
