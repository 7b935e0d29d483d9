"""Which fields of a policy travel as numbers, and what a job is taken to have left if its length is misjudged."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ddlsched.policies.compiling.source import Fields, _same
from ddlsched.policies.job_view import JobQueue, JobsTogether, JobView
from ddlsched.testing import cluster_view, job_view


class Colour(enum.IntEnum):
    RED = 3


class Text(enum.Enum):
    A = 1


class Whole(int):
    """No number of Python's own."""


NUMBERS = [0, True, -1.5, float("nan"), 2**63 - 1, -(2**63), Colour.RED]
NO_NUMBERS = [2**63, -(2**63) - 1, np.float64(1.0), np.int64(1), Whole(1), Text.A, "1", None, 1j]
ARRAYS = [np.zeros(3, np.int64), np.zeros((2, 2)), np.zeros((1, 2, 3))]
NO_ARRAYS = [
    np.zeros(3, np.int32), np.zeros(3, bool), np.zeros(()), np.zeros((1, 1, 1, 1)), np.zeros(6)[::2],
    np.zeros((2, 2)).T[:1], np.frombuffer(bytes(17), np.float64, 2, 1), [0.0],
]  # fmt: skip


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
def test_pythons_own_numbers_of_64_bits_are_numbers(value: Any) -> None:
    fields = Fields.of(Plain(value))
    assert [*fields.numbers, *fields.arrays, *fields.others] == ["value"]
    assert "value" in fields.numbers


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_of_64_bits_is_something_else(value: Any) -> None:
    assert [*Fields.of(Plain(value)).others] == ["value"]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.shape))
def test_arrays_of_one_to_three_axes_travel_by_address(array: np.ndarray) -> None:
    fields = Fields.of(Plain(array))
    assert [*fields.arrays] == ["value"]
    axes = [f"value__{axis}" for axis in range(array.ndim)]
    assert fields.dtype.names == ("value__address", *axes)
    shape = "".join(f"self.{axis}, " for axis in axes)
    kind = {"i": "int64", "f": "float64"}[array.dtype.kind]
    assert fields.array_expression("self", "value") == f"{kind}_array__(self.value__address, ({shape}))"


@pytest.mark.parametrize("array", NO_ARRAYS, ids=lambda array: getattr(array, "dtype", "list"))
def test_other_arrays_do_not(array: Any) -> None:
    assert [*Fields.of(Plain(array)).others] == ["value"]


@dataclass(frozen=True)
class Frozen:
    b: float = 1.5
    a: int = 2
    c: np.ndarray = field(default_factory=lambda: np.zeros(2))
    d: str = "x"


@dataclass
class Open:
    a: int = 2
    d: str = "x"


def test_a_record_has_the_numbers_by_name_and_then_the_arrays() -> None:
    fields = Fields.of(Frozen())
    assert (fields.numbers, [*fields.arrays], fields.others) == ({"b": 1.5, "a": 2}, ["c"], {"d": "x"})
    assert fields.names == {"a", "b", "c", "d"}
    assert fields.dtype.names == ("a", "b", "c__address", "c__0")
    assert [fields.dtype[name] for name in ("a", "b", "c__0")] == [np.int64, np.float64, np.int64]
    assert Fields.of(object()).dtype.names == ("nothing__",)


@pytest.mark.parametrize(
    ("policy", "name", "said"),
    [
        (Frozen(), "a", "changes a frozen dataclass"),
        (Open(), "d", "sets a field that was no number when the run began"),
        (Open(), "z", "sets a field that was no number when the run began"),
        (Open(), "a", None),
        (Plain(1), "value", None),
    ],
)
def test_code_may_set_numbers_of_what_is_not_frozen(policy: Any, name: str, said: str | None) -> None:
    refused: list[str] = []

    def error(why: str) -> Any:
        refused.append(why)
        return ValueError(why)

    try:
        Fields.of(policy).refuse_change(name, error)
    except ValueError:
        assert refused == [said]
    else:
        assert said is None


CODES = {
    "def f(a): return a + 1": True,
    "def f(a): return a + 2": False,
    "def f(a): return a - 1": False,
    "def f(b): return b + 1": False,
    "def f(a): return a + 1.0": False,
    "def f(a): return a + True": False,
}


@pytest.mark.parametrize("text", CODES)
@pytest.mark.parametrize("around", ["{}", "class C:\n    {}", "def g():\n    {}\n    return f"])
def test_codes_are_the_same_if_all_within_them_is(text: str, around: str) -> None:
    one, other = (compile(around.format(each), "file", "exec") for each in (next(iter(CODES)), text))
    assert _same(one, other) is CODES[text]
    assert _same(other, one) is CODES[text]


def test_codes_that_call_others_or_have_more_constants_are_not_the_same() -> None:
    one, other, more = (compile(text, "file", "exec") for text in ("f(1)", "g(1)", "f(1); 'x'; f(2)"))
    assert not _same(one, other)
    assert not _same(one, more)


def misjudged(by: int, iterations: int, left: int, **others: Any) -> JobView:
    job = job_view(iterations=iterations, iterations_left=left, compute_s=1e-9, num_gpus=2, **others)
    job._columns.misjudged_iterations[0] = by
    return job


@pytest.mark.parametrize(
    ("by", "left", "iterations", "iterations_left"),
    [
        (0, 4, 10, 4),
        (3, 4, 13, 7),
        (-3, 4, 7, 1),
        (-3, 3, 7, 1),
        (-5, 2, 5, 1),
        (-2, 9, 8, 7),
        (5, 0, 15, 0),
        (-5, 0, 5, 0),
    ],
)
def test_a_job_whose_length_is_misjudged_has_one_iteration_left_at_least(
    by: int, left: int, iterations: int, iterations_left: int
) -> None:
    job = misjudged(by, 10, left)
    assert (job.iterations, job.iterations_left) == (iterations, iterations_left)
    assert job.service_ns == 2 * iterations
    assert job.remaining_service_ns == 2 * iterations_left
    assert job.attained_service_ns == 2 * (10 - left)  # what has been done is known
    job._columns.cut_service_ns[0] = 7
    assert job.used_service_ns == 2 * (10 - left) + 7
    job._columns.communication_ns[0] = 100
    assert job.remaining_time_ns == (iterations_left + 100 * iterations_left, 0.0)
    assert job.remaining_communication_ns == 200 * iterations_left
    together = JobsTogether([job])
    assert together.remaining_service_ns.tolist() == [2 * iterations_left]
    assert together.column("iterations_left").tolist() == [left]


def test_what_remains_for_a_gpu_has_a_fraction() -> None:
    job = misjudged(0, 10, 10)
    job._columns.remaining_service_ns[0] = 7
    assert job.remaining_service_per_gpu_ns == (3, 0.5)
    assert repr(job) == "<job job-0 of 2 GPUs>"
    assert (job.start_s, job.job_id) == (None, "job-0")


def test_a_part_of_a_queue_is_a_queue() -> None:
    views = {number: job_view(number=number) for number in (5, 2, 9)}
    queue = JobQueue(np.array([5, 2, 9]), views)
    assert [job.number for job in queue] == [5, 2, 9]
    assert (len(queue), queue[1].number, queue[-1].number) == (3, 2, 9)
    part = queue[1:]
    assert isinstance(part, JobQueue)
    assert [job.number for job in part] == [2, 9]


def test_without_a_table_of_throughputs_all_jobs_are_as_fast_as_the_gpu() -> None:
    cluster = cluster_view(num_servers=2, gpus_per_server=1)
    assert [cluster.speed(job_view(), gpu) for gpu in range(2)] == [1.0, 1.0]
    assert cluster.kind_of(0) is None
    assert [cluster.relative_speed(gpu) for gpu in range(2)] == [1.0, 1.0]
