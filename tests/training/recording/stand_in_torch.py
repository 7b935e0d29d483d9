"""A torch for tests without one: its collectives take stated times on a clock that stands still otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

ORDER = (
    "all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "broadcast", "_broadcast_coalesced", "barrier", "send",
    "isend", "recv", "irecv", "reduce", "gather", "scatter",
)  # fmt: skip
"""Not all versions of PyTorch have all functions: four are left out."""


class Tensor:
    """So many numbers of so many bytes."""

    def __init__(self, count: int, item_bytes: int = 4) -> None:
        self.count, self.item_bytes = count, item_bytes

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.item_bytes


class Work:
    """A collective under way; it may have no future, as gloo's messages."""

    def __init__(self, world: World, has_future: bool = True) -> None:
        self.world, self.has_future = world, has_future
        self.then: list[Callable[[Any], None]] = []

    def get_future(self) -> Work:
        if not self.has_future:
            raise RuntimeError("no future")
        return self

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        self.then.append(done)

    def ends(self) -> None:
        for done in self.then:
            done(self)

    def wait(self, timeout: object = None) -> str:
        self.world.now_ns += 7_000
        return f"waited {timeout}"


class Group:
    """Some ranks."""

    def __init__(self, name: str, ranks: list[int]) -> None:
        self.group_name, self.ranks = name, ranks


class Model:
    """Stands for DistributedDataParallel: each bucket of a backward pass goes through its hook."""

    find_unused_parameters = False
    process_group = "of the model"

    def __init__(self) -> None:
        self.hooks: list[tuple[Any, Any]] = []

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self.hooks.append((state, hook))

    def forward(self, number: int) -> int:
        return number + 1


class Profile:
    """A profiler that saw what it is told that it saw."""

    seen: ClassVar[list[str]] = []
    busy = False
    began = ended = 0

    def __init__(self, activities: list[str]) -> None:
        assert activities == ["CPU"]

    def start(self) -> None:
        if Profile.busy:
            raise RuntimeError("one at a time")
        Profile.began += 1

    def stop(self) -> None:
        Profile.ended += 1

    def events(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in Profile.seen]


class World:
    """What a process knows of torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000
        self.takes_ns = {name: 1_000 * (place + 1) for place, name in enumerate(ORDER)}
        self.works: list[Work] = []
        self.called: list[str] = []
        self.everybody = Group("0", [0, 1, 2, 3])
        self.pair = Group("5", [3, 1])
        self.hooks: dict[str, list[Any]] = {"before": [], "after": []}
        self.initialized, self.on_gpu, self.backend = True, False, "gloo"
        modules = {name: ModuleType(name) for name in _MODULES}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        self._fill(modules)
        Profile.seen, Profile.busy, Profile.began, Profile.ended = [], False, 0, 0

    def _fill(self, modules: dict[str, Any]) -> None:
        torch, self.distributed = modules["torch"], modules["torch.distributed"]
        torch.distributed, torch.Tensor, torch.ones = self.distributed, Tensor, self.ones
        torch.autograd = self.autograd = SimpleNamespace(backward=self.backward)
        torch.cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: self.on_gpu)
        torch.futures = SimpleNamespace(Future=list)
        for name, function in self._functions().items():
            setattr(self.distributed, name, function)
        modules["torch.distributed.distributed_c10d"].broadcast = self.distributed.broadcast
        self.c10d = modules["torch.distributed.distributed_c10d"]
        self.distributed.distributed_c10d = self.c10d
        self.c10d._resolve_process_group = {"5": self.pair, "0": self.everybody}.__getitem__
        self.distributed.Work, self.distributed.GradBucket = type("Work", (Work,), {}), Tensor
        self.distributed.group = SimpleNamespace(WORLD=self.everybody)
        self.distributed.get_rank, self.distributed.get_world_size = lambda: 1, lambda: 4
        self.distributed.get_process_group_ranks = lambda group: group.ranks
        self.distributed.get_global_rank = lambda group, rank: group.ranks[rank]
        self.distributed.is_initialized, self.distributed.get_backend = lambda: self.initialized, lambda: self.backend
        self.functional = modules["torch.distributed._functional_collectives"]
        self.distributed._functional_collectives = self.functional
        self.functional._resolve_group_name = lambda group, tag: group + tag
        self.functional.wait_tensor = self.wait_tensor
        for name, function in self._functional_ones().items():
            setattr(self.functional, name, function)
        hooks = modules["torch.distributed.algorithms.ddp_comm_hooks.default_hooks"]
        hooks.allreduce_hook = self.reduce_bucket
        self.model_class = modules["torch.nn.parallel"].DistributedDataParallel = type("DDP", (Model,), {
            "forward": Model.forward, "register_comm_hook": Model.register_comm_hook
        })  # fmt: skip
        optimizer = modules["torch.optim.optimizer"]
        optimizer.register_optimizer_step_pre_hook = lambda hook: self._hooked("before", hook)
        optimizer.register_optimizer_step_post_hook = lambda hook: self._hooked("after", hook)
        profiler = modules["torch.profiler"]
        profiler.ProfilerActivity, profiler.profile = SimpleNamespace(CPU="CPU"), Profile

    def _hooked(self, when: str, hook: Any) -> SimpleNamespace:
        self.hooks[when].append(hook)
        return SimpleNamespace(remove=lambda: self.hooks[when].remove(hook))

    def _does(self, name: str, async_op: bool = False, has_future: bool = True) -> Any:
        self.called.append(name)
        self.now_ns += self.takes_ns[name]
        if not async_op:
            return f"result of {name}"
        self.works.append(self.distributed.Work(self, has_future))
        return self.works[-1]

    def _functions(self) -> dict[str, Callable[..., Any]]:  # noqa: C901
        does = self._does

        def all_reduce(tensor, op=None, group=None, async_op=False):
            return does("all_reduce", async_op)

        def all_reduce_coalesced(tensors, op=None, group=None, async_op=False):
            return does("all_reduce_coalesced", async_op)

        def all_gather(tensor_list, tensor, group=None, async_op=False):
            return does("all_gather", async_op)

        def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
            self.distributed.all_gather([output_tensor], input_tensor, group)
            return does("all_gather_into_tensor", async_op)

        def reduce_scatter(output, input_list, op=None, group=None, async_op=False):
            return does("reduce_scatter", async_op)

        def reduce_scatter_tensor(output, input, op=None, group=None, async_op=False):
            return does("reduce_scatter_tensor", async_op)

        def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
            return does("all_to_all", async_op)

        def all_to_all_single(output, input, output_split_sizes=None, group=None, async_op=False):
            return does("all_to_all_single", async_op)

        def broadcast(tensor, src=None, group=None, async_op=False):
            return does("broadcast", async_op)

        def _broadcast_coalesced(*_):
            return does("_broadcast_coalesced")

        def barrier(group=None, async_op=False):
            return does("barrier", async_op)

        def send(tensor, dst=None, group=None, tag=0, group_dst=None):
            return does("send")

        def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
            return does("isend", True, False)

        def recv(tensor, src=None, group=None, tag=0, group_src=None):
            return does("recv")

        def irecv(tensor, src=None, group=None, tag=0, group_src=None):
            return does("irecv", True, False)

        def reduce(tensor, dst, group=None):
            return does("reduce")

        def gather(tensor, gather_list=None, group=None):
            return does("gather")

        def scatter(tensor, scatter_list=None, group=None):
            if len(scatter_list or ()) > 1:
                raise ValueError("too many")
            return does("scatter")

        made = locals()
        return {name: made[name] for name in ORDER}

    def wait_tensor(self, given: Any) -> Any:
        self.now_ns += 300
        return f"{given}, waited for"

    def _functional_ones(self) -> dict[str, Callable[..., Any]]:
        def all_reduce(self, reduceOp, group, tag=""):  # noqa: N803
            return world.distributed.all_reduce(self)

        def all_gather_tensor(self, gather_dim, group, tag=""):
            return world.distributed.all_gather([self], self)

        world = self
        return {"all_reduce": all_reduce, "all_gather_tensor": all_gather_tensor}

    def reduce_bucket(self, state: Any, bucket: Any) -> Any:
        self.now_ns += 400
        return self.distributed.all_reduce(bucket, group=None, async_op=True)

    def ones(self, count: int, device: str) -> Tensor:
        self.called.append(f"{count} on {device}")
        return Tensor(count)

    def backward(self, model: Any, buckets: list[int], *, told: bool = True) -> str:
        """Compute a while, then reduce a bucket, and so on; then all end and are waited for, as C++ does it."""
        first = len(self.works)
        for size in buckets:
            self.now_ns += 50_000
            for state, hook in model.hooks:
                hook(state, Tensor(size))
        self.now_ns += 5_000
        for work in self.works[first:]:
            if told:
                work.ends()
            self.now_ns += 2_000
        return "gradients"


_MODULES = (
    "torch", "torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed._functional_collectives",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks", "torch.nn.parallel", "torch.optim.optimizer",
    "torch.profiler",
)  # fmt: skip
