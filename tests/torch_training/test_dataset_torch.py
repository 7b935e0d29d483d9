"""A rank's share of a data set as a PyTorch dataset."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from worlds import World

from ddlsched.checkpoints.dataset_state import DatasetState
from ddlsched.checkpoints.dataset_views import RankBatches

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_reader_processes_gives_the_same_batches_in_order(world: World, workers: int) -> None:
    import torch
    from torch.utils.data import DataLoader

    from ddlsched.checkpoints.dataset_torch import RankDataset

    state = DatasetState(num_samples=len(world.samples), global_batch=5, consumed_samples=7)
    batches = RankBatches(world.samples, state, rank=1, ranks=2)
    loader = DataLoader(RankDataset(batches), batch_size=None, num_workers=workers)
    read = list(itertools.islice(loader, 8))
    assert all(batch.dtype == torch.int64 for batch in read)
    for number, batch in enumerate(read):
        np.testing.assert_array_equal(batch.numpy(), batches.batch(number))
