"""One rank: waits its compute times by the clock, reduces real bytes when told to, and says what has ended."""

from __future__ import annotations

import contextlib
import heapq
import queue
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from ddlsched.real.channel import Channel, ChannelEndedError
from ddlsched.real.testbed.gloo import GlooReducer
from ddlsched.real.testbed.machine import behind_this_thread
from ddlsched.real.torch.training_job import TrainingJob
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag


class Compute(NamedTuple):
    """A compute task is ready on a GPU."""

    task: int
    gpu: int


class Reduce(NamedTuple):
    """The rank is ready for an all-reduce."""

    task: int


class Iterated(NamedTuple):
    """An iteration has ended."""

    iteration: int


_Place: TypeAlias = "tuple[int, int | None]"
"""A task and the GPU on which it computes; None for an all-reduce."""


class Progress:
    """The tasks of one rank: computes run on each of its GPUs, an all-reduce once.

    Parameters
    ----------
    dag
        Of an iteration.
    gpus
        Numbers of the GPUs.
    """

    def __init__(self, dag: IterationDag, gpus: Sequence[int]) -> None:
        numbers = {task.name: number for number, task in enumerate(dag.tasks)}
        lanes = [tuple(gpus) if isinstance(task, ComputeTask) else (None,) for task in dag.tasks]
        self._after: dict[_Place, list[_Place]] = {(task, lane): [] for task, own in enumerate(lanes) for lane in own}
        for task, lane in self._after:
            for before in (numbers[name] for name in dag.tasks[task].after):
                # An all-reduce waits for a compute on every GPU, a compute for one on its own GPU.
                for other in (lane,) if lane in lanes[before] else lanes[before]:
                    self._after[before, other].append((task, lane))
        self._before = Counter(place for places in self._after.values() for place in places)
        self.iteration = -1
        self._begin()

    def _begin(self) -> None:
        self.iteration += 1
        self._pending = {place: self._before[place] for place in self._after}
        self._left = len(self._pending)

    def start(self) -> Iterator[Compute | Reduce]:
        """Yield what is ready at the beginning of an iteration."""
        for place, pending in list(self._pending.items()):
            if pending == 0:
                yield _event(*place)

    def ended(self, task: int, gpu: int | None = None) -> Iterator[Compute | Reduce | Iterated]:
        """Note that a task has ended (on a GPU; an all-reduce: None); yield what is ready now."""
        self._left -= 1
        for after in self._after[task, gpu]:
            self._pending[after] -= 1
            if self._pending[after] == 0:
                yield _event(*after)
        if self._left == 0:
            yield Iterated(self.iteration)
            self._begin()


def _event(task: int, lane: int | None) -> Compute | Reduce:
    return Reduce(task) if lane is None else Compute(task, lane)


_IDLE_S = 60.0


class Worker:
    """Serves a gate until the channel ends: one job after the other.

    Parameters
    ----------
    channel
        To the gate.
    make_reducer
        Returns what moves bytes, one a job.
    """

    def __init__(self, channel: Channel, make_reducer: Callable[[], GlooReducer]) -> None:
        self._channel, self._make_reducer = channel, make_reducer
        self._ended: queue.SimpleQueue[tuple[int, int, int, str | None]] = queue.SimpleQueue()
        self._wakes, self._wake = socket.socketpair()
        self._orders = {
            "place": self._place,
            "join": self._join,
            "begin": self._begin,
            "send": self._send,
            "compute": self._compute,
            "ping": self._pong,
            "release": self._release,
        }
        self._forget()

    def _forget(self) -> None:
        self._deadlines: list[tuple[float, int, int]] = []
        self._waiting: dict[int, list[int]] = {}
        self._busy: set[int] = set()
        self._reducer: GlooReducer | None = None
        self._training: TrainingJob | None = None
        self._chunks_left: dict[int, int] = {}

    def serve(self) -> None:
        """Do what the gate says until it is gone; a failure of the job's is told to it."""
        try:
            while True:
                self._turn()
        except ChannelEndedError:
            return
        except Exception as error:
            self._channel.try_to_send({"say": "failed", "error": f"{type(error).__name__}: {error}"})
        finally:
            self._channel.close()
            if self._reducer is not None:
                self._reducer.leave()
            self._wakes.close()
            self._wake.close()

    def _turn(self) -> None:
        until_s = self._deadlines[0][0] - time.monotonic() if self._deadlines else _IDLE_S
        sources: list[Any] = [self._channel, self._wakes]
        readable, _, _ = select.select(sources, [], [], max(until_s, 0.0))
        self._end_computes()
        if self._wakes in readable:
            self._wakes.recv(4096)
        self._end_chunks()
        if self._channel in readable:
            for message in self._channel.receive():
                self._orders[message["do"]](message)

    def _place(self, order: dict[str, Any]) -> None:
        self._forget()
        self._order = order
        self._dag = IterationDag.from_dicts(order["tasks"])
        gpus = order["gpus"]
        self._lanes = gpus if order["slots"] else gpus[:1]
        self._gpus_of = {gpu: [gpu] if order["slots"] else gpus for gpu in self._lanes}
        self._progress = Progress(self._dag, self._lanes)
        self._reducer = self._make_reducer()
        if order["train"]:
            self._training = TrainingJob(self._dag, order["gpus"], order["iterations"], self._channel.try_to_send)
        if order["size"] == 1 and self._training is None:
            self._channel.send({"say": "grouped"})
        elif order["rank"] == 0:
            port = self._reducer.listen(order["address"])
            self._channel.send({"say": "store", "port": port})
            self._join({"host": order["address"], "port": port})

    def _join(self, message: dict[str, Any]) -> None:
        assert self._reducer is not None
        order = self._order
        threads = 2 * sum(isinstance(task, AllReduceTask) for task in self._dag.tasks)
        self._reducer.join(
            message["host"], message["port"], order["address"], order["rank"], order["size"], min(threads, 8)
        )
        if self._training is None:
            self._channel.send({"say": "grouped"})
        else:  # which takes seconds, in which the gate is to hear from this rank
            with behind_this_thread():  # what it starts waits by spinning, too
                self._training.prepare(message["host"], message["port"], order["rank"], order["size"])

    def _begin(self, _: dict[str, Any]) -> None:
        if self._training is not None:
            self._training.begin()
            return
        self._follow(self._progress.start())

    def _follow(self, events: Iterable[Compute | Reduce | Iterated]) -> None:
        """Do what has become possible; what that makes possible in turn comes after it."""
        coming = deque([events])
        while coming:
            for event in list(coming.popleft()):
                if isinstance(event, Compute):
                    self._want(event.task, event.gpu)
                elif isinstance(event, Reduce):
                    coming.extend(self._reduce(event.task))
                else:
                    self._channel.send({"say": "iterated", "iteration": event.iteration})
                    if event.iteration + 1 < self._order["iterations"]:
                        coming.append(self._progress.start())

    def _want(self, task: int, gpu: int) -> None:
        """Compute now if the GPU is this job's; else ask for the slot."""
        if self._order["slots"]:
            self._channel.send({"say": "compute", "task": task, "gpu": gpu})
        elif gpu in self._busy:
            heapq.heappush(self._waiting.setdefault(gpu, []), task)
        else:
            self._start(task, gpu)

    def _compute(self, message: dict[str, Any]) -> None:
        self._start(message["task"], message["gpu"])

    def _start(self, task: int, gpu: int) -> None:
        compute = self._dag.tasks[task]
        assert isinstance(compute, ComputeTask)
        self._busy.add(gpu)
        heapq.heappush(self._deadlines, (time.monotonic() + compute.duration_ns / 1e9, task, gpu))

    def _end_computes(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            deadline_s, task, gpu = heapq.heappop(self._deadlines)
            late_ns = round((time.monotonic() - deadline_s) * 1e9)
            self._busy.discard(gpu)
            self._channel.send({"say": "computed", "task": task, "gpus": self._gpus_of[gpu], "late_ns": late_ns})
            if self._waiting.get(gpu):
                self._start(heapq.heappop(self._waiting[gpu]), gpu)
            self._follow(self._progress.ended(task, gpu))

    def _reduce(self, task: int) -> list[Iterable[Compute | Reduce | Iterated]]:
        """Tell the gate that this rank is ready; on one server the all-reduce ends at once, and what then follows."""
        reduce = self._dag.tasks[task]
        assert isinstance(reduce, AllReduceTask)
        if self._order["size"] == 1:
            return [self._progress.ended(task)]
        iteration, size = self._progress.iteration, reduce.message_bytes
        self._channel.send({"say": "ready", "task": task, "iteration": iteration, "message_bytes": size})
        return []

    def _send(self, message: dict[str, Any]) -> None:
        if self._training is not None:
            self._training.send(message)
            return
        assert self._reducer is not None
        task, iteration, chunk, chunks = (message[name] for name in ("task", "iteration", "chunk", "chunks"))
        reduce = self._dag.tasks[task]
        assert isinstance(reduce, AllReduceTask)
        self._chunks_left.setdefault(task, chunks)

        def ended(error: str | None) -> None:
            self._ended.put((task, iteration, chunk, error))
            with contextlib.suppress(OSError):  # it has left meanwhile
                self._wake.send(b"\0")

        self._reducer.start(task, reduce.message_bytes, chunk, chunks, ended)

    def _end_chunks(self) -> None:
        while not self._ended.empty():
            task, iteration, chunk, error = self._ended.get()
            if error is not None:
                raise ConnectionError(f"an all-reduce failed: {error}")
            self._channel.send({"say": "sent", "task": task, "iteration": iteration, "chunk": chunk})
            self._chunks_left[task] -= 1
            if self._chunks_left[task] == 0:
                del self._chunks_left[task]
                self._follow(self._progress.ended(task))

    def _pong(self, message: dict[str, Any]) -> None:
        reducer = self._reducer
        self._channel.send(
            {
                "say": "pong",
                "asked_ns": message["asked_ns"],
                "computing": len(self._deadlines) if self._training is None else int(self._training.computes),
                "received_bytes": 0 if reducer is None else reducer.received_bytes(),
                "cards_down": [] if reducer is None else reducer.cards_down(),
            }
        )

    def _release(self, _: dict[str, Any]) -> None:
        if self._training is not None:
            self._training.leave()
        if self._reducer is not None:
            self._reducer.leave()
        self._forget()
