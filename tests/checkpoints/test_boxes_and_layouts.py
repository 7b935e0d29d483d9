"""Boxes, pieces and layouts of tensors, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ddlsched.checkpoints import division, tensors
from ddlsched.checkpoints.collection import Shard, StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.division import Box, Holding, TensorCell, divided, within
from ddlsched.checkpoints.plan import _ranks
from ddlsched.checkpoints.tensors import (
    DTYPE_BYTES,
    Cut,
    CutPart,
    Layout,
    Piece,
    Tensor,
    dense_layout,
    flat_layout,
    numpy_dtype,
    padded_size,
)
from ddlsched.errors import InputError


def test_elements_have_the_bytes_that_their_names_say() -> None:
    bits = {name: int("".join(filter(str.isdigit, name.partition("_")[0])) or 8) for name in DTYPE_BYTES}
    assert {name: number // 8 for name, number in bits.items()} == DTYPE_BYTES
    assert all(numpy_dtype(name).itemsize == number for name, number in DTYPE_BYTES.items())
    assert numpy_dtype("BF16").str == "<u2"
    assert [numpy_dtype(name).str for name in ("F8_E4M3", "F64", "I16", "BOOL")] == ["|u1", "<f8", "<i2", "|b1"]


@pytest.mark.parametrize(
    ("size", "multiple", "degree", "padded"),
    [
        (50257, 128, 1, 50304),
        (50257, 128, 8, 51200),
        (256, 128, 2, 256),
        (257, 128, 2, 512),
        (7, 0, 3, 7),
        (0, 4, 2, 0),
    ],
)
def test_sizes_are_padded_to_a_multiple(size: int, multiple: int, degree: int, padded: int) -> None:
    assert padded_size(size, multiple, degree) == padded


ROWS: list[tuple[int, Cut, list[list[tuple[int, int]]]]] = [
    # Size, how it is cut, and for each rank the first row and the number of rows of its pieces.
    (6, Cut(dim=0), [[(0, 2)], [(2, 2)], [(4, 2)]]),
    (7, Cut(dim=0, uneven=True), [[(0, 3)], [(3, 3)], [(6, 1)]]),
    (4, Cut(dim=0, uneven=True), [[(0, 2)], [(2, 2)], []]),
    (1, Cut(dim=0, uneven=True), [[(0, 1)], [], []]),
    (0, Cut(dim=0, uneven=True), [[], []]),
    (5, Cut(dim=0, pad_multiple=2), [[(0, 4)], [(4, 1)]]),
    (4, Cut(dim=0, pad_multiple=2), [[(0, 2)], [(2, 2)]]),
    (4, Cut(dim=0, pad_multiple=3), [[(0, 3)], [(3, 1)]]),
    (2, Cut(dim=0, pad_multiple=3), [[(0, 2)], []]),
    (12, Cut(dim=0, parts=(CutPart(4), CutPart(8))), [[(0, 2), (4, 4)], [(2, 2), (8, 4)]]),
    (12, Cut(dim=0, parts=(CutPart(12, 4),)), [[(0, 6)], [(6, 6)]]),
    (12, Cut(dim=0, parts=(CutPart(12, 2, shared=True),)), [[(0, 6)], [(0, 6)], [(6, 6)], [(6, 6)]]),
    (12, Cut(dim=0, parts=(CutPart(8, 4), CutPart(4, 1, shared=True))), [[(0, 4), (8, 4)], [(4, 4), (8, 4)]]),
    (12, Cut(dim=0, parts=(CutPart(12, 3),), uneven=True), [[(0, 8)], [(8, 4)]]),
    (12, Cut(dim=0, parts=(CutPart(12, 4),), uneven=True), [[(0, 6)], [(6, 6)], [], []][:2]),
]  # fmt: skip


@pytest.mark.parametrize(("size", "cut", "expected"), ROWS)
def test_rows_of_each_rank(size: int, cut: Cut, expected: list[list[tuple[int, int]]]) -> None:
    found = [dense_layout((size, 2), (cut,), ((rank, len(expected)),)) for rank in range(len(expected))]
    assert [[(piece.start[0], piece.extent[0]) for piece in layout.pieces] for layout in found] == expected
    for layout in found:
        begins = [sum(piece.extent[0] for piece in layout.pieces[:number]) for number in range(len(layout.pieces))]
        assert [piece.offset for piece in layout.pieces] == [2 * begin for begin in begins]
        assert all((piece.start[1], piece.extent[1], piece.strides) == (0, 2, (2, 1)) for piece in layout.pieces)
    if cut.pad_multiple:
        rows = padded_size(size, cut.pad_multiple, len(found)) // len(found)
        assert {layout.shape for layout in found} == {(rows, 2)}


@pytest.mark.parametrize(
    ("cut", "ranks", "message"),
    [
        (Cut(dim=1), 4, "6 rows of dimension 1 do not divide among 4 tensor-parallel ranks"),
        (Cut(dim=1, axis="data", parts=(CutPart(6, 3),)), 2,
         "3 blocks of 2 rows of dimension 1 do not divide among 2 data-parallel ranks"),
        (Cut(dim=1, parts=(CutPart(6, 3, shared=True),)), 2, "3 blocks of 2 rows"),
        (Cut(dim=1, parts=(CutPart(6, 3),)), 6, "3 blocks of 2 rows"),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused(cut: Cut, ranks: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dense_layout((2, 6), (cut,), ((0, ranks),))


@pytest.mark.parametrize("cuts", [(), (Cut(dim=0),), (Cut(dim=0), Cut(dim=1, axis="data", pad_multiple=3))])
@pytest.mark.parametrize("shape", [(0, 6), (4, 0), (0, 0)])
def test_a_tensor_without_elements_has_no_pieces(cuts: tuple[Cut, ...], shape: tuple[int, int]) -> None:
    found = dense_layout(shape, cuts, ((1, 2), (0, 2))[: len(cuts)])
    rows, columns = shape[0] // (2 if cuts else 1), (3 if shape[1] else 0) if len(cuts) > 1 else shape[1]
    assert found == Layout((rows, columns), ())


def test_two_cuts_of_one_dimension_are_applied_in_order() -> None:
    cuts = (Cut(dim=0), Cut(dim=0, axis="data"))
    found = [dense_layout((8,), cuts, ((a, 2), (b, 2))).pieces[0].start for a in range(2) for b in range(2)]
    assert found == [(0,), (2,), (4,), (6,)]
    parts = (Cut(dim=0, parts=(CutPart(4), CutPart(4))), Cut(dim=0, axis="data"))
    found = [
        [piece.start + piece.extent for piece in dense_layout((8,), parts, ((a, 2), (b, 2))).pieces]
        for a in range(2)
        for b in range(2)
    ]
    assert found == [[(0, 2)], [(4, 2)], [(2, 2)], [(6, 2)]]


def test_padding_between_two_cuts_is_nowhere() -> None:
    cuts = (Cut(dim=0, pad_multiple=4), Cut(dim=0, axis="data"))
    found = [
        [(piece.start + piece.extent, piece.offset) for piece in dense_layout((5,), cuts, ((1, 2), (b, 2))).pieces]
        for b in range(2)
    ]
    assert found == [[((4, 1), 0)], []]


@pytest.mark.parametrize(
    ("shape", "low", "high", "boxes"),
    [
        ((3, 4), 5, 5, []), ((3, 4), 6, 5, []), ((), 0, 0, []), ((), 1, 1, []),
        ((), 0, 1, [((), ())]), ((9,), 2, 7, [((2,), (5,))]),
        ((3, 4), 0, 12, [((0, 0), (3, 4))]), ((3, 4), 4, 8, [((1, 0), (1, 4))]),
        ((3, 4), 5, 7, [((1, 1), (1, 2))]), ((3, 4), 9, 12, [((2, 1), (1, 3))]), ((9,), 0, 9, [((0,), (9,))]),
        ((3, 4), 1, 3, [((0, 1), (1, 2))]), ((3, 4), 1, 4, [((0, 1), (1, 3))]), ((3, 4), 4, 6, [((1, 0), (1, 2))]),
        ((3, 4), 1, 6, [((0, 1), (1, 3)), ((1, 0), (1, 2))]),
        ((3, 4), 3, 9, [((0, 3), (1, 1)), ((1, 0), (1, 4)), ((2, 0), (1, 1))]),
        ((3, 4), 0, 9, [((0, 0), (2, 4)), ((2, 0), (1, 1))]), ((3, 4), 2, 12, [((0, 2), (1, 2)), ((1, 0), (2, 4))]),
        ((2, 2, 3), 4, 11, [((0, 1, 1), (1, 1, 2)), ((1, 0, 0), (1, 1, 3)), ((1, 1, 0), (1, 1, 2))]),
        ((2, 2, 3), 3, 6, [((0, 1, 0), (1, 1, 3))]),
    ],
)  # fmt: skip
def test_a_range_of_elements_is_made_of_boxes(shape: tuple[int, ...], low: int, high: int, boxes: object) -> None:
    assert list(tensors._boxes(shape, low, high)) == boxes


def test_a_range_of_an_array_with_padding() -> None:
    whole = Layout((3, 4), (Piece((5, 7), (2, 3), 1, (4, 1)),))  # Rows 0 and 1, columns 1 to 3.
    found = flat_layout(whole, 2, 7)
    assert found == Layout((5,), (Piece((5, 8), (1, 2), 0, (4, 1)), Piece((6, 7), (1, 2), 3, (4, 1))))
    assert flat_layout(whole, 8, 12) == Layout((4,), ())
    assert flat_layout(whole, 4, 4) == Layout((0,), ())
    assert flat_layout(whole, 0, 12) == Layout((12,), whole.pieces)


def test_parts_of_pieces() -> None:
    piece = Piece((2, 3, 4), (5, 6, 7), 11, (100, 10, 1))
    assert (piece.num_elements, Piece((), (), 0, ()).num_elements) == (210, 1)
    assert piece.rows(2, 3) == Piece((4, 3, 4), (3, 6, 7), 211, (100, 10, 1))
    assert piece.row(2) == Piece((3, 4), (6, 7), 211, (10, 1))
    assert within(piece, Box((3, 3, 6), (1, 6, 2))) == Piece((3, 3, 6), (1, 6, 2), 113, (100, 10, 1))
    assert Layout((3, 4), ()).num_elements == 12


def test_a_tensor_that_no_degrees_explain_is_divided_as_its_name_says() -> None:
    def rows(*ranges: tuple[int, int]) -> frozenset[Box]:
        return frozenset(Box((first, 0), (number, 3)) for first, number in ranges)

    def halves(*shape: int) -> tuple[tuple[int, ...], frozenset[Box]]:
        rest = (0,) * (len(shape) - 1)
        return shape, frozenset(Box((first, *rest), (1 + 3 * first, *shape[1:])) for first in (0, 1))

    kinds = {"w": ((4, 3), rows((0, 2), (2, 2))), "lm_head.a": halves(5, 3), "lm_head.b": halves(5, 3, 2)}
    data, tensor = (Cut(dim=0, axis=axis, uneven=True) for axis in ("data", "tensor"))
    expected = {"w": (data,), "lm_head.a": (tensor,), "lm_head.b": ()}
    assert division.found_division(kinds) == (StoredParallelism(dp=2), expected)
    assert division.found_division({}) == (StoredParallelism(), {})
    whole = {"lm_head.a": ((4, 3), rows((0, 4))), "w": ((4, 3), rows((0, 4)))}
    assert division.found_division(whole) == (StoredParallelism(), {"lm_head.a": (tensor,), "w": ()})


PARTS = (CutPart(1), CutPart(3))
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "F31"}, f"dtype 'F31'; expected one of {', '.join(DTYPE_BYTES)}"),
    ({"shape": (4, -1)}, "shape [4, -1]; expected sizes from 0"),
    ({"places": ()}, "is in no place; expected a layer, first or last"),
    *(({"kind": "file", **more}, "is the bytes of one file; expected one uncut dimension of U8") for more in (
        {}, {"dtype": "U8"}, {"shape": (4,)}, {"dtype": "U8", "shape": ()},
        {"dtype": "U8", "shape": (4,), "cuts": (Cut(dim=0),)}, {"dtype": "U8", "shape": (4,), "flat": "f"},
    )),
    ({"kind": "object"}, "is the bytes of one object; expected one uncut dimension of U8"),
    ({"cuts": (Cut(dim=2),)}, "cut on dimension 2; expected one of 2"),
    ({"cuts": (Cut(dim=1, parts=PARTS),)},
     "parts of 4 rows on dimension 1 of 6 rows; expected parts that add up, in the dimension's first cut"),
    ({"cuts": (Cut(dim=0), Cut(dim=0, axis="data", parts=PARTS))},
     "parts of 4 rows on dimension 0 of 4 rows; expected parts that add up, in the dimension's first cut"),
    ({"cuts": (Cut(dim=0), Cut(dim=1))},
     "is cut twice over tensor-parallel ranks; expected once, or parts would be nowhere"),
    ({"cuts": (Cut(dim=0, axis="data"), Cut(dim=1, axis="expert"))},
     "is cut twice over data-parallel ranks; expected once, or parts would be nowhere"),
    ({"cuts": (Cut(dim=0, axis="expert"), Cut(dim=1, axis="expert"))},
     "is cut twice over expert-parallel ranks; expected once, or parts would be nowhere"),
    ({"cuts": (Cut(dim=0, axis="data"),), "flat": "f"}, "both cut over data and flat; expected one of them"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_tensors_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Tensor(**({"name": "w", "shape": (4, 6), "dtype": "F32"} | wrong))
    assert str(raised.value) == f"tensor w: {message}"


@pytest.mark.parametrize(
    "right",
    [
        {"shape": ()}, {"shape": (0,)}, {"cuts": [Cut(dim=1)], "flat": "f"}, {"places": [0]},
        {"cuts": (Cut(dim=0, parts=PARTS), Cut(dim=0, axis="data"))},
        {"cuts": (Cut(dim=0, axis="expert"), Cut(dim=1, parts=(CutPart(6),)))},
        {"kind": "file", "dtype": "U8", "shape": (0,)}, {"kind": "object", "dtype": "U8", "shape": [4]},
    ],
)  # fmt: skip
def test_tensors_that_can_be_are_hashed_by_value(right: dict[str, Any]) -> None:
    made = [Tensor(**({"name": "w", "shape": (4, 6), "dtype": "F32"} | right)) for _ in range(2)]
    assert len(set(made)) == 1
    assert made[0].over_experts == any(cut.axis == "expert" for cut in made[0].cuts)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": -1}, "holds a negative number; expected numbers from 0"),
        ({"pad_multiple": -1}, "holds a negative number; expected numbers from 0"),
        ({"parts": (CutPart(4), CutPart(-1))}, "holds a negative number; expected numbers from 0"),
        ({"parts": (CutPart(4, -1),)}, "holds a negative number; expected numbers from 0"),
        ({"parts": (CutPart(4),), "pad_multiple": 1}, "has both parts and padding; expected one of them"),
        ({"parts": (CutPart(4, 2), CutPart(5, 3))}, "5 rows do not divide into 3 units; expected equal ones"),
    ],
)
def test_cuts_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=r"^Cut\(dim=.*\): ") as raised:
        Cut(**({"dim": 0} | wrong))
    assert str(raised.value).endswith(f"): {message}")


def test_parts_of_a_cut_may_be_given_as_lists() -> None:
    cut = Cut(dim=0, parts=[[4, 2], [0, 0, True]])
    assert cut.parts == (CutPart(4, 2), CutPart(0, 0, shared=True))
    assert hash(cut) == hash(Cut(dim=0, parts=(CutPart(4, 2, shared=False), CutPart(0, shared=True))))


def layout(*boxes: tuple[int, int]) -> Layout:
    """Return rows of a vector that lie one behind the other."""
    begins = [sum(rows for _, rows in boxes[:number]) for number in range(len(boxes))]
    pieces = [Piece((first,), (rows,), at, (1,)) for (first, rows), at in zip(boxes, begins, strict=True)]
    return Layout((sum(rows for _, rows in boxes),), tuple(pieces))


def test_cells_are_cut_at_old_and_new_boundaries() -> None:
    found = divided((layout((0, 6)), layout((6, 6))), (layout((0, 4), (8, 4)), layout((4, 4))))
    assert found == (
        TensorCell(Box((0,), (4,)), (Holding(0, 0),), (Holding(0, 0),)),
        TensorCell(Box((8,), (4,)), (Holding(1, 0),), (Holding(0, 1),)),
        TensorCell(Box((4,), (2,)), (Holding(0, 0),), (Holding(1, 0),)),
        TensorCell(Box((6,), (2,)), (Holding(1, 0),), (Holding(1, 0),)),
    )


def test_what_no_old_shard_has_is_a_cell_without_one() -> None:
    found = divided((layout((0, 3)), layout((5, 2))), (layout((0, 9)),))
    assert {(cell.box.start[0], cell.box.extent[0]): bool(cell.old) for cell in found} == {
        (0, 3): True, (5, 2): True, (3, 2): False, (7, 2): False,
    }  # fmt: skip
    assert divided((), (layout((2, 3)),)) == (TensorCell(Box((2,), (3,)), (), (Holding(0, 0),)),)
    assert divided((layout((2, 3)),), ()) == ()


def test_parts_that_overlap_are_held_by_both() -> None:
    found = divided((layout((0, 4)), layout((2, 4))), (layout((0, 6)),))
    held = {(cell.box.start[0], cell.box.extent[0]): [old.shard for old in cell.old] for cell in found}
    assert held == {(0, 2): [0], (2, 2): [0, 1], (4, 2): [1]}
    shards = [Shard(layout((0, 4)), (0, 3)), Shard(layout((2, 4)), (1, 3))]
    assert [_ranks(shards, numbers) for numbers in ([0], [1], [0, 1])] == [(0, 3), (1, 3), (0, 1, 3)]


@pytest.mark.parametrize(
    ("boxes", "disjoint"),
    [
        ([], True), ([((0, 0), (2, 2))], True),
        ([((0, 0), (2, 2)), ((0, 2), (2, 2))], True), ([((0, 0), (2, 2)), ((2, 0), (1, 2))], True),
        ([((0, 0), (2, 2)), ((1, 1), (2, 2))], False), ([((0, 0), (3, 3)), ((1, 1), (1, 1))], False),
        ([((0, 0), (1, 1)), ((5, 5), (2, 2)), ((6, 6), (1, 1))], False),
    ],
)  # fmt: skip
def test_boxes_that_have_nothing_in_common(boxes: Any, disjoint: bool) -> None:
    assert division._disjoint([Box(*box) for box in boxes]) == disjoint
    pairs = [(Box(*a), Box(*b)) for number, a in enumerate(boxes) for b in boxes[:number]]
    assert any(division._common(*pair) for pair in pairs) != disjoint


def test_common_and_remaining_parts_of_boxes() -> None:
    one = Box((0, 0), (4, 6))
    assert division._common(one, Box((3, 2), (5, 3))) == Box((3, 2), (1, 3))
    assert division._common(one, Box((4, 0), (1, 1))) is None
    assert division._common(Box((), ()), Box((), ())) == Box((), ())
    left = division._without(one, [Box((0, 0), (4, 2)), Box((3, 2), (1, 4))])
    assert sorted((box.start, box.extent) for box in left) == [((0, 2), (3, 4))]
    assert division._without(one, [one]) == []


def test_collections_are_made_of_any_sequences_and_contradictions_are_said() -> None:
    region = StoredRegion(devices=[4, 3], hosts=[1, 0])  # type: ignore[arg-type]
    assert (region.devices, region.hosts) == ((4, 3), (1, 0))
    assert hash(region) == hash(StoredRegion(devices=(4, 3), hosts=(1, 0)))
    a, b, c = (Tensor(name=name, shape=(size,), dtype="U8", places=(place,)) for name, size, place in
               (("a", 4, 0), ("b", 4, 2), ("c", 4, "first")))  # fmt: skip
    job = TensorCollection(tensors=iter((a, b)), parallelism=StoredParallelism(pp=2), stages=[1, 0, 1])  # type: ignore[arg-type]
    assert (job.tensors, job.stages, job.num_layers) == ((a, b), (1, 0, 1), 3)
    whole = TensorCollection(tensors=(c,), parallelism=StoredParallelism())
    assert (whole.num_layers, whole.stages, whole.flat_multiple) == (0, (), 1)
    assert (whole.allocation.devices, whole.allocation.hosts) == ((0,), (0,))
    for fields, message in (
        ({"tensors": (a, b, c, b, c)}, "tensor b: is there twice; expected a name of its own"),
        ({"stages": (0, 1)}, "the stage map has 2 layers; expected the model's 3"),
        ({"stages": (0, 1, 2)}, "the stage map has stage 2; expected stages from 0 to 1"),
        ({"stages": (0, -1, 2)}, "the stage map has stage -1; expected stages from 0 to 1"),
        ({"allocation": StoredRegion.packed(3)}, "3 devices for 2 ranks; expected one each"),
    ):
        with pytest.raises(InputError) as raised:
            TensorCollection(**{"tensors": (a, b), "parallelism": StoredParallelism(pp=2)} | fields)  # type: ignore[arg-type]
        assert str(raised.value) == message


def test_empty_flat_tensors_are_nowhere() -> None:
    tensors = (Tensor(name="none", shape=(0,), dtype="U8", flat="f"), Tensor(name="w", shape=(3,), dtype="U8"))
    job = TensorCollection(tensors=tensors, parallelism=StoredParallelism(dp=2))
    assert [list(held) for held in job.arrays] == [["w"], ["w"]]


def test_layers_stages_and_flat_buffers_by_hand() -> None:
    """Two layers on two stages; a buffer of 5 + 3 elements, in parts of 3 for three ranks, padded to 9."""
    vectors = tuple(
        Tensor(name=name, shape=(size,), dtype="F32", places=(place,), flat="f")
        for name, size, place in (("a", 5, 0), ("b", 3, 0), ("c", 4, 1))
    )
    job = TensorCollection(tensors=vectors, parallelism=StoredParallelism(pp=2, dp=3))
    assert (job.stages, job.num_layers, [job.stages_of(tensor) for tensor in vectors]) == (
        (0, 1),
        2,
        [(0,), (0,), (1,)],
    )
    held = [{name: (lay.shape, lay.pieces[0].start) for name, lay in arrays.items()} for arrays in job.arrays]
    assert held == [
        {"a": ((3,), (0,))}, {"a": ((2,), (3,)), "b": ((1,), (0,))}, {"b": ((2,), (1,))},
        {"c": ((2,), (0,))}, {"c": ((2,), (2,))}, {},
    ]  # fmt: skip
    multiple = TensorCollection(tensors=vectors, parallelism=StoredParallelism(pp=2, dp=3), flat_multiple=4)
    held = [{name: (lay.shape, lay.pieces[0].start) for name, lay in arrays.items()} for arrays in multiple.arrays]
    assert held == [
        {"a": ((4,), (0,))}, {"a": ((1,), (4,)), "b": ((3,), (0,))}, {}, {"c": ((4,), (0,))}, {}, {},
    ]  # fmt: skip
