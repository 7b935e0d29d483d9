"""
Collectives over groups of workers
==================================

Two stages of a pipeline, each of two tensor-parallel workers, on a host whose inside takes time: one iteration.
"""

import ddlsched
from ddlsched import CollectiveTask, ComputeTask, IterationDag
from ddlsched.comparisons.charts.training_charts import step_chart

groups = {"first": [[0, 1]], "second": [[2, 3]], "tensor": [[0, 1], [2, 3]], "next": [[0, 2], [1, 3]]}
tasks = (
    ComputeTask(name="one", duration_ns=3_000_000, group="first"),
    CollectiveTask(name="send", kind="send", message_bytes=400e6, group="next", after=("one",)),
    ComputeTask(name="two", duration_ns=5_000_000, group="second", after=("send",)),
    CollectiveTask(name="reduce", kind="all-reduce", message_bytes=800e6, group="tensor", after=("one", "two")),
)
iteration = IterationDag(tasks, groups)
job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=4, iterations=10, iteration=iteration, gpu_memory_mb=4000)
host = ddlsched.Cluster(num_servers=1, gpus_per_server=8, topology="rail-optimised:nvlink_gbps=3600")
result = ddlsched.simulate(ddlsched.Workload.of([job]), host, contention="max-min", timeline=True)
print(f"{1000 * result.jobs['jct_s'].item() / 10:.2f} ms an iteration")
figure = step_chart(result, "a")
