"""
Where a training step's time goes
=================================

The training-time model, without a simulation: GPT-3 175B on 128 H100s.
"""

from ddlsched.comparisons.charts.style import PALETTE, in_style, new_figure
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import estimate_checked

model = MODELS["gpt3-175b"]
steps_s = {}
for batch in (64, 128, 256, 512):
    plan = Parallelism(tensor=8, pipeline=8, data=2, micro_batch=1, global_batch=batch, recompute="full")
    steps_s[batch] = float(estimate_checked(model, plan, parse_cluster("h100").machine(128)).step_s)
print(steps_s)

with in_style():
    figure, axes = new_figure(2.2)
    axes.plot(list(steps_s), [batch / step for batch, step in steps_s.items()], "o-", color=PALETTE["blue"])
    axes.set(xlabel="Global batch (sequences)", ylabel="Sequences a second", ylim=(0, None))
    axes.grid(axis="y")
