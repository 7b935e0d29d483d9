"""What the traces of a job's ranks must agree on before they are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddlsched.errors import InputError
from ddlsched.training.recorded.rank_steps import EVERYBODY, RankCommunication, RankStep, RankTrace


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The process groups of a job.

    Parameters
    ----------
    num_ranks
        Of the job.
    one_for_all
        Whether there is the trace of one rank only, which stands for all.
    ranks
        Of each group but that of all ranks, by its name.
    sources
        The file of each rank, for messages.
    """

    num_ranks: int
    one_for_all: bool
    ranks: Mapping[str, tuple[int, ...]]
    sources: Mapping[int, str]

    def size(self, group: str) -> int:
        """Return how many ranks a group has."""
        return self.num_ranks if group == EVERYBODY else len(self.ranks[group])

    def members(self, group: str) -> tuple[int, ...]:
        """Return the ranks of a group of which there are traces."""
        return tuple(self.sources) if group == EVERYBODY else self.ranks[group]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that all ranks have, by rank, and what was left out."""

    by_rank: Mapping[int, Sequence[RankStep]]
    count: int
    notes: Counter[str]


def ranks_of_groups(traces: Sequence[RankTrace], num_ranks: int | None = None) -> JobGroups:
    """Return the groups of a job; those that are all ranks get the name of everybody's (see :func:`common_steps`).

    Raises
    ------
    InputError
        A rank is missing, unknown or there twice; a group is not defined, or has other ranks than the job.
    """
    sources = _sources(traces)
    told = next((trace.num_ranks for trace in traces if trace.num_ranks), None)
    total = num_ranks or told or len(traces)
    one_for_all = len(traces) == 1 and total > 1
    if total == 1:
        raise InputError(f"{traces[0].source}: does not tell how many ranks; expected their number, or a file a rank")
    if not one_for_all:
        missing = [rank for rank in range(total) if rank not in sources]
        if missing:
            shown = ", ".join(map(str, missing[:8]))
            have = f"{len(traces)} of {total} files"
            raise InputError(f"{traces[0].source}: rank {shown} is missing ({have}); expected a file a rank, or one")
        if len(sources) > total:
            raise InputError(f"{traces[-1].source}: is of rank {max(sources)}; expected ranks from 0 to {total - 1}")
    ranks = {}
    for trace in traces:
        for name in _names(trace):
            ranks[name] = _defined(trace, name, total, one_for_all)
    return JobGroups(total, one_for_all, ranks, sources)


def _sources(traces: Sequence[RankTrace]) -> dict[int, str]:
    sources: dict[int, str] = {}
    for trace in traces:
        rank = 0 if trace.rank is None and len(traces) == 1 else trace.rank
        if rank is None:
            raise InputError(f"{trace.source}: does not tell its rank; expected a name such as job.0.et")
        if rank in sources:
            raise InputError(f"{trace.source}: is of rank {rank}, as is {sources[rank]}; expected a file a rank")
        sources[rank] = trace.source
    return dict(sorted(sources.items()))


def _names(trace: RankTrace) -> list[str]:
    used = {each.group: each.kind for step in trace.steps.values() for each in step.communications}
    return [name for name in used if name != EVERYBODY]


def _defined(trace: RankTrace, name: str, num_ranks: int, one_for_all: bool) -> tuple[int, ...]:
    """Return the ranks of a group that a trace uses."""
    if " to " in name and name not in trace.groups:
        ends = name.split(" (")[0].split(" to ")
        ranks: tuple[int, ...] = (int(ends[0]), int(ends[1]))
    elif name not in trace.groups:
        known = ", ".join(map(repr, trace.groups)) or "none"
        raise InputError(
            f"{trace.source}, field pg_name: group {name!r} is defined nowhere (there is {known}); expected its ranks "
            'in a process_group:init node, or in a file {"1": [0, 1], ...}'
        )
    else:
        ranks = trace.groups[name] or tuple(range(num_ranks))
    if max(ranks) >= num_ranks:
        raise InputError(f"{trace.source}: group {name!r} has rank {max(ranks)}; expected ranks below {num_ranks}")
    if one_for_all and len(ranks) < num_ranks:
        raise InputError(
            f"{trace.source}: takes part in group {name!r} of {len(ranks)} of the {num_ranks} ranks; "
            "expected a file a rank: one can stand for all only if its groups are of all"
        )
    return ranks


def common_steps(traces: Sequence[RankTrace]) -> Steps:
    """Return the steps that every rank has, without those whose form is not that of the last.

    Raises
    ------
    InputError
        There is none.
    """
    common = set.intersection(*(set(trace.steps) for trace in traces))
    notes = sum((trace.notes for trace in traces), Counter[str]())
    there = {number for trace in traces for number in trace.steps}
    if len(there) > len(common):
        notes["steps that not every rank has, left out"] += len(there) - len(common)
    if not common:
        raise InputError(f"{traces[0].source}: has no step in common with {traces[-1].source}; expected the same steps")
    last = {trace.source: trace.steps[max(common)].form() for trace in traces}
    kept = [
        number for number in sorted(common) if all(trace.steps[number].form() == last[trace.source] for trace in traces)
    ]
    if len(kept) < len(common):
        notes["steps that communicate otherwise than the last, left out"] += len(common) - len(kept)
    ranks = {(0 if trace.rank is None else trace.rank): trace for trace in traces}
    by_rank = {rank: [ranks[rank].steps[number] for number in kept] for rank in sorted(ranks)}
    return Steps(by_rank, len(kept), notes)


def agreed(groups: JobGroups, steps: Steps) -> None:
    """Check that the members of each group have the same collectives in the same order.

    Raises
    ------
    InputError
        With the two files, the group, the place of the collective in it, and the field that differs.
    """
    if groups.one_for_all:
        return
    by_rank = {rank: _by_group(own[0]) for rank, own in steps.by_rank.items()}
    for name in [EVERYBODY, *groups.ranks]:
        first, *others = groups.members(name)
        wanted = by_rank[first].get(name, [])
        for rank in others:
            _refuse_difference(groups, name, (first, wanted), (rank, by_rank[rank].get(name, [])))


def _by_group(step: RankStep) -> dict[str, list[RankCommunication]]:
    found: dict[str, list[RankCommunication]] = {}
    for each in step.communications:
        found.setdefault(each.group, []).append(each)
    return found


_Own: TypeAlias = tuple[int, Sequence[RankCommunication]]
"""A rank, and its collectives in a group."""


def _refuse_difference(groups: JobGroups, name: str, first: _Own, other: _Own) -> None:
    shown = "of all ranks" if name == EVERYBODY else repr(name)
    where = f"{groups.sources[other[0]]}: in group {shown}, rank {other[0]}"
    if len(first[1]) != len(other[1]):
        counts = f"takes part in {len(other[1])} collectives, rank {first[0]} in {len(first[1])}"
        raise InputError(f"{where} {counts}; expected the same on each of its ranks")
    for number, (wanted, found) in enumerate(zip(first[1], other[1], strict=True), start=1):
        for field in ("kind", "input_bytes"):
            ours, theirs = getattr(found, field), getattr(wanted, field)
            if ours != theirs:
                raise InputError(
                    f"{where}, collective {number}: {field} is {ours}, on rank {first[0]} {theirs}; "
                    "expected the same on each of its ranks"
                )
