"""A tensor of a job's state, and which part of it a rank holds: boxes of the whole, and where each lies in an array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias

from ddlsched.deferred import np
from ddlsched.errors import InputError

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
_NUMPY = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "U16": "u2", "I16": "i2", "F16": "f2",
    "U32": "u4", "I32": "i4", "F32": "f4", "U64": "u8", "I64": "i8", "F64": "f8",
}  # fmt: skip


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy type of a safetensors one; of BF16 and F8, the unsigned integer of their size."""
    return np.dtype(_NUMPY.get(dtype, f"u{DTYPE_BYTES[dtype]}")).newbyteorder("<")


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


_Run = tuple[int, int]
"""First row and number of rows; the first row of padding is -1."""
_PADDING = -1


class Piece(NamedTuple):
    """A box of the whole tensor, and where it lies in a rank's array; all numbers count elements."""

    start: tuple[int, ...]
    extent: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements in the box."""
        return math.prod(self.extent)

    def rows(self, first: int, number: int) -> Piece:
        """Return some rows of it, the first one counted within it."""
        start, extent = (self.start[0] + first, *self.start[1:]), (number, *self.extent[1:])
        return Piece(start, extent, self.offset + first * self.strides[0], self.strides)

    def row(self, number: int) -> Piece:
        """Return one row of it, of one dimension less."""
        return Piece(self.start[1:], self.extent[1:], self.offset + number * self.strides[0], self.strides[1:])


class Layout(NamedTuple):
    """The shape of a rank's array, and the pieces in it; what no piece covers is padding."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_elements(self) -> int:
        """Elements of the array, padding included."""
        return math.prod(self.shape)


@lru_cache(maxsize=65536)
def dense_layout(shape: tuple[int, ...], cuts: tuple[Cut, ...], place: tuple[_Run, ...]) -> Layout:
    """Return what a rank holds.

    Parameters
    ----------
    shape
        Of the whole tensor.
    cuts
        How it is divided.
    place
        The rank's index in the group of each cut, and the size of that group.

    Raises
    ------
    InputError
        A dimension does not divide among the ranks.
    """
    runs: list[list[_Run]] = [[(0, size)] if size else [] for size in shape]
    for cut, (index, degree) in zip(cuts, place, strict=True):
        runs[cut.dim] = _cut(runs[cut.dim], cut, index, degree)
    local = tuple(sum(rows for _, rows in dimension) for dimension in runs)
    return Layout(local, tuple(_pieces(runs, _row_major(local))))


def _cut(runs: list[_Run], cut: Cut, index: int, degree: int) -> list[_Run]:
    size = sum(rows for _, rows in runs)
    padded = padded_size(size, cut.pad_multiple, degree)
    runs = [*runs, (_PADDING, padded - size)]
    kept: list[_Run] = []
    begin = 0
    for part in cut.parts or (CutPart(padded),):
        low, high = _share(part, cut, index, degree)
        kept += _rows(runs, begin + low, begin + high)
        begin += part.size
    return kept


def _share(part: CutPart, cut: Cut, index: int, degree: int) -> tuple[int, int]:
    """Return the first row of a part that a rank holds, and the first behind."""
    size, units = part.size, part.units or part.size
    if cut.uneven:
        each = -(-units // degree) * (size // max(units, 1))
        return min(index * each, size), min((index + 1) * each, size)
    if units % degree == 0:
        return index * size // degree, (index + 1) * size // degree
    if part.shared and degree % units == 0:
        unit = index * units // degree
        return unit * size // units, (unit + 1) * size // units
    what = f"{units} blocks of {size // units} rows" if part.units else f"{size} rows"
    raise InputError(f"{what} of dimension {cut.dim} do not divide among {degree} {cut.axis}-parallel ranks")


def _rows(runs: Sequence[_Run], low: int, high: int) -> Iterator[_Run]:
    """Yield the rows from ``low`` to ``high`` of runs that lie one behind the other."""
    begin = 0
    for first, rows in runs:
        a, b = max(low, begin), min(high, begin + rows)
        if a < b:
            yield (first if first == _PADDING else first + a - begin), b - a
        begin += rows


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _pieces(runs: Sequence[Sequence[_Run]], strides: tuple[int, ...]) -> Iterator[Piece]:
    placed = []
    for dimension, stride in zip(runs, strides, strict=True):
        begins = [sum(rows for _, rows in dimension[:number]) * stride for number in range(len(dimension))]
        placed.append([(*run, at) for run, at in zip(dimension, begins, strict=True) if run[0] != _PADDING])
    for chosen in product(*placed):
        extent = tuple(rows for _, rows, _ in chosen)
        yield Piece(tuple(first for first, _, _ in chosen), extent, sum(at for _, _, at in chosen), strides)


@lru_cache(maxsize=65536)
def flat_layout(whole: Layout, low: int, high: int) -> Layout:
    """Return the elements from ``low`` to ``high`` of a layout's array, laid out as an array of one dimension."""
    pieces = []
    for start, extent in _boxes(whole.shape, low, high):
        for piece in whole.pieces:
            common = _intersection(start, extent, piece, _row_major(whole.shape))
            if common is not None:
                pieces.append(common._replace(offset=common.offset - low))
    return Layout((high - low,), tuple(pieces))


def _boxes(shape: Sequence[int], low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the boxes (start, extent) of an array that a range of its elements in row-major order makes up."""
    if low >= high:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-low // row), high // row
    if low % row:
        number = low // row
        yield from _within_row(shape, number, low - number * row, min(high - number * row, row))
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    if first <= last:
        yield from _within_row(shape, last, 0, high - last * row)


def _within_row(
    shape: Sequence[int], number: int, low: int, high: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for start, extent in _boxes(shape[1:], low, high):
        yield (number, *start), (1, *extent)


def _intersection(
    start: tuple[int, ...], extent: tuple[int, ...], piece: Piece, strides: tuple[int, ...]
) -> Piece | None:
    """Return what a box of a rank's array and a piece in that array have in common."""
    begins, sizes, rest = [], [], piece.offset
    for low, rows, stride, piece_rows in zip(start, extent, strides, piece.extent, strict=True):
        at, rest = divmod(rest, stride)
        a, b = max(low, at), min(low + rows, at + piece_rows)
        if a >= b:
            return None
        begins.append(a - at)
        sizes.append(b - a)
    moved = tuple(first + begin for first, begin in zip(piece.start, begins, strict=True))
    offset = piece.offset + sum(begin * stride for begin, stride in zip(begins, strides, strict=True))
    return Piece(moved, tuple(sizes), offset, strides)
