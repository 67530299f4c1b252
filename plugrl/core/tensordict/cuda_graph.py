"""``GraphedFunction``: work on a GPU that is captured once and then replayed as one CUDA graph.

Small networks keep a GPU busy for microseconds at a time, and telling it what to do next takes
longer than doing it. A graph is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plugrl.core.plugins.user_code.error_location import first_line

logger = logging.getLogger(__name__)

#: Calls before the one that is captured: kernels are compiled and chosen in them, and an optimizer
#: makes its moments.
_WARM_UP = 3


class GraphedFunction:
    """Calls a function; from the fourth call on, on a GPU, as one graph.

    Each call does the work of the function, those that warm up too. A function that cannot be
    captured is called as it is, which is logged once.

    Args:
        name: what is done, for messages.
        function: takes and gives nothing. It reads and writes the same tensors in each call, looks
            at no value of theirs on the CPU, and draws random numbers from ``generators`` alone.
        generators: those that it draws from, and at least one; they tell on which device.
    """

    def __init__(
        self, name: str, function: Callable[[], None], generators: Sequence[torch.Generator]
    ) -> None:
        self._name = name
        self._function = function
        self._generators = [each for each in generators if each.device.type == "cuda"]
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: Any = torch.cuda.Stream() if self._generators else None  # type: ignore[no-untyped-call]

    def __call__(self) -> None:
        """Do it."""
        if self._stream is None:
            self._function()
            return
        self._calls += 1
        if self._calls <= _WARM_UP:
            # Where it will be captured: gradients are added up in the stream that they came from.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._function()
            torch.cuda.current_stream().wait_stream(self._stream)
            return
        if self._graph is None:
            self._graph = self._capture()
        if self._graph is None:
            self._stream = None
            self._function()
        else:
            self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph | None:
        """What the function does, as a graph that has not been run yet; None: it cannot be."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                self._function()
        except Exception as error:  # of a loss or an environment that anyone wrote
            logger.warning("%s goes on without a CUDA graph: %s", self._name, first_line(error))
            return None
        return graph
