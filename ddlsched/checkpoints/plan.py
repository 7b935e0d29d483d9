"""Who sends what to whom when a job's parallelism changes.

Nothing is sent that the device, or another device of its host, already holds. What a host lacks it fetches once, from
the nearest hosts that have it and among these from the least loaded; its other devices copy it within the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from ddlsched.checkpoints.collection import Shard, TensorCollection
from ddlsched.checkpoints.division import TensorCell, divided
from ddlsched.checkpoints.tensors import DTYPE_BYTES, Tensor
from ddlsched.errors import InputError

Way: TypeAlias = Literal["kept", "host", "network", "relayed"]
"""How a rank gets a cell: its device has it; another device of its host has it; another host sends it; another rank of
its host, to which another host sent it, hands it on."""
Distance: TypeAlias = Callable[[int, int], float]
"""How far the second host is from the first."""


class NoReplicaError(InputError):
    """A part of a tensor that no surviving rank holds."""


class Move(NamedTuple):
    """How a new rank gets one cell of a tensor; ``source`` is the old rank whose copy it is in the end."""

    cell: int
    source: int
    target: int
    way: Way


class TensorPlan(NamedTuple):
    """The moves of one tensor."""

    tensor: Tensor
    old: tuple[Shard, ...]
    new: tuple[Shard, ...]
    cells: tuple[TensorCell, ...]
    moves: tuple[Move, ...]

    def cell_bytes(self, cell: int) -> int:
        """Return the size of a cell."""
        return self.cells[cell].box.num_elements * DTYPE_BYTES[self.tensor.dtype]


@dataclass(frozen=True, kw_only=True)
class ReshardPlan:
    """All moves from one collection to another.

    Parameters
    ----------
    old, new
        The job before and after.
    tensors
        The moves of each tensor, in the order of the new collection.
    lower_bound_bytes
        Bytes that must reach each new host from others, whatever the plan: what its ranks need and it does not hold.
    """

    old: TensorCollection
    new: TensorCollection
    tensors: tuple[TensorPlan, ...]
    lower_bound_bytes: Mapping[int, int]

    @cached_property
    def bytes_by_way(self) -> Mapping[Way, int]:
        """Bytes of all moves, by how ranks get them."""
        found: Counter[Way] = Counter({"kept": 0, "host": 0, "network": 0, "relayed": 0})
        for (_, _, way), num_bytes in self.bytes_between_ranks.items():
            found[way] += num_bytes
        return found

    @cached_property
    def bytes_between_hosts(self) -> Mapping[tuple[int, int], int]:
        """Bytes over the network by sending and receiving host."""
        found: Counter[tuple[int, int]] = Counter()
        senders, receivers = self.old.allocation.hosts, self.new.allocation.hosts
        for (source, target, way), num_bytes in self.bytes_between_ranks.items():
            if way == "network":
                found[senders[source], receivers[target]] += num_bytes
        return found

    @cached_property
    def bytes_between_ranks(self) -> Mapping[tuple[int, int, Way], int]:
        """Bytes by old rank, new rank and way; what is handed on counts from the old rank it came from."""
        found: Counter[tuple[int, int, Way]] = Counter()
        for tensor in self.tensors:
            for move in tensor.moves:
                found[move.source, move.target, move.way] += tensor.cell_bytes(move.cell)
        return found


class _Need(NamedTuple):
    """A cell that a host lacks, the ranks there that need it, and the old ranks that have it."""

    num_bytes: int
    tensor: int
    cell: int
    host: int
    targets: tuple[int, ...]
    sources: tuple[int, ...]


def plan(
    old: TensorCollection, new: TensorCollection, *, lost: Collection[int] = (), distance: Distance | None = None
) -> ReshardPlan:
    """Return how a job's state gets from one collection to another.

    Parameters
    ----------
    old, new
        The job before and after: the same tensors.
    lost
        Old ranks whose state is gone.
    distance
        How far hosts are from each other; none given: all are equally far.

    Raises
    ------
    InputError
        The collections differ in a tensor, or no replica of a part survives.
    """
    refuse_differences(old, new)
    drafts, needs = _drafts(old, new, frozenset(lost))
    bound: Counter[int] = Counter(dict.fromkeys(sorted(set(new.allocation.hosts)), 0))
    for need in needs:
        bound[need.host] += need.num_bytes
    moves: list[list[Move]] = [list(draft.moves) for draft in drafts]
    for need, source in _assigned(needs, old.allocation.hosts, distance):
        first, *others = need.targets
        moves[need.tensor].append(Move(need.cell, source, first, "network"))
        moves[need.tensor] += [Move(need.cell, source, target, "relayed") for target in others]
    tensors = tuple(draft._replace(moves=tuple(found)) for draft, found in zip(drafts, moves, strict=True))
    return ReshardPlan(old=old, new=new, tensors=tensors, lower_bound_bytes=bound)


def refuse_differences(old: TensorCollection, new: TensorCollection) -> None:
    """Raise InputError unless both hold the same tensors."""
    for tensor in new.tensors:
        before = old.by_name.get(tensor.name)
        if before is None:
            raise InputError(f"tensor {tensor.name}: is not in the old collection; expected the same tensors")
        if (before.shape, before.dtype) != (tensor.shape, tensor.dtype):
            text = f"tensor {tensor.name}: was {before.dtype} {list(before.shape)}"
            raise InputError(f"{text} and becomes {tensor.dtype} {list(tensor.shape)}; expected the same")
    missing = sorted(set(old.by_name) - set(new.by_name))
    if missing:
        raise InputError(f"tensor {missing[0]}: is not in the new collection; expected the same tensors")


def _drafts(old: TensorCollection, new: TensorCollection, lost: frozenset[int]) -> tuple[list[TensorPlan], list[_Need]]:
    """Return the moves that stay within hosts, and what hosts lack."""
    drafts, needs = [], []
    wanted = _Wanted(old, new, lost)
    for number, tensor in enumerate(new.tensors):
        before = wanted.survivors(old.by_name[tensor.name])
        after = new.shards(tensor)
        cells = divided(tuple(shard.layout for shard in before), tuple(shard.layout for shard in after))
        draft = TensorPlan(tensor, before, after, cells, ())
        moves, lacking = wanted.of_tensor(number, draft)
        drafts.append(draft._replace(moves=tuple(moves)))
        needs += lacking
    return drafts, needs


class _Wanted:
    """What each new rank wants of a tensor, and where the nearest copy is."""

    def __init__(self, old: TensorCollection, new: TensorCollection, lost: frozenset[int]) -> None:
        self.old, self.lost = old, lost
        self.old_devices, self.old_hosts = old.allocation.devices, old.allocation.hosts
        self.new_devices, self.new_hosts = new.allocation.devices, new.allocation.hosts

    def survivors(self, tensor: Tensor) -> tuple[Shard, ...]:
        """Return the shards of an old tensor without the ranks that are lost."""
        shards = self.old.shards(tensor)
        if not self.lost:
            return shards
        kept = (Shard(layout, tuple(rank for rank in ranks if rank not in self.lost)) for layout, ranks in shards)
        return tuple(shard for shard in kept if shard.ranks)

    def of_tensor(self, number: int, draft: TensorPlan) -> tuple[list[Move], list[_Need]]:
        """Return a tensor's moves within hosts, and what hosts lack of it."""
        moves: list[Move] = []
        needs: list[_Need] = []
        holders: dict[object, tuple[tuple[int, ...], dict[int, int], dict[int, int]]] = {}
        for index, cell in enumerate(draft.cells):
            if not cell.old:
                raise _no_replica(draft.tensor, cell, self.lost)
            key = tuple(holding.shard for holding in cell.old)
            if key not in holders:
                holders[key] = self._by_device_and_host(draft.old, key)
            sources, by_device, by_host = holders[key]
            lacking: dict[int, list[int]] = defaultdict(list)
            for target in _ranks(draft.new, [holding.shard for holding in cell.new]):
                if (device := self.new_devices[target]) in by_device:
                    moves.append(Move(index, by_device[device], target, "kept"))
                elif (host := self.new_hosts[target]) in by_host:
                    moves.append(Move(index, by_host[host], target, "host"))
                else:
                    lacking[host].append(target)
            for host, of in lacking.items():
                needs.append(_Need(draft.cell_bytes(index), number, index, host, tuple(of), sources))
        return moves, needs

    def _by_device_and_host(
        self, shards: Sequence[Shard], numbers: Sequence[int]
    ) -> tuple[tuple[int, ...], dict[int, int], dict[int, int]]:
        """Return the old ranks that have a cell, those by device, and one by host."""
        sources = _ranks(shards, numbers)
        by_host = {self.old_hosts[rank]: rank for rank in reversed(sources)}
        return sources, {self.old_devices[rank]: rank for rank in sources}, by_host


def _ranks(shards: Sequence[Shard], numbers: Sequence[int]) -> tuple[int, ...]:
    if len(numbers) == 1:
        return shards[numbers[0]].ranks
    return tuple(sorted({rank for number in numbers for rank in shards[number].ranks}))


def _no_replica(tensor: Tensor, cell: TensorCell, lost: frozenset[int]) -> NoReplicaError:
    ranges = ", ".join(f"{first}:{first + rows}" for first, rows in zip(*cell.box, strict=True))
    who = f"with rank{'s' * (len(lost) > 1)} {', '.join(map(str, sorted(lost)))} lost, " if lost else ""
    return NoReplicaError(f"tensor {tensor.name}: {who}no replica of [{ranges}] is left; expected one at least")


def _assigned(needs: Sequence[_Need], hosts: Sequence[int], distance: Distance | None) -> Iterator[tuple[_Need, int]]:
    """Yield each need with the old rank that serves it: the nearest, then the least loaded.

    Those with the fewest ranks to choose from come first, of these the largest: the others even out what is left.
    """
    host_bytes: Counter[int] = Counter()
    rank_bytes: Counter[int] = Counter()
    for need in sorted(needs, key=lambda need: (len(need.sources), -need.num_bytes)):
        near = need.sources
        if distance is not None:
            away = {rank: distance(hosts[rank], need.host) for rank in near}
            near = tuple(rank for rank in near if away[rank] == min(away.values()))
        source = min(near, key=lambda rank: (host_bytes[hosts[rank]], rank_bytes[rank], rank))
        host_bytes[hosts[source]] += need.num_bytes
        rank_bytes[source] += need.num_bytes
        yield need, source
