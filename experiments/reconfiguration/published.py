"""What was published of Tenplex (arXiv 2312.05181): models, sizes and seconds."""

from __future__ import annotations

from typing import NamedTuple

from ddlsched.checkpoints.collection import StoredParallelism
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Tensor

HOSTS = 4
GPUS_PER_HOST = 4
FROM = StoredParallelism(tp=4, pp=2, dp=1)

MODELS = {
    "XL": (StoredTransformer(num_layers=24, hidden=2064, heads=24, vocabulary=50257, positions=1024), 20.2),
    "2.7B": (StoredTransformer(num_layers=32, hidden=2560, heads=32, vocabulary=50257, positions=1024), 39.0),
    "6.7B": (StoredTransformer(num_layers=32, hidden=4096, heads=32, vocabulary=50257, positions=1024), 96.3),
}
"""Model, and the published size of its checkpoint at (4,2,1), GB."""


class Change(NamedTuple):
    """A change from FROM on 8 GPUs to 16, with the seconds of Tenplex and those through one central host."""

    name: str
    to: StoredParallelism
    tenplex_s: dict[str, float]
    central_s: dict[str, float]


RESIZES = (
    Change(
        "DP",
        StoredParallelism(tp=4, pp=2, dp=2),
        {"XL": 8.5, "2.7B": 11.5, "6.7B": 24.2},
        {"XL": 27.2, "2.7B": 39.0, "6.7B": 96.1},
    ),
    Change(
        "TP",
        StoredParallelism(tp=8, pp=2, dp=1),
        {"XL": 7.4, "2.7B": 10.5, "6.7B": 20.2},
        {"XL": 20.4, "2.7B": 28.5, "6.7B": 74.0},
    ),
    Change(
        "PP",
        StoredParallelism(tp=4, pp=4, dp=1),
        {"XL": 4.6, "2.7B": 5.9, "6.7B": 10.8},
        {"XL": 4.6, "2.7B": 18.2, "6.7B": 38.0},
    ),
)

FAILURES = {4: (23.5, 383.5), 8: (19.6, 379.6), 12: (379.6, 379.6)}
"""GPUs of 16 that fail: seconds with Tenplex, and from the last checkpoint."""


def tensors_of(model: str) -> tuple[Tensor, ...]:
    """Return weights in 2 bytes, master weights and Adam's moments: 14 bytes a parameter."""
    return job_tensors(MODELS[model][0], optimiser=Optimiser())
