"""Jobs of today's language models, by ``ddlsched estimate``: no published step of their models on H100s is known."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from ddlsched import DataParallelIteration, Job
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.estimated_jobs import job_of
from ddlsched.training.estimate.parallel_layout import Parallelism
from ddlsched.training.estimate.presets import MODELS

SERVER_GPUS = 8
"""Of an H100 server."""
SHORTEST_S, LONGEST_S = 120.0, 14_400.0
"""A job's time alone is drawn between these, uniformly in its logarithm."""


class Trained(NamedTuple):
    """A model on so many H100s.

    Parameters
    ----------
    model
        A name that ``estimate`` knows.
    gpus
        Of the job; 8 of them are a server's.
    weight
        In the mix: shares of the jobs, assumed.
    samples_per_gpu
        Of a step's batch: sequences of the model's full length; assumed.
    plan
        Of tensor, pipeline and expert parallelism and the micro-batch, where they are not 1.
    """

    model: str
    gpus: int
    weight: float
    samples_per_gpu: int = 1
    plan: tuple[tuple[str, int], ...] = ()


_DEEP = (("tensor", 8), ("pipeline", 4))
LLM_CLUSTER = (
    *(Trained("llama-3-8b", gpus, weight, 2) for gpus, weight in ((8, 25), (16, 20), (32, 15))),
    *(Trained("llama-2-13b", gpus, weight, plan=(("tensor", 2),)) for gpus, weight in ((32, 10), (64, 8))),
    Trained("qwen3-30b-a3b", 64, 8, plan=(("expert", 8),)),
    *(Trained("llama-3-70b", gpus, weight, plan=_DEEP) for gpus, weight in ((128, 10), (256, 4))),
)
"""Training and further training on a cluster of 1,024 GPUs."""
FINE_TUNING = (
    *(Trained("bert-large", gpus, 10, 32, (("micro_batch", 8),)) for gpus in (1, 2, 4)),
    *(Trained("gpt3-350m", gpus, 8, 16, (("micro_batch", 4),)) for gpus in (1, 4, 8)),
    *(Trained("gpt3-1.3b", gpus, 6, 8, (("micro_batch", 2),)) for gpus in (4, 8)),
    *(Trained("llama-3-8b", gpus, weight, 2) for gpus, weight in ((8, 14), (16, 10))),
    *(Trained("llama-2-13b", gpus, 5, 2, (("tensor", 2),)) for gpus in (16, 32)),
)
"""Fine-tuning and small jobs."""
MIXES = {"llm": LLM_CLUSTER, "fine-tuning": FINE_TUNING}


@lru_cache
def estimated(kind: Trained) -> tuple[float, float, float]:
    """Return the compute of a step (s), what its ring all-reduces (bytes), and the memory a GPU (MB).

    Traffic of tensor, pipeline and expert parallelism counts as compute, at the estimate's time. So does what a job of
    one server reduces there, wherever it runs; between servers it sends its gradients, too.
    """
    given: dict[str, Any] = {"micro_batch": 1} | dict(kind.plan)
    data = kind.gpus // (given.get("tensor", 1) * given.get("pipeline", 1))
    batch = kind.gpus * kind.samples_per_gpu
    plan = Parallelism(data=data, global_batch=batch, zero=1, recompute="full", **given)
    made = partial(job_of, MODELS[kind.model], plan, job_id="one", iterations=1)
    whole = spread = made(parse_cluster("h100").machine(kind.gpus))
    if kind.gpus <= SERVER_GPUS:
        spread = made(parse_cluster("h100:gpus_per_node=1").machine(kind.gpus))
    return whole.compute_ns / 1e9, spread.dag.message_bytes, whole.gpu_memory_mb


def language_model_jobs(mix: str, jobs: int, rng: np.random.Generator) -> list[Job]:
    """Return jobs that all arrive at once."""
    kinds = MIXES[mix]
    weights = np.array([kind.weight for kind in kinds])
    drawn = rng.choice(len(kinds), size=jobs, p=weights / weights.sum()).tolist()
    run_s = np.exp(rng.uniform(np.log(SHORTEST_S), np.log(LONGEST_S), size=jobs))
    made = []
    for number, place in enumerate(drawn):
        step_s, message_bytes, memory_mb = estimated(kinds[place])
        iteration = DataParallelIteration(forward_s=step_s / 3, backward_s=step_s * 2 / 3, message_bytes=message_bytes)
        made.append(
            Job(
                job_id=str(number),
                arrival_s=0.0,
                num_gpus=kinds[place].gpus,
                iterations=max(1, round(run_s[number] / step_s)),
                iteration=iteration,
                gpu_memory_mb=memory_mb,
                model=kinds[place].model,
            )
        )
    return made
