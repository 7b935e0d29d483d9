"""What ``resharding.py`` runs for its row of PyTorch: DTensors over gloo through torch.distributed.checkpoint.

The task comes as JSON on stdin: the folders, the number of processes, and the tensors. If the source is no distributed
checkpoint, one of random tensors is saved instead. The library syncs its files.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}


def state(tensors: list[dict], ranks: int, rank: int, *, filled: bool) -> dict[str, DTensor]:
    mesh = init_device_mesh("cpu", (ranks,))
    generator = torch.Generator().manual_seed(rank)
    found = {}
    for tensor in tensors:
        shape, dim = list(tensor["shape"]), tensor["dim"]
        if dim >= 0:
            shape[dim] //= ranks
        local = torch.empty(shape, dtype=DTYPES[tensor["dtype"]])
        if filled and local.is_floating_point():
            local.normal_(generator=generator)
        placement = Shard(dim) if dim >= 0 else Replicate()
        found[tensor["name"]] = DTensor.from_local(local, mesh, [placement], run_check=False)
    return found


def run(rank: int, ranks: int, store: str, task: dict) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    is_there = (Path(task["source"]) / ".metadata").exists()
    held = state(task["tensors"], ranks, rank, filled=not is_there)
    if is_there:
        dcp.load(held, checkpoint_id=task["source"])
    dcp.save(held, checkpoint_id=task["target"])
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    task = json.load(sys.stdin)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (task["ranks"], f"{folder}/store", task), nprocs=task["ranks"])


if __name__ == "__main__":
    main()
