"""The simulator's policies, unmodified, over real jobs: who is placed where, who sends, who computes.

The gate is one process. It hears from each rank (the process of a job on a server) what is ready and what has ended,
asks the policies on the views that a simulation gives them, and tells ranks what to do. It knows neither how bytes
move nor how ranks came to be: :mod:`ddlsched.real.testbed` runs workloads behind it, :mod:`ddlsched.real.torch` a
user's own training script.

Messages, one JSON object a line. A rank says ``ready`` (task, iteration, message_bytes), ``sent`` (task, iteration,
chunk), ``compute`` (task, gpu), ``computed`` (task, gpus, late_ns), ``iterated`` (iteration), ``pong``, ``failed``
(error). It is told ``send`` (task, iteration, chunk, chunks), ``compute`` (task, gpu), ``ping``.
"""
