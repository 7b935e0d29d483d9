"""Units, ranges of parameters, and what errors show of values: small tables by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf, nan
from typing import Any, Literal

import numpy as np
import pytest

from ddlsched.errors import (
    FaultyInputError,
    InputError,
    PluginError,
    UnknownNameError,
    abbreviated,
    did_you_mean,
    guarded,
    label,
    nearest_names,
    need,
    say_once,
    says_unknown_arguments,
)
from ddlsched.ranges import LAST_S, Checked, Range, check_arguments, choices_of, range_of, ranged, unit_of
from ddlsched.units import MAX_NS, bytes_from_mb, is_whole, ns_from_s, s_from_ns


def test_a_second_is_a_billion_nanoseconds_and_a_mb_a_million_bytes() -> None:
    assert (ns_from_s(2.5), ns_from_s(0.5e-9), ns_from_s(1.5e-9)) == (2_500_000_000, 0, 2)
    assert (s_from_ns(2_500_000_000), s_from_ns(1)) == (2.5, 1e-9)
    assert (bytes_from_mb(1.5), bytes_from_mb(0.0000025)) == (1_500_000, 2)
    assert MAX_NS == 9_223_372_036_854_775_807


@pytest.mark.parametrize(
    ("value", "bounds", "is_right"),
    [
        (3, (3,), True), (2, (3,), False), (5, (3, 5), True), (6, (3, 5), False), (np.int64(4), (3, 5), True),
        (np.int64(2), (3,), False), (True, (0,), False), (np.True_, (0,), False), (3.0, (0,), False),
        ("3", (0,), False),
        (MAX_NS, (0,), True), (MAX_NS + 1, (0,), False),
    ],
)  # fmt: skip
def test_whole_numbers_have_bounds_that_belong_to_them(value: Any, bounds: tuple[int, ...], is_right: bool) -> None:
    assert is_whole(value, *bounds) is is_right


@pytest.mark.parametrize(
    ("wanted", "inside", "outside", "said"),
    [
        (Range(1, 4), [1, 4, np.int32(2)], [0, 5, 2.0, True, "2", None], "a whole number from 1 to 4"),
        (Range(0, inf), [0, MAX_NS], [-1, MAX_NS + 1, inf], "a whole number from 0"),
        (Range(0.5, 2.0), [0.5, 2, 2.0, np.float32(1)], [0.4, 2.1, nan, True, "1", 1j], "a number from 0.5 to 2"),
        (Range(0.5, 2.0, above=True), [0.6, 2.0], [0.5, 2.1], "a number > 0.5 to 2"),
        (Range(0.0, inf), [0, 1e300], [-1e-9, inf, nan], "a number from 0"),
        (Range(1e-6, 2e9), [1e-6, 2e9], [0.0, 3e9], "a number from 1e-6 to 2e9"),
    ],
)
def test_ranges_hold_their_ends_and_say_them(wanted: Range, inside: list[Any], outside: list[Any], said: str) -> None:
    assert [wanted.holds(value) for value in inside] == [True] * len(inside)
    assert [wanted.holds(value) for value in outside] == [False] * len(outside)
    assert wanted.said("x") == said


@pytest.mark.parametrize(
    ("name", "unit"),
    [("until_s", "seconds"), ("end_ns", "nanoseconds"), ("memory_mb", "MB"), ("nic_gbps", "Gbit/s"),
     ("disk_gb_per_s", "GB/s"), ("share", "a number"), ("s_of", "a number")],
)  # fmt: skip
def test_the_end_of_a_name_says_the_unit(name: str, unit: str) -> None:
    assert unit_of(name) == unit
    assert Range(0.0, 1.0).said(name) == f"{unit} from 0 to 1"


@pytest.mark.parametrize(
    ("most", "value", "end"), [(inf, inf, ", finite"), (inf, nan, ", finite"), (inf, -1.0, ""), (9.0, inf, " to 9")]
)
def test_that_a_number_is_finite_is_said_where_no_bound_says_it(most: float, value: float, end: str) -> None:
    assert Range(0.0, most).said_of("x", value) == f"a number from 0{end}"


def test_the_clock_ends_after_292_years() -> None:
    assert ns_from_s(LAST_S) < MAX_NS
    assert pytest.approx(9_223_372_036.854775, abs=4e-6) == LAST_S
    assert LAST_S < MAX_NS / 1_000_000_000


@dataclass(frozen=True)
class Settings(Checked, who="tool x"):
    """What a tool is set to."""

    share: float = ranged(0.5, 0.0, 1.0, above=True)
    most: int | None = ranged(None, 1, 9)
    how: Literal["fast", "slow"] = "fast"
    loud: bool = False
    name: str = "any"
    later: int = field(default=0, init=False)


class Finer(Settings):
    """What says no name has its base's."""


class Named(Settings, who="y"):
    """One with a name of its own."""


@dataclass
class Unnamed(Checked):
    """One whose class is its name."""

    rate_s: float = ranged(1.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Settings, {"share": 0.0}, "tool x: share is 0.0; expected a number > 0 to 1"),
        (Settings, {"share": None}, "tool x: share is None; expected a number > 0 to 1"),
        (Settings, {"most": 10}, "tool x: most is 10; expected a whole number from 1 to 9, or none"),
        (Settings, {"how": "slw"}, "tool x: how is 'slw'; expected one of fast, slow. Did you mean 'slow'?"),
        (Settings, {"how": "zzz"}, "tool x: how is 'zzz'; expected one of fast, slow"),
        (Settings, {"how": 3}, "tool x: how is 3; expected one of fast, slow"),
        (Settings, {"loud": 1}, "tool x: loud is 1; expected True or False"),
        (Finer, {"share": 2}, "tool x: share is 2; expected a number > 0 to 1"),
        (Named, {"share": 2}, "y: share is 2; expected a number > 0 to 1"),
        (Unnamed, {"rate_s": inf}, "Unnamed: rate_s is inf; expected seconds from 0, finite"),
    ],
)  # fmt: skip
def test_a_field_outside_what_it_may_be_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        kind(**given)
    assert str(refused.value) == said


def test_fields_within_what_they_may_be_are_taken() -> None:
    kept = Settings(share=1, most=9, how="slow", loud=True, name="")
    assert (kept.share, kept.most, kept.how, kept.loud) == (1, 9, "slow", True)
    by_name = {each.name: each for each in fields(Settings)}
    assert {name: range_of(each) for name, each in by_name.items() if range_of(each)} == {
        "share": Range(0.0, 1.0, above=True), "most": Range(1, 9),
    }  # fmt: skip
    chosen = {name: choices_of(each) for name, each in by_name.items() if choices_of(each)}
    assert chosen == {"how": ("fast", "slow"), "loud": (True, False)}


def test_arguments_are_checked_against_their_bounds_and_the_first_is_told() -> None:
    check_arguments("f", count=(3, 3, 3), share=(0.0, 0.0), size=(2, 1))
    with pytest.raises(InputError, match=r"^f: share is 1\.5; expected a number from 0 to 1$"):
        check_arguments("f", count=(3, 3, 3), share=(1.5, 0.0, 1.0), size=(0, 1))
    with pytest.raises(InputError, match=r"^f: time_s is inf; expected seconds from 0, finite$"):
        check_arguments("f", time_s=(inf, 0.0))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 78, f"'{'a' * 78}'"),
        ("a" * 79, f"'{'a' * 79}..."),
        ([[[1]]], "[[[...]]]"),
        ([[1]], "[[1]]"),
        (list(range(7)), "[0, 1, 2, 3, 4, 5, ...]"),
        (2**13_998, "657475091831327945...0580450320430137344"),
        (2**13_999, "0x8" + "0" * 77 + "..."),
        ("b" * 300, f"'{'b' * 77}....."),
        (2**14_000, "0x1" + "0" * 77 + "..."),
    ],
)
def test_values_are_shown_short(value: Any, text: str) -> None:
    assert abbreviated(value) == text


def test_names_that_are_near_are_the_nearest_first_and_three_at_most() -> None:
    known = ["fifo", "fifth", "fido", "fif", "srsf"]
    assert nearest_names("fifo", known) == ["fifo", "fif", "fido"]
    assert nearest_names("srsf-1", known) == ["srsf"]
    assert nearest_names("quite-other", known) == []
    assert did_you_mean("fifoo", ["fifo", "srsf"]) == " Did you mean 'fifo'?"
    assert did_you_mean("fif", ["fifo", "fife"]) == " Did you mean 'fifo' or 'fife'?"


@pytest.mark.parametrize(("count", "more"), [(99, ""), (100, ""), (101, " and 1 more"), (1300, " and 1,200 more")])
def test_of_names_that_are_not_near_a_hundred_are_listed(count: int, more: str) -> None:
    known = [f"{number:04}" for number in range(count)]
    listed = ", ".join(known[:100])
    assert did_you_mean("x", known + known[:5]) == f" Known: {listed}{more}."
    assert did_you_mean("x", []) == ""


def test_faults_that_come_from_another_process_are_the_same() -> None:
    import pickle

    came = pickle.loads(pickle.dumps(FaultyInputError(["line 1", "line 2"])))
    assert (came.faults, str(came)) == (("line 1", "line 2"), "line 1\nline 2")


def test_what_an_extra_lacks_is_said_with_how_to_install_it() -> None:
    need("report", "json", "math", extra="report")
    with pytest.raises(InputError, match=r"^report needs json and no_such_x; expected: pip install 'ddlsched\[all\]'$"):
        need("report", "json", "no_such_x", extra="all")


@dataclass
class Inner:
    """What an argument takes."""

    rate: float = 0.0


@says_unknown_arguments
def called(first: int, inner: Inner | None = None) -> int:
    """Return the first."""
    return first


@says_unknown_arguments
class Made:
    """What keeps a number."""

    def __init__(self, number: int = 1) -> None:
        self.number = number


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: called(first=1, frist=2), "called: no argument is named 'frist'. Did you mean 'first'?"),
        (lambda: Made(nmber=2), "Made: no argument is named 'nmber'. Did you mean 'number'?"),
    ],
)
def test_an_argument_that_is_not_known_is_refused_with_the_nearest(call: Any, said: str) -> None:
    with pytest.raises(UnknownNameError) as refused:
        call()
    assert str(refused.value) == said
    assert (called(7), Made(number=4).number) == (7, 4)


def test_what_a_plugin_raises_names_it_and_own_errors_pass() -> None:
    def fail() -> None:
        raise KeyError("k")

    def refuse() -> None:
        raise InputError("no")

    def leave() -> None:
        raise SystemExit(3)

    assert guarded("order x", lambda: 5) == 5
    for who in ("order x", lambda: "order x"):
        with pytest.raises(PluginError, match=r"^order x raised KeyError: 'k'$"):
            guarded(who, fail)
    with pytest.raises(PluginError, match=r"^order x raised SystemExit: 3$"):
        guarded("order x", leave)
    with pytest.raises(InputError, match=r"^no$"):
        guarded("order x", refuse)


class Broken:
    """A plug-in that cannot say what it is."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_a_plugin_is_called_as_it_says_or_by_its_class() -> None:
    assert label(Inner(rate=2.0)) == "Inner(rate=2.0)"
    assert (label(object()), label(Broken())) == ("object", "Broken")


def test_what_is_said_once_is_said_once_and_nobody_minds_a_closed_stream(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        say_once("a remark of this test")
    assert capsys.readouterr().err == "ddlsched: a remark of this test\n"

    def fail(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr("builtins.print", fail)
    say_once("another remark of this test")
