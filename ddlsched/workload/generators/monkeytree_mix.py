"""The mix of large-model training jobs that MonkeyTree was evaluated with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from ddlsched.ranges import check_arguments
from ddlsched.units import ns_from_s
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag
from ddlsched.workload.job import Job, Workload

TENSOR = 8
"""GPUs that share a layer, those of a server."""

_CARD_BYTES_PER_S = 50e9


@dataclass(frozen=True)
class MixedModel:
    """A kind of job.

    Parameters
    ----------
    name
        Of the model and how it is trained.
    compute_s, message_bytes
        Of an iteration: its compute, and what a ring all-reduces.
    weight
        In the mix.
    rings
        Of a stage: 1 over all its GPUs, or one for each GPU of a server.
    stages
        Of a pipeline.
    """

    name: str
    compute_s: float
    message_bytes: float
    weight: float
    rings: int = 1
    stages: int = 1

    @property
    def sizes(self) -> range:
        """Numbers of GPUs: whole servers, from 16 to 64, two or more servers a stage."""
        step = TENSOR if self.stages == 1 else 2 * TENSOR * self.stages
        return range(max(2 * TENSOR * self.stages, 16), 65, step)

    def alone_s(self, num_gpus: int) -> float:
        """Return the time of an iteration alone, with a card of 400 Gbit/s a GPU, seconds."""
        members = num_gpus // self.stages // self.rings
        return self.compute_s + 2 * (members - 1) / members * self.message_bytes / _CARD_BYTES_PER_S

    @cache  # noqa: B019 - of some kinds of jobs and sizes
    def iteration(self, num_gpus: int) -> IterationDag:
        """Return the iteration: compute, then every ring of every stage at once."""
        compute = ComputeTask(name="compute", duration_ns=ns_from_s(self.compute_s))
        if self.rings == 1:
            reduce = AllReduceTask(name="all-reduce", message_bytes=self.message_bytes, after=("compute",))
            return IterationDag((compute, reduce))
        per_stage = num_gpus // self.stages
        rings = tuple(
            tuple(range(stage * per_stage + first, (stage + 1) * per_stage, self.rings))
            for stage in range(self.stages)
            for first in range(self.rings)
        )
        grouped = CollectiveTask(
            name="all-reduce", kind="all-reduce", message_bytes=self.message_bytes, after=("compute",), group="data"
        )
        return IterationDag((compute, grouped), {"data": rings})


MODELS = (
    MixedModel("llama2-70b-fsdp", 2.378, 137.43e9, 25),
    MixedModel("llama2-70b-tp", 0.341, 17.18e9, 100, rings=TENSOR),
    MixedModel("llama2-70b-tp-pp2", 9 * 0.172, 8.59e9, 25, rings=TENSOR, stages=2),
    MixedModel("llama2-70b-tp-pp4", 11 * 0.086, 4.295e9, 25, rings=TENSOR, stages=4),
    MixedModel("llama3-70b-fsdp", 2.378 * 0.743 / 0.341, 137.43e9, 25),
    MixedModel("llama3-70b-tp", 0.743, 17.18e9, 100, rings=TENSOR),
    MixedModel("gpt-7b", 0.113, 13e9, 25),
    MixedModel("gpt-13b", 0.215, 26e9, 25),
)
"""As far as they are published. Assumed: the compute of llama3-70b-fsdp, as much more than llama2's as with tensor
parallelism; a pipeline's compute, its micro-batches of 30 and 56 ms plus its fill; two stages of twice four's layers.
Left out: two mixtures of experts, together 2 of 352 jobs, and the activations that pipelines send, 8 x 8.4 MB.
"""


def monkeytree_mix(
    *, seed: int, jobs: int = 300, load: float = 1.0, gpus: int = 1024, scale: float = 1.0, most_gpus: int = 64
) -> Workload:
    """Return jobs that arrive as a Poisson process, as fast as ``gpus`` could serve them alone x ``load``.

    A GPU is a server of its own, with its own card: give ``--topology monkeytree:servers_per_rack=64 --gpus-per-server
    1``.

    Parameters
    ----------
    seed
        Of numpy's PCG64; the same seed gives the same jobs.
    jobs
        How many there are.
    gpus
        How many GPUs they are for.
    load
        Mean GPU time of a job x arrivals a second / GPUs.
    scale
        Multiplies iterations, 100 to 1,000 a job.
    most_gpus
        Larger sizes are left out, and models that have no smaller.

    Raises
    ------
    InputError
        A value out of range.
    """
    check_arguments("monkeytree-mix", seed=(seed, 0), jobs=(jobs, 1), gpus=(gpus, 16), most_gpus=(most_gpus, 16))
    check_arguments("monkeytree-mix", load=(load, 1e-9, 100.0), scale=(scale, 0.01, 100.0))
    rng = np.random.default_rng(seed)
    models = [model for model in MODELS if model.sizes[0] <= most_gpus]
    weights = np.array([model.weight for model in models])
    drawn = [models[place] for place in rng.choice(len(models), jobs, p=weights / weights.sum())]
    sizes = [int(rng.choice([size for size in model.sizes if size <= most_gpus])) for model in drawn]
    iterations = rng.integers(max(round(100 * scale), 1), max(round(1000 * scale), 1), size=jobs, endpoint=True)
    alone_s = np.array([model.alone_s(size) for model, size in zip(drawn, sizes, strict=True)]) * iterations
    gap_s = float((alone_s * sizes).mean()) / (gpus * load)
    arrivals_s = np.cumsum(rng.exponential(gap_s, jobs)).round(9)
    rows = zip(drawn, sizes, iterations.tolist(), arrivals_s.tolist(), strict=True)
    return Workload(tuple(_job(number, *row) for number, row in enumerate(rows)))


def _job(number: int, model: MixedModel, num_gpus: int, iterations: int, arrival_s: float) -> Job:
    return Job(
        job_id=str(number),
        arrival_s=arrival_s,
        num_gpus=num_gpus,
        iterations=iterations,
        iteration=model.iteration(num_gpus),
        gpu_memory_mb=1.0,
        model=model.name,
    )
