"""A parallelizable tensor collection (PTC): a job's tensors, how ranks divide them, and where the ranks run.

References
----------
Wagenländer et al., "Tenplex: Dynamic Parallelism for Deep Learning using Parallelizable Tensor Collections", SOSP 2024.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from ddlsched.checkpoints.tensors import Layout, Place, Tensor, dense_layout, flat_layout
from ddlsched.errors import InputError
from ddlsched.io.tables import located
from ddlsched.plugins.names import made_of_text
from ddlsched.ranges import Checked, ranged

_DEGREES = ("tp", "pp", "dp", "ep")
_MOST = 10**5
"""Ranks; more than any machine has, and few enough that a plan of so many ends."""


class Coordinates(NamedTuple):
    """A rank's place in each kind of group, each counted from 0."""

    tensor: int
    expert: int
    data: int
    stage: int


@dataclass(frozen=True, kw_only=True)
class StoredParallelism(Checked, who="parallelism"):
    """Degrees of parallelism; ranks are numbered tensor-parallel neighbours first, then data, then pipeline.

    Parameters
    ----------
    tp, pp, dp
        Ranks of a tensor-parallel group, pipeline stages, data-parallel replicas; their product is the number of ranks.
    ep
        Ranks over which the experts are spread; part of the data-parallel ones, neighbours first.

    Raises
    ------
    InputError
        A degree is no whole number from 1, or ``ep`` does not divide ``dp``.
    """

    tp: int = ranged(1, 1, _MOST)
    pp: int = ranged(1, 1, _MOST)
    dp: int = ranged(1, 1, _MOST)
    ep: int = ranged(1, 1, _MOST)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_ranks > _MOST:
            raise InputError(f"{self} has {self.num_ranks:,} ranks; expected at most {_MOST:,}")
        if self.dp % self.ep:
            raise InputError(f"ep {self.ep} does not divide dp {self.dp}; expected experts on whole groups of replicas")

    @property
    def num_ranks(self) -> int:
        """Product of tp, pp and dp."""
        return self.tp * self.pp * self.dp

    def coordinates(self, rank: int) -> Coordinates:
        """Return where a rank is in each kind of group."""
        rest, tensor = divmod(rank, self.tp)
        stage, data = divmod(rest, self.dp)
        return Coordinates(tensor, data % self.ep, data, stage)

    def rank(self, tensor: int, data: int, stage: int) -> int:
        """Return the number of the rank at these coordinates."""
        return tensor + self.tp * (data + self.dp * stage)

    def __str__(self) -> str:
        """Return the text that :func:`parse_parallelism` reads."""
        names = _DEGREES if self.ep > 1 else _DEGREES[:3]
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


def parse_parallelism(text: str) -> StoredParallelism:
    """Return the parallelism of a text such as ``tp=4,pp=2,dp=2``; what it leaves out is 1.

    Raises
    ------
    InputError
        A part is no degree, or is there twice.
    """
    return made_of_text(f"parallelism {text}", StoredParallelism, text)


def even_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the stage of each layer, in order and as even as can be; earlier stages get the layers left over.

    Raises
    ------
    InputError
        There are fewer layers than stages (a model without layers fits one stage).
    """
    if num_stages > max(num_layers, 1):
        raise InputError(f"pp is {num_stages}; expected at most the number of layers, {num_layers}")
    each, left = divmod(num_layers, num_stages)
    return tuple(stage for stage in range(num_stages) for _ in range(each + (stage < left)))


class Shard(NamedTuple):
    """A part of a tensor, and the ranks that hold it, ascending: its replicas."""

    layout: Layout
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StoredRegion:
    """The device and the host of each rank, in the order of ranks."""

    devices: tuple[int, ...]
    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "hosts", tuple(self.hosts))
        if len(self.devices) != len(self.hosts):
            raise InputError(f"{len(self.devices)} devices on {len(self.hosts)} hosts; expected a host for each device")
        if len(set(self.devices)) != len(self.devices):
            raise InputError("a device has two ranks; expected a device for each rank")
        if any(number < 0 for number in self.devices + self.hosts):
            raise InputError("a device or host has a negative number; expected numbers from 0")

    @classmethod
    def packed(cls, num_ranks: int, gpus_per_host: int = 8, first_device: int = 0) -> StoredRegion:
        """Return ranks on consecutive devices, ``gpus_per_host`` on each host."""
        if gpus_per_host < 1:
            raise InputError(f"gpus_per_host is {gpus_per_host}; expected a whole number from 1")
        devices = tuple(range(first_device, first_device + num_ranks))
        return cls(devices=devices, hosts=tuple(device // gpus_per_host for device in devices))


@dataclass(frozen=True, kw_only=True)
class TensorCollection:
    """A job's state under one parallelism.

    Parameters
    ----------
    tensors
        In the order in which flat buffers hold them.
    parallelism
        Degrees of parallelism.
    stages
        The stage of each layer, any map; none given: as even as can be, in order.
    allocation
        Where each rank runs; none given: packed on hosts of 8 devices.
    flat_multiple
        A flat buffer is padded so that each rank's part is a multiple of this many elements.

    Raises
    ------
    InputError
        Two tensors share a name, a tensor's layer has no stage, or the allocation has not a device for each rank.
    """

    tensors: tuple[Tensor, ...]
    parallelism: StoredParallelism
    stages: tuple[int, ...] = ()
    allocation: StoredRegion = StoredRegion(devices=(), hosts=())
    flat_multiple: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))
        if not self.stages:
            object.__setattr__(self, "stages", even_stages(self.num_layers, self.parallelism.pp))
        if not self.allocation.devices:
            object.__setattr__(self, "allocation", StoredRegion.packed(self.num_ranks))
        object.__setattr__(self, "stages", tuple(self.stages))
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) < len(names):
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise InputError(f"tensor {twice}: is there twice; expected a name of its own")
        if len(self.stages) < self.num_layers:
            raise InputError(f"the stage map has {len(self.stages)} layers; expected the model's {self.num_layers}")
        wrong = [stage for stage in self.stages if not 0 <= stage < self.parallelism.pp]
        if wrong:
            raise InputError(f"the stage map has stage {wrong[0]}; expected stages from 0 to {self.parallelism.pp - 1}")
        if len(self.allocation.devices) != self.num_ranks:
            raise InputError(f"{len(self.allocation.devices)} devices for {self.num_ranks} ranks; expected one each")

    @cached_property
    def num_layers(self) -> int:
        """Layers of the model: one more than the highest that a tensor belongs to."""
        layers = (place for tensor in self.tensors for place in tensor.places if isinstance(place, int))
        return 1 + max(layers, default=-1)

    @property
    def num_ranks(self) -> int:
        """Ranks of the job."""
        return self.parallelism.num_ranks

    def resized(
        self, to: StoredParallelism, *, stages: Sequence[int] = (), allocation: StoredRegion | None = None
    ) -> TensorCollection:
        """Return the same tensors under another parallelism.

        Without ``stages`` the stage map stays if the number of stages does, else it is even; without ``allocation`` it
        is a new job's.
        """
        kept = self.stages if to.pp == self.parallelism.pp else ()
        new = StoredRegion(devices=(), hosts=()) if allocation is None else allocation
        return dataclasses.replace(self, parallelism=to, stages=tuple(stages) or kept, allocation=new)

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def stages_of(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the stages that hold a tensor, ascending."""
        return tuple(sorted({self._stage(place) for place in tensor.places}))

    def _stage(self, place: Place) -> int:
        if place == "first":
            return 0
        return self.parallelism.pp - 1 if place == "last" else self.stages[place]

    def shards(self, tensor: Tensor) -> tuple[Shard, ...]:
        """Return the different parts of a tensor and who holds each; a rank without any element is in none.

        Raises
        ------
        InputError
            The tensor does not divide among the ranks.
        """
        holders: dict[Layout, list[int]] = defaultdict(list)
        for stage in self.stages_of(tensor):
            for layout, ranks in self._held(tensor, stage):
                if layout.num_elements:
                    holders[layout] += ranks
        return tuple(Shard(layout, tuple(sorted(ranks))) for layout, ranks in holders.items())

    def _held(self, tensor: Tensor, stage: int) -> Iterator[tuple[Layout, list[int]]]:
        """Yield what ranks of a stage hold of a tensor; of a flat one, only ranks with an element of it."""
        parallelism = self.parallelism
        experts = parallelism.ep if tensor.over_experts else 1
        for index, expert in product(range(parallelism.tp), range(experts)):
            replicas = range(expert, parallelism.dp, experts)
            for layout, sharing in self._divided(tensor, stage, index, expert, replicas):
                yield layout, [parallelism.rank(index, data, stage) for data in sharing]

    def _divided(
        self, tensor: Tensor, stage: int, index: int, expert: int, replicas: range
    ) -> Iterator[tuple[Layout, Sequence[int]]]:
        """Yield the parts of a tensor among data-parallel ranks, and which of them hold each."""
        if any(cut.axis == "data" for cut in tensor.cuts):
            for data in replicas:
                yield self._dense(tensor, index, data % self.parallelism.ep, data), (data,)
            return
        whole = self._dense(tensor, index, expert, 0)
        if not tensor.flat:
            yield whole, replicas
            return
        begin, share = self._flat_places(stage, index, expert, tensor.over_experts)[tensor.name]
        end = begin + whole.num_elements
        for number in range(begin // share, -(-end // share)) if share else ():
            low, high = max(number * share - begin, 0), min((number + 1) * share, end) - begin
            yield flat_layout(whole, low, high), (replicas[number],)

    def _dense(self, tensor: Tensor, index: int, expert: int, data: int) -> Layout:
        parallelism = self.parallelism
        groups = {"tensor": (index, parallelism.tp), "expert": (expert, parallelism.ep), "data": (data, parallelism.dp)}
        of_cuts = tuple(groups[cut.axis] for cut in tensor.cuts)
        return located(f"tensor {tensor.name}", lambda: dense_layout(tensor.shape, tensor.cuts, of_cuts))

    def _flat_places(self, stage: int, index: int, expert: int, over_experts: bool) -> Mapping[str, tuple[int, int]]:
        """Return, by tensor, where it begins in its flat buffer and how many elements a rank holds of that buffer."""
        key = (stage, index, expert, over_experts)
        if key not in self._flat_cache:
            self._flat_cache[key] = dict(self._flat_buffers(stage, index, expert, over_experts))
        return self._flat_cache[key]

    @cached_property
    def _flat_cache(self) -> dict[tuple[int, int, int, bool], Mapping[str, tuple[int, int]]]:
        return {}

    def _flat_buffers(
        self, stage: int, index: int, expert: int, over_experts: bool
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        begins: dict[str, list[tuple[str, int]]] = defaultdict(list)
        sizes: dict[str, int] = defaultdict(int)
        for tensor in self.tensors:
            if tensor.flat and tensor.over_experts == over_experts and stage in self.stages_of(tensor):
                begins[tensor.flat].append((tensor.name, sizes[tensor.flat]))
                sizes[tensor.flat] += self._dense(tensor, index, expert, 0).num_elements
        ranks = self.parallelism.dp // (self.parallelism.ep if over_experts else 1)
        for name, members in begins.items():
            share = -(-sizes[name] // (ranks * self.flat_multiple)) * self.flat_multiple
            for member, begin in members:
                yield member, (begin, share)

    @cached_property
    def arrays(self) -> tuple[dict[str, Layout], ...]:
        """What each rank holds: its arrays by tensor, in the order of tensors."""
        arrays: tuple[dict[str, Layout], ...] = tuple({} for _ in range(self.num_ranks))
        for tensor in self.tensors:
            for layout, ranks in self.shards(tensor):
                for rank in ranks:
                    arrays[rank][tensor.name] = layout
        return arrays
