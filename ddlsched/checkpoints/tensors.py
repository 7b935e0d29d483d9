"""A tensor of a job's state: its shape as a whole, and the rule by which ranks hold parts of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ddlsched.errors import InputError

__all__ = ["DTYPE_BYTES", "Axis", "Cut", "CutPart", "Kind", "Place", "Tensor", "padded_size"]

Axis: TypeAlias = Literal["tensor", "expert", "data"]
Place: TypeAlias = int | Literal["first", "last"]
"""What decides a tensor's stage: its layer (of the whole model, from 0), or that it is before or behind all layers."""
Kind: TypeAlias = Literal["values", "object", "file"]
"""Whether a tensor's elements are numbers, or the bytes of a Python object as ``torch.save`` wrote it, or those of a
file beside the tensors; the latter two are never looked into."""

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of an element, by the names that safetensors files use."""


class CutPart(NamedTuple):
    """A run of rows that is cut by itself, such as the gates of a fused gate and up projection.

    ``units`` is the number of equal blocks that stay whole, such as heads; 0: every row by itself. With ``shared``, a
    group of more ranks than units has each unit on several neighbours (grouped-query attention with few key heads);
    else it is refused.
    """

    size: int
    units: int = 0
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How one dimension is divided among the ranks of a group; a rank's parts lie one behind the other.

    Parameters
    ----------
    dim
        Which dimension, from 0.
    axis
        Which group: ``tensor``, ``expert`` or ``data``.
    parts
        Runs that are cut one by one, in order; none: the dimension is one run.
    pad_multiple
        The dimension is first padded to a multiple of this times the group's size (a vocabulary: 128); 0: not.
    uneven
        Whether a run that does not divide gives the first ranks ``ceil(size / ranks)`` rows each and the last ones
        fewer or none, as ``torch.chunk`` does; else it is refused.
    """

    dim: int
    axis: Axis = "tensor"
    parts: tuple[CutPart, ...] = ()
    pad_multiple: int = 0
    uneven: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(CutPart(*part) for part in self.parts))
        if self.dim < 0 or self.pad_multiple < 0 or any(part.size < 0 or part.units < 0 for part in self.parts):
            raise InputError(f"{self}: holds a negative number; expected numbers from 0")
        if self.parts and self.pad_multiple:
            raise InputError(f"{self}: has both parts and padding; expected one of them")
        for part in self.parts:
            if part.units and part.size % part.units:
                raise InputError(f"{self}: {part.size} rows do not divide into {part.units} units; expected equal ones")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor of the whole job's state.

    Parameters
    ----------
    name
        Unique in the job; layers are numbered over the whole model, never within a stage.
    shape
        Of the whole tensor, without padding; () for a scalar.
    dtype
        As safetensors files write it: F32, BF16, ...
    places
        Where it is held: one place, or two for tied weights, which the first and the last stage hold.
    cuts
        How ranks of a stage divide it, applied in order, each to what the one before left; none: each holds all of it.
    flat
        Name of the flat buffer that it is part of: the local parts of all its tensors, one behind the other, are
        cut evenly over the data-parallel ranks (ZeRO-1, FSDP). Empty: it is in none.
    kind
        What the elements are; bytes of an object or of a file are one dimension of dtype U8 that is never cut.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    places: tuple[Place, ...] = ("first",)
    cuts: tuple[Cut, ...] = ()
    flat: str = ""
    kind: Kind = "values"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        object.__setattr__(self, "cuts", tuple(self.cuts))
        object.__setattr__(self, "places", tuple(self.places))
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"tensor {self.name}: dtype {self.dtype!r}; expected one of {', '.join(DTYPE_BYTES)}")
        if any(size < 0 for size in self.shape):
            raise InputError(f"tensor {self.name}: shape {list(self.shape)}; expected sizes from 0")
        if not self.places:
            raise InputError(f"tensor {self.name}: is in no place; expected a layer, first or last")
        if self.kind != "values" and (self.dtype != "U8" or len(self.shape) != 1 or self.cuts or self.flat):
            raise InputError(f"tensor {self.name}: is the bytes of one {self.kind}; expected one uncut dimension of U8")
        self._refuse_misfitting_cuts()

    def _refuse_misfitting_cuts(self) -> None:
        seen: set[int] = set()
        for cut in self.cuts:
            if cut.dim >= len(self.shape):
                raise InputError(f"tensor {self.name}: cut on dimension {cut.dim}; expected one of {len(self.shape)}")
            rows = sum(part.size for part in cut.parts)
            if cut.parts and (rows != self.shape[cut.dim] or cut.dim in seen):
                raise InputError(
                    f"tensor {self.name}: parts of {rows} rows on dimension {cut.dim} of {self.shape[cut.dim]} rows; "
                    "expected parts that add up, in the dimension's first cut"
                )
            others = {"expert", "data"} if cut.axis != "tensor" else {"tensor"}
            if sum(other.axis in others for other in self.cuts) > 1:
                text = f"tensor {self.name}: is cut twice over {cut.axis}-parallel ranks"
                raise InputError(f"{text}; expected once, or parts would be nowhere")
            if self.flat and cut.axis == "data":
                raise InputError(f"tensor {self.name}: both cut over data and flat; expected one of them")
            seen.add(cut.dim)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @cached_property
    def over_experts(self) -> bool:
        """Whether ranks hold different experts of it."""
        return any(cut.axis == "expert" for cut in self.cuts)


def padded_size(size: int, multiple: int, degree: int) -> int:
    """Return a size padded as Megatron pads vocabularies: to a multiple of ``multiple`` x ``degree``."""
    return -(-size // (multiple * degree)) * multiple * degree if multiple else size


def total_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of all tensors, each counted once."""
    return sum(tensor.num_bytes for tensor in tensors)
