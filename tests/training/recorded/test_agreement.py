"""What the traces of ranks must agree on: traces put together here, right ones and ones with one thing wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kept_numbers import answered

from ddlsched.training.recorded.agreement import agreed, common_steps, ranks_of_groups
from ddlsched.training.recorded.rank_steps import EVERYBODY, Mark, MarkKind, RankCommunication, RankStep, RankTrace


def step(*calls: tuple[str, int, str], phases: Sequence[str] = ()) -> RankStep:
    marks = tuple(Mark(MarkKind.PHASE, name, 1) for name in phases)
    return RankStep(9, tuple(RankCommunication(*call) for call in calls), marks)


def trace(
    rank: int | None,
    steps: Mapping[int, RankStep],
    groups: Mapping[str, tuple[int, ...]] | None = None,
    num_ranks: int | None = None,
    notes: Mapping[str, int] | None = None,
) -> RankTrace:
    source = f"file {rank}"
    return RankTrace(source, rank, num_ranks, groups or {}, steps, 1, (), Counter(notes or {}))


ALL, PAIR, SENT = ("all-reduce", 8, EVERYBODY), ("all-gather", 4, "pair"), ("send", 2, "0 to 1")


def pair(count: int = 2, **told: Any) -> list[RankTrace]:
    """Return ranks of which the first two have a group, and the first sends to the second."""
    return [
        trace(rank, {1: step(ALL, *([PAIR, SENT] if rank < 2 else []))}, {"pair": (0, 1)} if rank < 2 else {}, **told)
        for rank in range(count)
    ]


def test_groups_are_those_that_ranks_take_part_in() -> None:
    groups = ranks_of_groups([*reversed(pair(3)[1:]), pair(3)[0]])
    assert (groups.num_ranks, groups.one_for_all) == (3, False)
    assert groups.ranks == {"pair": (0, 1), "0 to 1": (0, 1)}
    assert list(groups.sources.items()) == [(rank, f"file {rank}") for rank in range(3)]
    assert [groups.size(name) for name in (EVERYBODY, "pair")] == [3, 2]
    assert groups.members(EVERYBODY) == (0, 1, 2)
    assert groups.members("pair") == (0, 1)
    assert ranks_of_groups([trace(0, {1: step(PAIR)}, {"pair": ()}), trace(1, {})]).ranks == {"pair": (0, 1)}
    own = {"0 to 1": (1, 0)}
    assert ranks_of_groups([trace(0, {1: step(SENT)}, own), trace(1, {})]).ranks == own
    named = ranks_of_groups([trace(0, {1: step(("send", 2, "1 to 0 (own)"))}), trace(1, {})])
    assert named.ranks == {"1 to 0 (own)": (1, 0)}


def test_one_trace_stands_for_all_ranks_that_it_or_somebody_tells() -> None:
    for groups in (ranks_of_groups([trace(None, {1: step(ALL)}, num_ranks=4)]), ranks_of_groups([trace(2, {})], 4)):
        assert (groups.num_ranks, groups.one_for_all) == (4, True)
        assert len(groups.sources) == len(groups.members(EVERYBODY)) == 1
    assert ranks_of_groups(pair(2, num_ranks=9), 2).num_ranks == 2  # who is asked knows better
    several = ranks_of_groups([trace(0, {}), trace(1, {}, num_ranks=2)])
    assert (several.num_ranks, several.one_for_all) == (2, False)


@pytest.mark.parametrize(
    ("traces", "num_ranks", "refused"),
    [
        ([trace(None, {})], None, "file None: does not tell how many ranks; expected their number"),
        ([trace(0, {})], 1, "file 0: does not tell how many ranks"),
        ([trace(0, {}), trace(None, {})], None, "file None: does not tell its rank; expected a name"),
        ([trace(1, {}), trace(1, {})], None, "file 1: is of rank 1, as is file 1; expected a file a rank"),
        ([trace(0, {}), trace(2, {})], 4, "file 0: rank 1, 3 is missing (2 of 4 files)"),
        ([trace(0, {}), trace(1, {})], 12, "file 0: rank 2, 3, 4, 5, 6, 7, 8, 9 is missing (2 of 12 files)"),
        ([trace(0, {}), trace(1, {}), trace(5, {})], 2, "file 5: is of rank 5; expected ranks from 0 to 1"),
        (
            [trace(0, {1: step(PAIR)}, {"a": (0,), "b": (1,)}), trace(1, {})],
            None,
            "file 0, field pg_name: group 'pair' is defined nowhere (there is 'a', 'b'); expected",
        ),
        (
            [trace(0, {1: step(PAIR)}), trace(1, {})],
            None,
            "file 0, field pg_name: group 'pair' is defined nowhere (there is none)",
        ),
        (
            [trace(0, {1: step(PAIR)}, {"pair": (0, 2)}), trace(1, {})],
            None,
            "file 0: group 'pair' has rank 2; expected ranks below 2",
        ),
        ([trace(0, {1: step(PAIR)}, {"pair": (0, 1)})], 3, "file 0: takes part in group 'pair' of 2 of the 3 ranks"),
    ],
)  # fmt: skip
def test_ranks_and_groups_that_cannot_be_are_refused(traces: Any, num_ranks: int | None, refused: str) -> None:
    assert answered(ranks_of_groups, traces, num_ranks).startswith(refused)


def test_steps_that_all_ranks_have_and_that_are_as_the_last_are_kept() -> None:
    short, other, phased = step(ALL), step(ALL, ALL), step(ALL, phases=("forward",))
    first = trace(0, {1: short, 2: other, 3: other, 5: other, 6: other, 7: short}, notes={"a": 2})
    second = trace(1, {2: other, 3: short, 5: other, 6: other, 8: short}, notes={"a": 1, "b": 4})
    found = common_steps([second, first])
    assert found.count == 3
    assert {rank: len(steps) for rank, steps in found.by_rank.items()} == {0: 3, 1: 3}
    assert list(found.by_rank) == [0, 1]
    assert all(each is other for steps in found.by_rank.values() for each in steps)
    assert found.notes == {
        "a": 3,
        "b": 4,
        "steps that not every rank has, left out": 3,
        "steps that communicate otherwise than the last, left out": 1,
    }
    alone = common_steps([trace(None, {1: short, 2: phased, 3: phased})])
    assert (list(alone.by_rank), alone.count, sum(alone.notes.values())) == ([0], 2, 1)
    assert common_steps([trace(0, {1: short}), trace(1, {1: short})]).notes == {}
    said = answered(common_steps, [trace(0, {1: short}), trace(1, {2: short})])
    assert said == "file 0: has no step in common with file 1; expected the same steps"


def agree(traces: list[RankTrace]) -> str:
    return answered(lambda: agreed(ranks_of_groups(traces), common_steps(traces)))


def test_members_of_a_group_have_the_same_collectives() -> None:
    assert agree(pair(3)) == "None"
    assert agree([trace(1, {1: step(ALL)}, num_ranks=2)]) == "None"
    for number, (own, others, said) in enumerate(
        [
            ([ALL, ALL], [ALL], "in group of all ranks, rank 1 takes part in 1 collectives, rank 0 in 2"),
            ([ALL], [], "in group of all ranks, rank 1 takes part in 0 collectives, rank 0 in 1"),
            ([], [PAIR], "in group 'pair', rank 1 takes part in 1 collectives, rank 0 in 0"),
            ([ALL, ALL], [ALL, ("broadcast", 8, EVERYBODY)],
             "in group of all ranks, rank 1, collective 2: kind is broadcast, on rank 0 all-reduce; expected the same"),
            ([PAIR], [("all-gather", 5, "pair")],
             "in group 'pair', rank 1, collective 1: input_bytes is 5, on rank 0 4; expected the same"),
        ]
    ):  # fmt: skip
        groups = {"pair": (0, 1)}
        traces = [trace(0, {1: step(*own)}, groups), trace(1, {1: step(*others)}, groups)]
        assert agree(traces).startswith(f"file 1: {said}"), number
