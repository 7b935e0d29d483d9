"""Pickles of plain values against the standard library's, and what is too large or of another kind."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ddlsched.checkpoints.plain_pickles import (
    Items,
    Name,
    New,
    Persistent,
    PickledCall,
    Record,
    number_of,
    pickled,
    shape_of,
    text_of,
    unpickled,
)
from ddlsched.errors import InputError

WHOLE = [
    sign * (2**bits + more) for bits in (0, 7, 8, 15, 16, 31, 32, 39, 63, 64, 200) for more in (-1, 0, 1)
    for sign in (1, -1)
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0.0, -1.5, 1e300, "", "naïve €", (), (1,), (1, (2, "x")), [], [1, [None, ()]], {},
    {"a": {"b": (1, 2.5)}, 3: []}, {("a", 1): "b"},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_plain_values_are_read_by_the_standard_library_and_by_this_one(value: Any) -> None:
    for found in (pickle.loads(pickled(value)), unpickled(pickled(value), {}, "a value")):
        assert (found, type(found)) == (value, type(value))


def test_whole_numbers_are_those_that_the_standard_library_reads() -> None:
    assert pickle.loads(pickled(WHOLE)) == WHOLE
    assert [len(pickled(number)) for number in (0, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1)] == [8, 8, 10, 8, 10]


NAME, OTHER = Name("torch", "Size"), Name("collections", "OrderedDict")
BEGIN, GLOBAL = b"\x80\x02", b"ctorch\nSize\nr\x00\x00\x00\x00"
AGAIN = b"j\x00\x00\x00\x00"
NUMBER = b"J\x07\x00\x00\x00"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAME, GLOBAL),
        ([NAME, NAME], b"](" + GLOBAL + AGAIN + b"e"),
        ((NAME, OTHER), b"(" + GLOBAL + b"ccollections\nOrderedDict\nr\x01\x00\x00\x00t"),
        (PickledCall(NAME, (7,)), GLOBAL + b"(" + NUMBER + b"tR"),
        (New(NAME), GLOBAL + b")\x81"),
        (New(NAME, {}), GLOBAL + b")\x81}(ub"),
        (Persistent((7,)), b"(" + NUMBER + b"tQ"),
        (Items([(NAME, 7)]), b"}(" + GLOBAL + NUMBER + b"u"),
        (1.0, b"G\x3f\xf0" + bytes(6)),
        ("é", b"X\x02\x00\x00\x00\xc3\xa9"),
        (2**31, b"\x8a\x05\x00\x00\x00\x80\x00"),
    ],
)
def test_what_is_written_is_protocol_2(value: Any, expected: bytes) -> None:
    assert pickled(value) == BEGIN + expected + b"."


def test_what_is_no_plain_value_is_not_written() -> None:
    with pytest.raises(TypeError, match="is no plain value"):
        pickled({1, 2})


def unpickling(value: Any) -> Any:
    return unpickled(pickle.dumps(value, protocol=2), {}, "the file")


def test_tuples_of_tuples_stand_for_at_most_ten_thousand_values() -> None:
    inner = [(None,) * 99 for _ in range(100)]  # 100 in the outer one and 9,900 in these
    assert unpickling(tuple(inner)) == tuple(inner)
    for too_many in ((*inner, 0), (tuple(inner),)):
        with pytest.raises(
            InputError, match=r"^the file: cannot be read \(a tuple stands for more than 10,000 values\)"
        ):
            unpickling(too_many)
    assert unpickling((None,) * 10_001) == (None,) * 10_001  # each of them is there


@pytest.mark.parametrize("others", [(), (0,), (0, 0), (0, 0, 0)])
def test_so_they_do_whichever_way_they_are_written(others: tuple[int, ...]) -> None:
    fitting = (None,) * (10_000 - 1 - len(others))
    assert unpickling((fitting, *others)) == (fitting, *others)
    with pytest.raises(InputError, match="more than 10,000 values"):
        unpickling(((*fitting, 0), *others))


def test_records_keep_their_state() -> None:
    names = {("m", "R"): Record, ("m", "f"): dict}
    kept = unpickled(pickled(New(Name("m", "R"), {"a": 1})), names, "w")
    assert (kept.a, kept.b, kept.state) == (1, None, {"a": 1})
    listed = unpickled(pickled(New(Name("m", "R"), (1, 2))), names, "w")
    assert (listed.state, listed.a) == ((1, 2), None)
    bare = unpickled(pickled(New(Name("m", "R"))), names, "w")
    assert (bare.state, bare.a) == (None, None)
    never_made = Record.__new__(Record)
    assert (never_made.state, never_made.a) == (None, None)


def test_a_state_is_for_records_only() -> None:
    names = {("m", "R"): Record}
    of_a_dictionary = BEGIN + b"}" + b"}(X\x01\x00\x00\x00aK\x01u" + b"b."
    assert unpickled(of_a_dictionary, names, "w") == {}
    with pytest.raises(InputError, match=r"\(a list has a state\)"):
        unpickled(BEGIN + b"]}b.", names, "w")


def test_what_is_wrong_is_said_in_few_words() -> None:
    with pytest.raises(InputError, match=r"^w: cannot be read \(m\.g is no part of the format\); expected a PyTorch"):
        unpickled(pickled(Name("m", "g")), {}, "w")
    with pytest.raises(InputError, match=r"^w: cannot be read \(EOFError\); expected"):
        unpickled(b"", {}, "w")
    with pytest.raises(InputError) as raised:
        unpickled(pickled(Name("m" * 900, "g")), {}, "w")
    assert f"({'m' * 200})" in str(raised.value)
    assert unpickled(pickled(Persistent(("a", 1))), {}, "w") == ("a", 1)


def test_shapes_numbers_and_texts_are_what_they_should_be() -> None:
    for shape in ((), (0,), ((1 << 63) - 1,), (1,) * 64):
        assert shape_of(shape) == shape
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(ValueError, match="is no whole number"):
            number_of(wrong)
    assert [number_of(number) for number in (0, -5)] == [0, -5]
    assert text_of("a", "b") == "a/b"
    assert text_of("a" * 4000, "b" * 96) == "a" * 4000 + "/" + "b" * 96
    for parts in (("a" * 4097,), ("a" * 4000, "b" * 97), ("a", 1), (None,)):
        with pytest.raises(ValueError, match="no path or name"):
            text_of(*parts)
