"""A rank's share of a data set as a PyTorch dataset; needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddlsched.errors import InputError

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    raise InputError("a PyTorch dataset needs torch: pip install torch") from None

import numpy as np

if TYPE_CHECKING:
    from ddlsched.checkpoints.dataset_views import RankBatches


class RankDataset(IterableDataset[Any]):
    """The batches of :class:`RankBatches`, tokens as int64 tensors; without end.

    To be read by ``DataLoader(dataset, batch_size=None, num_workers=...)``: an item is already a batch, and the batches
    come in the same order from any number of worker processes.
    """

    def __init__(self, batches: RankBatches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's part of global batch after global batch."""
        worker = get_worker_info()
        place, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for batch in self.batches.every(place, workers):
            yield torch.from_numpy(batch) if isinstance(batch, np.ndarray) else batch
