"""What PyTorch calls collectives, and how many bytes a call brings."""

from __future__ import annotations

import math
from typing import Any, Final

__all__ = ["BYTES_OF", "GLOO", "NCCL", "NO_COLLECTIVES", "tensor_bytes"]

GLOO: Final = {
    "c10d::allreduce_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::_allgather_base_": ("all-gather", "gloo:all_gather", 1),
    "c10d::allgather_": ("all-gather", "gloo:all_gather", 1),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", "gloo:all_reduce", 1),
    "c10d::alltoall_base_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::alltoall_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::broadcast_": ("broadcast", "gloo:broadcast", 0),
    "c10d::barrier": ("barrier", "gloo:barrier", 0),
    "c10d::send": ("send", "gloo:send", 0),
    "c10d::recv_": ("receive", "gloo:recv", 0),
}
"""Of an operator: the kind of its collective, what gloo calls its work, and which argument holds what a rank brings."""

NCCL: Final = {
    "allreduce": "all-reduce",
    "allreduce_coalesced": "all-reduce",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "all_gather": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all": "all-to-all",
    "all_to_allv": "all-to-all",
    "alltoall": "all-to-all",
    "alltoall_base": "all-to-all",
    "broadcast": "broadcast",
    "_broadcast_oop": "broadcast",
    "barrier": "barrier",
    "send": "send",
    "recv": "receive",
}
"""Of a ``Collective name``: its kind."""

NO_COLLECTIVES: Final = {"wait", "init", "coalesced"}
"""Names of ``record_param_comms`` that move nothing themselves."""

BYTES_OF: Final = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "long": 8,
    "int": 4,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "long int": 8,
    "unsigned char": 1,
    "signed char": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}
"""Of a type's name, in small letters, as operators and NCCL write it."""


def tensor_bytes(shapes: Any, types: Any) -> int | None:
    """Return the bytes of tensors by their shapes (``[[2, 3], [4]]``) and types, None if these do not tell."""
    if not isinstance(shapes, list) or not isinstance(types, list) or not shapes or len(shapes) > len(types):
        return None
    total = 0
    for shape, name in zip(shapes, types, strict=False):
        size = BYTES_OF.get(str(name).lower())
        if size is None or not isinstance(shape, list) or not all(isinstance(each, int) for each in shape):
            return None
        total += math.prod(shape) * size
    return total
