"""The collectives of ``torch.distributed``, wrapped so that a recorder sees them, and whether it sees every one."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import distributed
from torch.distributed import _functional_collectives as functional
from torch.profiler import ProfilerActivity, profile

from ddlsched.errors import InputError
from ddlsched.training.recorded.collective_names import GLOO

_TENSORS: Final[dict[str, tuple[str, Sequence[str]]]] = {
    "all_reduce": ("all-reduce", ("tensor",)),
    "all_reduce_coalesced": ("all-reduce", ("tensors",)),
    "all_gather": ("all-gather", ("tensor",)),
    "all_gather_single": ("all-gather", ("input", "input_tensor")),
    "all_gather_into_tensor": ("all-gather", ("input_tensor", "input")),
    "_all_gather_base": ("all-gather", ("input_tensor", "input")),
    "reduce_scatter": ("reduce-scatter", ("input_list",)),
    "reduce_scatter_single": ("reduce-scatter", ("input", "input_tensor")),
    "reduce_scatter_tensor": ("reduce-scatter", ("input", "input_tensor")),
    "_reduce_scatter_base": ("reduce-scatter", ("input",)),
    "all_to_all": ("all-to-all", ("input_tensor_list",)),
    "all_to_all_single": ("all-to-all", ("input",)),
    "broadcast": ("broadcast", ("tensor",)),
    "_broadcast_coalesced": ("broadcast", ("tensors",)),
    "barrier": ("barrier", ()),
    "send": ("send", ("tensor",)),
    "isend": ("send", ("tensor",)),
    "recv": ("receive", ("tensor",)),
    "irecv": ("receive", ("tensor",)),
    "reduce": ("reduce", ()),
    "gather": ("gather", ()),
    "scatter": ("scatter", ()),
}
"""By function: the kind of its collective, and the parameter that holds what a rank brings."""

_FUNCTIONAL: Final = {
    "all_reduce": "all-reduce",
    "all_gather_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "broadcast": "broadcast",
}
"""Of the functional collectives, of which DTensor's are: the kind; a rank brings the first argument."""

NO_TASK: Final = {"reduce", "gather", "scatter"}
"""Kinds that a job has no task for."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A call: its kind, the bytes that this rank brings, its group (None for all ranks) and, of a message, the peer."""

    kind: str
    input_bytes: int
    group: Any = None
    peer: int | None = None


@contextmanager
def watched(watcher: Any) -> Iterator[None]:
    """Tell a recorder, while it is ``watching``, of each call of a function of ``torch.distributed``."""
    wrapping = _Wrapping(watcher)
    made = [(name, getattr(distributed, name), wrapping.collective) for name in _TENSORS if hasattr(distributed, name)]
    made += [
        (name, getattr(functional, name), wrapping.functional) for name in _FUNCTIONAL if hasattr(functional, name)
    ]
    changed = [(module, *each) for each in made for module in _modules_with(*each[:2])]
    for module, name, original, wrapped in changed:
        setattr(module, name, wrapped(name, original))
    work_class = distributed.Work
    wait = work_class.wait
    work_class.wait = wrapping.wait(wait)
    try:
        yield
    finally:
        work_class.wait = wait
        for module, name, original, _ in changed:
            setattr(module, name, original)


def _modules_with(name: str, function: Any) -> list[Any]:
    """Return the modules of torch that know a function by its name."""
    modules = [module for key, module in sys.modules.items() if key.startswith("torch.distributed")]
    return [module for module in modules if getattr(module, "__dict__", {}).get(name) is function]


class _Wrapping:
    """Wraps functions; a collective that another one is made of is not told of."""

    def __init__(self, watcher: Any) -> None:
        self._watcher = watcher
        self._inside = threading.local()
        self._tokens: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """By work that may be waited for; not kept alive: gloo's hold copies of a GPU's tensors in pinned memory."""

    def collective(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does as the original and tells of it."""
        return self._telling(name, original, original, functools.partial(_called, *_TENSORS[name]))

    def functional(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a functional collective that tells of itself, and is waited for at once."""

        def waited_for(*args: Any, **kwargs: Any) -> Any:
            return functional.wait_tensor(original(*args, **kwargs))

        return self._telling(name, original, waited_for, functools.partial(_called_functional, _FUNCTIONAL[name]))

    def _telling(
        self,
        name: str,
        original: Callable[..., Any],
        run: Callable[..., Any],
        called: Callable[[dict[str, Any]], CollectiveCall],
    ) -> Callable[..., Any]:
        """Return what runs in place of the original, and tells of it what ``called`` makes of its arguments."""
        given_to = _naming(name, original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._looks_away():
                return original(*args, **kwargs)
            token = self._watcher.calls(called(given_to(*args, **kwargs)))
            result = self._looking_away(run, *args, **kwargs)
            is_async = isinstance(result, distributed.Work)
            self._watcher.returned(token, at_once=not is_async)
            if is_async:
                self._tokens[result] = token
                self._tell_end(result, token)
            return result

        return call

    def _looks_away(self) -> bool:
        return not self._watcher.watching or getattr(self._inside, "now", False)

    def _looking_away(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside.now = True
        try:
            return function(*args, **kwargs)
        finally:
            self._inside.now = False

    def _tell_end(self, work: Any, token: Any) -> None:
        try:
            future = work.get_future()
        except RuntimeError:  # Messages between two ranks have none with gloo: their wait tells.
            return
        future.add_done_callback(lambda _: self._watcher.done(token))

    def wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``Work.wait`` that tells of it."""

        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            token = self._tokens.pop(work, None)
            if token is None:
                return original(work, *args, **kwargs)
            self._watcher.waits(token)
            result = original(work, *args, **kwargs)
            self._watcher.waited(token)
            return result

        return wait


def _naming(name: str, original: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Return what gives the arguments of a call by their names; no function here takes any number of them."""
    of_c = ("group", "tensors", "buffer_bytes", "rank")  # It has no signature.
    names = of_c if name == "_broadcast_coalesced" else tuple(inspect.signature(original).parameters)
    return lambda *args, **kwargs: dict(zip(names, args, strict=False)) | kwargs


def _called(kind: str, parameters: Sequence[str], given: dict[str, Any]) -> CollectiveCall:
    tensors = next((given[name] for name in parameters if name in given), ())
    held = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    size = sum(tensor.numel() * tensor.element_size() for tensor in held)
    group, peer = given.get("group"), None
    if kind in ("send", "receive"):
        role = "dst" if kind == "send" else "src"
        peer = given.get(role)
        if peer is None and f"group_{role}" in given:
            peer = distributed.get_global_rank(group or distributed.group.WORLD, given[f"group_{role}"])
    return CollectiveCall(kind, size, group, peer)


def _called_functional(kind: str, given: dict[str, Any]) -> CollectiveCall:
    group_name = functional._resolve_group_name(given["group"], given.get("tag", ""))
    group = distributed.distributed_c10d._resolve_process_group(group_name)
    return CollectiveCall(kind, given["self"].numel() * given["self"].element_size(), group)


_PREFIX = "c10d::"
_KINDS = {name: kind for name, (kind, _, _) in GLOO.items()} | {"c10d::reduce_scatter_": "reduce-scatter"}


class ProfiledStep:
    """A step under PyTorch's profiler."""

    def __init__(self) -> None:
        self._profile: Any = profile(activities=[ProfilerActivity.CPU])
        try:
            self._profile.start()
        except RuntimeError:  # The script profiles itself, and one profiler at a time is all there can be.
            self._profile = None

    def collectives(self) -> list[str]:
        """End profiling, and return the operators of collectives that were called; none if it did not run."""
        if self._profile is None:
            return []
        ended, self._profile = self._profile, None
        ended.stop()
        return [event.name for event in ended.events() if event.name.startswith(_PREFIX)]


def refuse_unseen(called: Iterable[str], seen: Iterable[str], *, flags: int, formed: int) -> None:
    """Compare the collectives of a step.

    Parameters
    ----------
    called
        Operators that the profiler saw.
    seen
        Kinds of those that were recorded.
    flags
        All-reduces of find_unused_parameters, which are known not to be seen.
    formed
        Models that form their buckets in this step: each broadcasts what is in them, and how much, which is not seen.

    Raises
    ------
    InputError
        Some were not recorded.
    """
    recorded = Counter(seen)
    names: dict[str, set[str]] = {}
    profiled: Counter[str] = Counter()
    for name in called:
        kind = _KINDS.get(name, name)
        kind = "send" if kind == "receive" else kind
        profiled[kind] += 1
        names.setdefault(kind, set()).add(name)
    recorded["all-reduce"] += flags
    if profiled["broadcast"] <= 2 * formed or recorded["broadcast"]:
        del profiled["broadcast"]  # A call that broadcasts many buffers is one or several operators.
    unseen = {kind: count for kind, count in profiled.items() if recorded[kind] < count}
    if unseen:
        shown = ", ".join(
            f"{', '.join(sorted(names[kind]))} ({count}, {recorded[kind]} seen)" for kind, count in unseen.items()
        )
        raise InputError(
            f"record: collectives that go past the functions of torch.distributed are not seen: {shown}; expected none "
            "(DTensor and functional collectives): trace the script with torch.profiler, and import the trace"
        )
