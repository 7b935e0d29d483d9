"""For training code of your own: a hook of DistributedDataParallel that sends each bucket when a gate says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError, TestbedError
from ddlsched.real.gate.client import GateClient, RankMembership, WaitingBuckets

_MOST_SEGMENT_BYTES = 1 << 20
"""Of gloo's all-reduce."""


def part_length(count: int, ranks: int, item_bytes: int) -> int:
    """Return how many elements gloo's ring puts into a part of a message of ``count`` elements.

    References
    ----------
    gloo/allreduce.cc, ``ring``.
    """
    whole_bytes = count * item_bytes
    most_bytes = item_bytes * (_MOST_SEGMENT_BYTES // item_bytes)
    segments = _up(max(-(-whole_bytes // most_bytes), 2 * ranks), ranks)
    segment_bytes = _up(-(-whole_bytes // segments), item_bytes)
    return segments // ranks * segment_bytes // item_bytes


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class RingChunk:
    """Chunk ``number`` of ``chunks`` of a flat tensor that ``ranks`` ranks reduce."""

    def __init__(self, tensor: Any, ranks: int, number: int, chunks: int) -> None:
        self._tensor, self._ranks = tensor, ranks
        self._length = part_length(len(tensor), ranks, tensor.element_size())
        self._first = self._length * number // chunks
        self._last = self._length * (number + 1) // chunks
        width = self._width(self._last - self._first)
        self.data = tensor.new_zeros(ranks * width)
        """What is to be reduced: the chunk's elements, padded with zeros."""
        self._rows = self.data.view(ranks, width)
        for row, part in self._parts():
            row.copy_(part)

    def _width(self, width: int) -> int:
        """Return the next larger width that gloo divides into parts of just this width."""
        width = max(width, 2)
        while part_length(self._ranks * width, self._ranks, self._tensor.element_size()) != width:
            width += 1
        return width

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        for rank in range(self._ranks):
            first = rank * self._length
            part = self._tensor[first + self._first : min(first + self._last, first + self._length)]
            yield self._rows[rank, : len(part)], part

    def write_back(self) -> None:
        """Put the reduced elements where they came from."""
        for row, part in self._parts():
            part.copy_(row)


class Streams:
    """The streams around one bucket; on a CPU nothing.

    The hook is called while the gradients are still being computed on the current stream. A collective that another
    thread issues waits for an event recorded there, on a side stream of its own; the future that DDP waits for is told
    the device, so that setting its result on the side stream lets DDP's stream wait for that.
    """

    def __init__(self, tensor: Any) -> None:
        self._device = tensor.device if tensor.device.type == "cuda" else None
        if self._device is not None:
            import torch

            self._computed = torch.cuda.current_stream(self._device).record_event()
            self._side = torch.cuda.Stream(self._device)

    def future(self) -> Any:
        """Return the future that the hook answers with."""
        import torch

        return torch.futures.Future(devices=[] if self._device is None else [self._device])

    def after_gradients(self) -> Any:
        """Return a context in which what is issued comes after the gradients."""
        if self._device is None:
            return nullcontext()
        import torch

        self._side.wait_event(self._computed)
        return torch.cuda.stream(self._side)

    def after_collective(self) -> Any:
        """Return a context in which what is issued comes after a collective, by whose future this is called."""
        if self._device is None:
            return nullcontext()
        import torch

        self._side.wait_stream(torch.cuda.current_stream(self._device))  # on which the callback's future has waited
        return torch.cuda.stream(self._side)

    def finish(self, future: Any, tensor: Any) -> None:
        """Set the future's result."""
        with self.after_gradients():
            future.set_result(tensor)


def scheduled(
    model: Any,
    gate: str,
    *,
    token_file: str | Path,
    job_id: str,
    iterations: int = 1_000_000,
    compute_s: float = 0.0,
    server: int | None = None,
) -> Any:
    """Let a DistributedDataParallel model's gradients be reduced when a gate says so.

    Gradients are bit-identical to those of plain DDP with gloo, in chunks or not. (One case apart, in the last bit:
    with ``gradient_as_bucket_view`` and gradients that ``zero_grad`` keeps, DDP divides by the number of ranks instead
    of multiplying by its inverse, which differs unless that is a power of two.) Every rank calls this, right after it
    has wrapped the model. Should the gate be gone, ``backward`` raises.

    Parameters
    ----------
    model
        A ``torch.nn.parallel.DistributedDataParallel`` without a hook of its own.
    gate
        ``HOST:PORT`` of ``ddlsched testbed gate``.
    token_file
        The gate's token.
    job_id
        Of the job, the same on all ranks.
    iterations, compute_s
        What policies are to know: how many iterations are planned, and what one computes, seconds.
    server
        This machine's number in the gate's network; by default machines are numbered as they first join.

    Returns
    -------
    torch.nn.parallel.DistributedDataParallel
        The model.

    Raises
    ------
    InputError
        Not such a model, or a bad argument.
    TestbedError, MeasurementError
        The gate cannot be reached, or refuses the job.
    """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        raise InputError(f"model is a {type(model).__name__}; expected a DistributedDataParallel")
    ranks = dist.get_process_group_ranks(model.process_group)
    # A group of its own: what the gate orders must not be mixed with what the script itself reduces meanwhile.
    group = dist.new_group(ranks, backend=dist.get_backend(model.process_group))
    size = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    member = RankMembership(
        job_id=str(job_id),
        rank=dist.get_rank(group),
        size=len(ranks),
        iterations=int(iterations),
        compute_s=compute_s,
        message_bytes=float(size),
    )
    client = GateClient.connected(gate, Path(token_file), member, server)
    hook = Hook(client, group, len(ranks))
    model.register_comm_hook(None, lambda _, bucket: hook(bucket))
    return model


class Hook:
    """Reduces a bucket in the chunks, and at the times, that the gate says."""

    def __init__(self, client: WaitingBuckets, group: Any, ranks: int) -> None:
        self._client, self._group, self._ranks = client, group, ranks
        self._iteration = 0

    def __call__(self, bucket: Any) -> Any:
        """Return a future of the bucket's mean over all ranks."""
        tensor = bucket.buffer()
        tensor.mul_(1.0 / self._ranks)  # as DDP does it without a hook, to the bit
        sending = _Sending(self._client, self._group, self._ranks, tensor, bucket.index(), self._iteration)
        size = tensor.numel() * tensor.element_size()
        self._client.ready(bucket.index(), self._iteration, float(size), sending.send, sending.fail)
        if bucket.is_last():
            self._client.iterated(self._iteration)
            self._iteration += 1
        return sending.future


class _Sending:
    """One bucket on its way."""

    def __init__(self, client: WaitingBuckets, group: Any, ranks: int, tensor: Any, task: int, iteration: int) -> None:
        self._client, self._group, self._ranks = client, group, ranks
        self._tensor, self._task, self._iteration = tensor, task, iteration
        self._streams = Streams(tensor)
        self._result = self._streams.future()
        self.future = self._result.then(_tensor_of)
        self._left = -1
        self._lock = threading.Lock()

    def send(self, chunk: int, chunks: int) -> None:
        """Begin to reduce a chunk; the gate's thread calls this in the gate's order."""
        import torch.distributed as dist

        with self._lock:
            self._left = chunks if self._left < 0 else self._left
        with self._streams.after_gradients():
            part = None if chunks == 1 else RingChunk(self._tensor, self._ranks, chunk, chunks)
            data = self._tensor if part is None else part.data
            work = dist.all_reduce(data, group=self._group, async_op=True)
            assert work is not None
            work.get_future().add_done_callback(lambda future: self._ended(future, part, chunk))

    def _ended(self, future: Any, part: RingChunk | None, chunk: int) -> None:
        try:
            future.wait()
            with self._streams.after_collective():
                if part is not None:
                    part.write_back()
        except RuntimeError as error:
            self.fail(TestbedError(f"an all-reduce failed: {str(error).splitlines()[0]}"))
            return
        with self._lock:
            self._left -= 1
            last = self._left == 0
        self._client.sent(self._task, self._iteration, chunk, last=last)
        if last:
            self._streams.finish(self._result, self._tensor)

    def fail(self, error: TestbedError) -> None:
        """Let ``backward`` raise."""
        with self._lock:
            if not self._result.done():
                self._result.set_result(error)


def _tensor_of(future: Any) -> Any:
    """Return the tensor in a future, or raise the error in it, which thereby reaches ``backward``."""
    result = future.value()
    if isinstance(result, Exception):
        raise result
    return result
