"""What CUDA needs and CPUs do not: the gate's thread must not overtake the stream that computes the gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["Streams"]


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

    @contextlib.contextmanager
    def after_gradients(self) -> Iterator[None]:
        """Let what is issued within come after the gradients."""
        if self._device is None:
            yield
            return
        import torch

        with torch.cuda.stream(self._side):
            self._side.wait_event(self._computed)
            yield

    @contextlib.contextmanager
    def after(self, future: Any) -> Iterator[None]:
        """Let what is issued within come after a collective, whose future a callback was given."""
        if self._device is None:
            yield
            return
        import torch

        self._side.wait_stream(torch.cuda.current_stream(self._device))  # on which the callback's future has waited
        with torch.cuda.stream(self._side):
            yield

    def finish(self, future: Any, tensor: Any) -> None:
        """Set the future's result."""
        with self.after_gradients():
            future.set_result(tensor)
