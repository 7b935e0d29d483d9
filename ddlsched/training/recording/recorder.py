"""Records the steps of a training process: when each phase began, each collective was called, waited for and done."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddlsched.errors import InputError
from ddlsched.io.files import made_folder, replacing
from ddlsched.ranges import check_arguments
from ddlsched.training.recorded.rank_steps import EVERYBODY, RankCommunication, RankStep, WallTime, message_group
from ddlsched.training.recorded.recordings import SUFFIX, recording_text
from ddlsched.training.recording import collective_calls


class HostClock:
    """Takes moments that computation has reached by the monotonic clock of the host, which its ranks share."""

    def moment(self) -> int:
        """Return now."""
        return time.perf_counter_ns()

    def ns(self, moment: int) -> int:
        """Return the same."""
        return moment


class CudaClock:
    """Events on the current stream: a moment is when the GPU has done what was launched there before."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._begin = self.moment()
        self._begin.synchronize()
        self._begin_ns = time.perf_counter_ns()

    def moment(self) -> Any:
        """Return an event, recorded now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ns(self, moment: Any) -> int:
        """Wait for an event, and return when it took place."""
        moment.synchronize()
        return self._begin_ns + round(float(self._begin.elapsed_time(moment)) * 1e6)


def clock_of_this_process() -> HostClock | CudaClock:
    """Return the clock of the device on which this process trains."""
    return CudaClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else HostClock()


_FORMING = 2
"""Steps at the beginning in which DistributedDataParallel forms its buckets."""
_SMALL_CALLS, _SMALL_NUMBERS = 101, 1024
"""All-reduces whose mean is a call's cost, and of how many numbers: 4 kB take 3 us on a wire of 10 Gbit/s, and a call
of one number may cost half as much. The first, which waits for all ranks, does not count."""


def record(folder: str | Path, *, skip: int = 11, most_steps: int = 1000) -> Recorder:
    """Record this process's training from now on; its file is written when the process ends.

    Call it in every rank, before the model is wrapped. A step ends with ``optimizer.step()``.

    Parameters
    ----------
    folder
        Where to write ``RANK.recording.json``; it is made if it is not there.
    skip
        Steps at the beginning that are not kept, after the first: DistributedDataParallel forms its buckets in the
        first two, the others are timed as they are without the recorder, and the last is profiled to see that no
        collective is missed. Behind them the cost of a call is measured.
    most_steps
        Steps to keep; later ones are not recorded.

    Raises
    ------
    InputError
        The folder cannot be made, or a number is out of range.
    """
    check_arguments("record", skip=(skip, 1), most_steps=(most_steps, 1))
    recorder = Recorder(made_folder(Path(folder), "recordings"), skip, most_steps)
    recorder.begin()
    atexit.register(recorder.end_at_exit)
    return recorder


@dataclass(slots=True)
class _Call:
    """A collective of a step, by moments of the clock."""

    what: RankCommunication
    begin: Any
    is_of_bucket: bool
    waited: tuple[Any, Any] | None = None
    done: Any = None


@dataclass(slots=True)
class _Step:
    """A step under way."""

    begin: Any
    calls: list[_Call] = field(default_factory=list)
    backward: Any = None
    optimizer: Any = None
    last_bucket: Any = None
    """When the hook of the last bucket returned: after that, backward waits for the buckets."""
    backward_end: Any = None
    """When backward last returned: all buckets had ended, though the thread that tells may not have had its turn."""


class Recorder:
    """The recording of a process; made by :func:`record`."""

    def __init__(self, folder: Path, skip: int, most_steps: int) -> None:
        self._folder, self._skip, self._most_steps = folder, skip, most_steps
        self._undo = ExitStack()
        self._clock: HostClock | CudaClock | None = None
        self._now: _Step | None = None
        self._steps: list[tuple[_Step, Any]] = []
        self._count = 0
        self.watching = False
        self._before: list[Any] = []
        """Ends of steps before anything in them is watched."""
        self._optimizer: Any = None
        self._in_bucket = False
        self._seat: tuple[int, int] | None = None
        """Rank, and how many there are."""
        self._groups: dict[str, tuple[int, ...]] = {}
        self._profiled: collective_calls.ProfiledStep | None = None
        self.when_full: Callable[[], None] | None = None
        """Called once the last step to be kept has ended."""
        self._call_ns = 0
        self._with_flags: set[int] = set()
        """Models that reduce which of their parameters were used."""
        self._forming: set[int] = set()
        """Models that are run in the step in which they form their buckets."""

    def begin(self) -> None:
        """Watch collectives, backward passes and optimisers."""
        undo = self._undo
        undo.enter_context(collective_calls.watched(self))
        undo.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
        undo.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(DistributedDataParallel, "register_comm_hook", self._register_hook)
        self._replace(DistributedDataParallel, "forward", self._forward)

    def _replace(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, made(original))
        self._undo.callback(setattr, owner, name, original)

    def _moment(self) -> Any:
        if self._clock is None:
            self._clock = clock_of_this_process()
        return self._clock.moment()

    def _ns(self, moment: Any) -> int:
        return self._clock.ns(moment) if self._clock else int(moment)

    # What the training does.

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            now = self._now
            if now is None:
                return original(*args, **kwargs)
            now.backward = now.backward or self._moment()
            result = original(*args, **kwargs)
            now.backward_end = self._moment()
            return result

        return backward

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Register a hook that does what DistributedDataParallel does by itself, unless the script has one."""

        def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.watching:
                return original(model, *args, **kwargs)
            if not getattr(model, "_ddlsched_has_hook", False):
                model.register_comm_hook(model.process_group, allreduce_hook)
            if model.find_unused_parameters:
                self._with_flags.add(id(model))
            elif self._count + 1 == _FORMING:
                self._forming.add(id(model))
            return original(model, *args, **kwargs)

        return forward

    def _register_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register_comm_hook(model: Any, state: Any, hook: Callable[..., Any]) -> None:
            def watched_hook(state: Any, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
                self._in_bucket = True
                try:
                    return hook(state, bucket)
                finally:
                    self._in_bucket = False
                    if self._now is not None:
                        self._now.last_bucket = self._moment()

            # DistributedDataParallel compares the annotations themselves, not their text.
            watched_hook.__annotations__ = {
                "bucket": distributed.GradBucket,
                "return": torch.futures.Future[torch.Tensor],
            }
            original(model, state, watched_hook)
            model._ddlsched_has_hook = True

        return register_comm_hook

    def _before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = optimizer
        if self._now is not None and self._now.optimizer is None:
            self._now.optimizer = self._moment()

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """End a step and begin the next; with several optimisers, the first that steps ends them."""
        if optimizer is not self._optimizer:
            return
        now = self._moment()
        if _FORMING <= self._count + 1 <= self._skip:
            self._before.append(now)
        if self._now is not None and self._count > self._skip and len(self._steps) < self._most_steps:
            self._steps.append((self._now, now))
            if len(self._steps) == self._most_steps and self.when_full is not None:
                self.when_full()
        self._check(self._now)
        if self._count == self._skip:
            self.watching = False
            self._call_ns = self._cost_of_a_call()
        self._count += 1
        self.watching = self._skip <= self._count and len(self._steps) < self._most_steps
        # A moment anew: the check may have taken a while. No step once enough are kept: the last is not to be changed.
        self._now = _Step(self._moment()) if self.watching else None

    def _cost_of_a_call(self) -> int:
        """Return what an all-reduce of a few numbers takes, nanoseconds, once ranks have met."""
        if not distributed.is_initialized():
            return 0
        numbers = torch.ones(_SMALL_NUMBERS, device="cuda" if distributed.get_backend() == "nccl" else "cpu")
        moments = []
        for _ in range(_SMALL_CALLS):
            distributed.all_reduce(numbers)
            moments.append(self._moment())
        return (self._ns(moments[-1]) - self._ns(moments[0])) // (_SMALL_CALLS - 1)

    def _check(self, ended: _Step | None) -> None:
        """Profile the last step that is not kept, and refuse a script whose collectives are not all seen."""
        if self._profiled is not None and ended is not None:
            called, self._profiled = self._profiled.collectives(), None
            seen = (call.what.kind for call in ended.calls)
            collective_calls.refuse_unseen(called, seen, flags=len(self._with_flags), formed=len(self._forming))
        if self._count == self._skip - 1:
            self._profiled = collective_calls.ProfiledStep()
            self._undo.callback(self._profiled.collectives)  # A process that ends while it profiles crashes.

    # What the collectives do.

    def calls(self, called: collective_calls.CollectiveCall) -> Any:
        """Keep a call, and return what tells it from others."""
        assert self._now is not None
        if called.kind in collective_calls.NO_TASK:
            what = f"torch.distributed.{called.kind} within a step"
            raise InputError(f"{what}: has no task in a job; expected an all-reduce or a broadcast")
        call = _Call(self._communication(called), self._moment(), self._in_bucket)
        self._now.calls.append(call)
        return call

    def _communication(self, called: collective_calls.CollectiveCall) -> RankCommunication:
        """Return what a call is in a job; its group is known by its name from now on."""
        rank, _ = self._seat = self._seat or (distributed.get_rank(), distributed.get_world_size())
        if called.kind in ("send", "receive"):
            return RankCommunication("send", called.input_bytes, message_group(called.kind, rank, called.peer))
        if called.group is None or called.group is distributed.group.WORLD:
            return RankCommunication(called.kind, called.input_bytes, EVERYBODY)
        name = str(called.group.group_name)
        if name not in self._groups:
            self._groups[name] = tuple(sorted(distributed.get_process_group_ranks(called.group)))
        return RankCommunication(called.kind, called.input_bytes, name)

    def returned(self, token: Any, *, at_once: bool) -> None:
        """Keep when a call without a handle was done: it has waited for the collective's end if it is ``at_once``."""
        if at_once:
            token.done = self._moment()
            token.waited = (token.begin, token.done)

    def waits(self, token: Any) -> None:
        """Keep from when on a call is waited for."""
        token.waited = (self._moment(), None)

    def waited(self, token: Any) -> None:
        """Keep until when."""
        token.waited = (token.waited[0], self._moment())
        token.done = token.done or token.waited[1]

    def done(self, token: Any) -> None:
        """Keep when a call with a handle was done; any thread may tell."""
        token.done = self._moment()

    # What is written.

    def stop(self) -> None:
        """Record no more."""
        self._undo.close()

    def end(self) -> Path:
        """Stop recording, write the file and return its path.

        Raises
        ------
        InputError
            Nothing was recorded, or the file cannot be written.
        """
        self.stop()
        atexit.unregister(self.end_at_exit)
        steps = {self._skip + 1 + place: self._made(*each) for place, each in enumerate(self._steps)}
        if not steps:
            why = f"no step was recorded ({self._count} ended by optimizer.step(), {self._skip} + 1 are not kept)"
            raise InputError(f"record: {why}; expected a script that trains longer, on several ranks, or skip smaller")
        if self._seat is None:
            raise InputError("record: no step has a collective; expected a script whose ranks communicate")
        rank, ranks = self._seat
        path = self._folder / f"{rank}{SUFFIX}"
        ends_ns = [self._ns(moment) for moment in self._before]
        unrecorded_ns = [end_ns - begin_ns for begin_ns, end_ns in pairwise(ends_ns)]
        with replacing(path, "recording") as file:
            file.write_text(recording_text(rank, ranks, self._groups, steps, unrecorded_ns), encoding="utf-8")
        return path

    def end_at_exit(self) -> None:
        """Do as :meth:`end` when the process ends; what is wrong is one line then."""
        try:
            self.end()
        except InputError as error:
            print(f"ddlsched: error: {error}", file=sys.stderr)

    def _made(self, step: _Step, end: Any) -> RankStep:
        """Return a step in nanoseconds."""
        ns = self._ns
        stretch = WallTime(ns(step.begin), ns(end), self._call_ns)
        stretch.phase("forward", ns(step.begin))
        for name, moment in (("backward", step.backward), ("optimizer", step.optimizer)):
            if moment is not None:
                stretch.phase(name, ns(moment))
        buckets = self._wait_for_buckets(step)
        for call in step.calls:
            begin_ns, waited_ns = ns(call.begin), None
            done_ns = None if call.done is None else ns(call.done)
            if call.is_of_bucket:
                waited_ns = buckets
            elif call.waited is not None and call.waited[1] is not None:
                waited_ns = (ns(call.waited[0]), ns(call.waited[1]))
            stretch.communicate(call.what, begin_ns, waited_ns, None if done_ns is None else (begin_ns, done_ns))
        return stretch.step()

    def _wait_for_buckets(self, step: _Step) -> tuple[int, int] | None:
        """Return from when until when backward stands still for its buckets, all of which it needs to go on."""
        if step.last_bucket is None or self._clock is None:
            return None
        ns, latest = self._clock.ns, step.backward_end
        ended = [call.done or latest for call in step.calls if call.is_of_bucket]
        begin_ns, end_ns = ns(step.last_bucket), max((ns(done) for done in ended if done is not None), default=0)
        return begin_ns, max(begin_ns, end_ns if latest is None else min(end_ns, ns(latest)))
