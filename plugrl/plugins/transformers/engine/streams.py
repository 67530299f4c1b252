"""The stream of a GPU on which answers are decoded while another thread trains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Held while a step is captured as a graph of a GPU, and while a model is trained. ``torch``
#: captures one graph at a time, and meanwhile no thread may draw random numbers on the device, as
#: dropout does, wait for the whole device, as the choice of a kernel does, or give back its memory.
CAPTURING = threading.RLock()


class DecodeStream:
    """Orders what is decoded on a stream of its own after and before updates of the weights.

    Whoever calls holds the turn of the model. Steps allocate and free on their stream alone, and
    what they share with other streams is the weights, so that no memory is used again too early.

    Args:
        device: of the model.
        apart: whether there is a stream; else steps stand in the line of those that train.
    """

    def __init__(self, device: torch.device, *, apart: bool) -> None:
        self._device = device
        self._written: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        if apart and device.type == "cuda":
            # Steps are short, and would wait for each of the long kernels of a training pass.
            self._stream = torch.cuda.Stream(device, priority=-1)
            self._mark()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Launch within the body on the stream, after the newest weights."""
        if self._stream is None:
            yield
            return
        if self._written is not None:
            self._stream.wait_event(self._written)
            self._written = None
        with torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write weights within the body, on the stream of this thread."""
        if self._stream is None:
            yield
            return
        # Steps that were launched read the old ones, even if these are freed now.
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        try:
            yield
        finally:
            self._mark()

    def _mark(self) -> None:
        self._written = torch.cuda.Event()
        self._written.record(torch.cuda.current_stream(self._device))
