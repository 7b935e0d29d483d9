"""Item 12: a collective that sends little takes in the recorded job what it took."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ddlsched.training.recorded.agreement import JobGroups
from ddlsched.training.recorded.merging import SMALL_BYTES, Line, RecordedIteration, iteration_of, merged
from ddlsched.training.recorded.rank_steps import MarkKind, RankCommunication, RankStep, RankTrace, WallTime
from ddlsched.workload.dag import ComputeTask

CALL_NS = 40


def step(
    calls: Sequence[tuple[tuple[int, int], tuple[int, int] | None]],
    length_ns: int,
    *,
    begin_ns: int = 0,
    input_bytes: int = 16,
) -> RankStep:
    """Return a step; of each call it is given when the collective was under way, and when the rank waited for it."""
    stretch = WallTime(begin_ns, begin_ns + length_ns, CALL_NS)
    for work, waited in calls:
        work_ns = (begin_ns + work[0], begin_ns + work[1])
        waited_ns = waited and (begin_ns + waited[0], begin_ns + waited[1])
        stretch.communicate(RankCommunication("all-reduce", input_bytes), work_ns[0], waited_ns, work_ns)
    return stretch.step()


def of_ranks(*steps: RankStep, num_ranks: int | None = None) -> RecordedIteration:
    ranks = num_ranks or len(steps)
    return merged([RankTrace(f"{rank}", rank, ranks, {}, {0: own}, 1) for rank, own in enumerate(steps)], ranks)


def alone(own: RankStep) -> RecordedIteration:
    return of_ranks(own, num_ranks=2)


def computed_ns(made: RecordedIteration) -> int:
    return made.moments_ns[0][-1]


def test_a_rank_that_stands_for_all_pays_what_a_call_takes_on_average() -> None:
    """Calls of 40 ns: of a wait of 100, 60 are the network's; one of 30 is all cost; between them 20 are computed."""
    made = alone(step([((100, 200), (100, 200)), ((220, 250), (220, 250))], 1000))
    assert made.moments_ns == ((100, 100, 160, 160, 940),)


def test_buckets_that_are_waited_for_together_cost_one_call() -> None:
    assert computed_ns(alone(step([((begin, 700), (400, 700)) for begin in (100, 200, 300)], 1000))) == 700 + CALL_NS


def test_calls_that_end_one_after_another_in_one_wait_cost_a_call_each() -> None:
    """Of 5 calls of 40 ns 1 ended while the rank computed, 3 in its first wait of 300, 1, told late, in the next."""
    calls = [
        ((100, 350), None), ((110, 500), (400, 700)), ((120, 600), None), ((130, 700), None), ((140, 790), (700, 780))
    ]  # fmt: skip
    assert computed_ns(alone(step(calls, 1000))) == 1000 - 180 - 40


def test_what_a_small_call_takes_once_the_last_rank_has_called_is_its_cost() -> None:
    """The first rank computes 100, the second 300; the call takes 90 and 110 from then on, and 600 follow."""
    made = of_ranks(step([((100, 390), (100, 390))], 990), step([((300, 410), (300, 410))], 1010))
    assert made.moments_ns == ((300, 300, 1010),)
    assert [task.name for task in made.dag.tasks] == ["compute-1", "all-reduce-1", "compute-2"]
    assert made.dag.tasks[2].after == ("compute-1", "all-reduce-1")


def test_ranks_do_not_meet_where_they_find_a_call_done() -> None:
    """Two calls issued together; one rank wakes late from the first, the other from the second: no step takes both."""
    early = step([((100, 200), (110, 200)), ((105, 300), (201, 340))], 1000)
    late = step([((100, 200), (110, 240)), ((105, 300), (241, 300))], 1000)
    assert computed_ns(of_ranks(early, late)) == 1000


def test_a_large_call_costs_what_calls_take_on_average() -> None:
    """Of 290 ns of a message above the bound all but 40 are the network's."""
    for input_bytes, computed in ((SMALL_BYTES, 1000), (SMALL_BYTES + 1, 1000 - 290 + CALL_NS)):
        both = [step([((100, 390), (100, 390))], 1000, input_bytes=input_bytes)] * 2
        assert computed_ns(of_ranks(*both)) == computed


def test_the_shares_of_all_ranks_count() -> None:
    """Two shares of the bound each are gathered: a call of 290 ns costs 40."""
    call = RankCommunication("all-gather", SMALL_BYTES)
    stretch = WallTime(0, 1000, CALL_NS)
    stretch.communicate(call, 100, (100, 390), (100, 390))
    assert computed_ns(of_ranks(stretch.step(), stretch.step())) == 1000 - 290 + CALL_NS


@pytest.mark.parametrize("apart_ns", [-10_000, 10_000])
def test_ranks_whose_clocks_disagree_pay_what_a_call_takes_on_average(apart_ns: int) -> None:
    calls = [((100, 390), (100, 390))]
    made = of_ranks(step(calls, 1000), step(calls, 1000, begin_ns=apart_ns))
    assert computed_ns(made) == 1000 - 290 + CALL_NS
    assert [note for note in made.notes if "clocks of ranks disagree" in note]


def test_what_computation_hides_costs_nothing() -> None:
    """A call that ends before its wait begins."""
    both = [step([((100, 300), (500, 500))], 1000)] * 2
    assert of_ranks(*both).moments_ns == ((100, 500, 1000),)


def test_at_one_moment_a_wait_ends_before_a_phase_begins_and_that_before_its_calls() -> None:
    stretch, call = WallTime(0, 1000), RankCommunication("all-reduce", 16)
    for name, at_ns in (("forward", 0), ("backward", 100), ("optimizer", 300)):
        stretch.phase(name, at_ns)
    for start_ns, waited_ns in ((100, (200, 300)), (300, (300, 300))):
        stretch.communicate(call, start_ns, waited_ns, None)
    marks = [mark.what if mark.kind is MarkKind.PHASE else (mark.kind, mark.what) for mark in stretch.step().marks]
    first, second = [[(kind, number) for kind in (MarkKind.STARTS, MarkKind.WAITS)] for number in (0, 1)]
    assert marks == ["forward", "backward", *first, "optimizer", *second]


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (((0, 1, 2, 3),), [None]),
        (((0, 1, 2), (3,)), ["ranks 0-2", "rank 3"]),
        (((0, 1), (2, 3)), ["ranks 0-1", "ranks 2-3"]),
        (((0, 2, 3), (1,)), ["ranks 0,2,3", "rank 1"]),
        (((0,), (1, 2, 3)), ["rank 0", "ranks 1-3"]),
    ],
)
def test_a_class_is_named_by_its_ranks(classes: tuple[tuple[int, ...], ...], names: list[str | None]) -> None:
    lines = [Line(ranks, (), ((MarkKind.PHASE, "forward"),), (10, 30)) for ranks in classes]
    dag = iteration_of(lines, JobGroups(4, False, {}, {}))
    computes = [(task.name, task.group, task.duration_ns) for task in dag.tasks if isinstance(task, ComputeTask)]
    ends = ["" if name is None else f" of {name}" for name in names]
    assert computes == [
        (f"{part}{end}", name, ns)
        for name, end in zip(names, ends, strict=True)
        for part, ns in (("compute-1", 10), ("forward-1", 20))
    ]
    assert dag.groups == {name: (ranks,) for name, ranks in zip(names, classes, strict=True) if name}
