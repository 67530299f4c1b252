"""``ReplayBuffer``: the last steps that were taken, from which minibatches are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from plugrl.core.errors import ConfigError, ContractError

Key = str | tuple[str, str]

#: Of several minibatches, this many rows are looked up at once.
_ROWS_AT_ONCE = 1024
#: What a learner from single steps needs; a batch's other keys are not kept.
STEP_KEYS: tuple[Key, ...] = (
    "observation",
    "action",
    ("next", "observation"),
    ("next", "reward"),
    ("next", "terminated"),
)


class ReplayBuffer:
    """A ring of steps in one array per key; the oldest make room for the newest.

    The arrays are made when the first steps show their shapes. The operating system gives memory
    to the parts that are written, so that a large capacity costs nothing before it is used.

    Args:
        capacity: the steps that are kept.
        seed: of the generator that draws minibatches.
        device: where the arrays are.

    Raises:
        ConfigError: the capacity is not positive.
    """

    def __init__(
        self, capacity: int, seed: int = 0, device: torch.device | str | None = None
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"a buffer of {capacity} steps keeps nothing; give at least 1")
        self.capacity = capacity
        self._device = torch.device(device or "cpu")
        self._rng = np.random.default_rng(seed)
        self._arrays: dict[Key, torch.Tensor] = {}
        self._size = 0
        self._next = 0

    def __len__(self) -> int:
        return self._size

    def add(self, batch: TensorDict) -> int:
        """Keep the valid steps of a batch of any batch size, in its order.

        Args:
            batch: has :data:`STEP_KEYS`, and may have ``valid``, which is false where nothing
                may be learnt from the step.

        Returns:
            How many steps there were.
        """
        steps = {key: _rows(batch.get(key, None), batch.batch_dims) for key in STEP_KEYS}
        valid = batch.get("valid", None)
        return self.extend(steps, None if valid is None else valid.reshape(-1))

    def extend(self, steps: Mapping[Key, torch.Tensor], valid: torch.Tensor | None = None) -> int:
        """Keep steps given as one tensor ``[n, ...]`` for each key, where ``valid [n]``."""
        if valid is not None and not valid.all():
            steps = {key: value[valid] for key, value in steps.items()}
        count = steps["observation"].shape[0]
        if count > self.capacity:
            steps = {key: value[-self.capacity :] for key, value in steps.items()}
        if count:
            self._write(steps)
        return count

    def _write(self, steps: Mapping[Key, torch.Tensor]) -> None:
        if not self._arrays:
            self._allocate({key: (tuple(v.shape[1:]), v.dtype) for key, v in steps.items()})
        count = steps["observation"].shape[0]
        before_end = min(count, self.capacity - self._next)
        for key, value in steps.items():
            array = self._arrays[key]
            if array.shape[1:] != value.shape[1:] or array.dtype != value.dtype:
                raise ContractError(
                    f"the replay buffer holds {key} as {array.dtype} {list(array.shape[1:])} and "
                    f"was given {value.dtype} {list(value.shape[1:])}; all steps need one form"
                )
            # Not by slices: after each step of one environment these would take twice as long.
            first = value if before_end == count else value[:before_end]
            array.narrow(0, self._next, before_end).copy_(first)
            if before_end < count:
                array[: count - before_end] = value[before_end:]
        self._next = (self._next + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def _allocate(self, forms: Mapping[Key, tuple[tuple[int, ...], torch.dtype]]) -> None:
        try:
            self._arrays = {
                key: torch.empty((self.capacity, *shape), dtype=dtype, device=self._device)
                for key, (shape, dtype) in forms.items()
            }
        except (MemoryError, RuntimeError) as error:
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms.values())
            needed = f"{self.capacity * size / 1e9:,.1f}"
            raise ConfigError(
                f"a replay buffer of {self.capacity:,} steps takes {needed} GB, which there are "
                "not; lower buffer_size"
            ) from error

    def sample(self, count: int) -> TensorDict:
        """Draw ``count`` steps, each with the same chance and independently.

        Returns:
            A TensorDict ``[count]`` with :data:`STEP_KEYS`, in memory of its own.

        Raises:
            ContractError: the buffer is empty.
        """
        if not self._size:
            raise ContractError("nothing can be drawn from an empty replay buffer; add steps first")
        drawn = torch.from_numpy(self._rng.integers(0, self._size, count)).to(self._device)
        found = {key: array.index_select(0, drawn) for key, array in self._arrays.items()}
        following = {key[1]: value for key, value in found.items() if isinstance(key, tuple)}
        own: dict[str, Any] = {key: value for key, value in found.items() if isinstance(key, str)}
        return TensorDict({**own, "next": TensorDict(following, [count])}, batch_size=[count])

    def minibatches(
        self,
        number: int,
        count: int,
        prepare: Callable[[TensorDict], TensorDict] | None = None,
    ) -> Iterator[TensorDict]:
        """The next ``number`` draws of ``count`` steps, as :meth:`sample` would give them.

        Several are looked up at once, which takes little longer than one. Nothing may be added or
        drawn before the last one is taken.

        Args:
            number: how many.
            count: steps of each.
            prepare: called with the steps of several of them, which are replaced by what it gives.

        Raises:
            ContractError: the buffer is empty.
        """
        at_once = max(1, _ROWS_AT_ONCE // count)
        for first in range(0, number, at_once):
            parts = min(at_once, number - first)
            rows = self.sample(parts * count)
            if prepare is not None:
                rows = prepare(rows)
            yield from rows.split(count) if parts > 1 else (rows,)

    def state_dict(self) -> dict[str, Any]:
        """The steps that are kept, the place of the next one, and the generator."""
        return {
            "arrays": {_name(key): array[: self._size] for key, array in self._arrays.items()},
            "next": self._next,
            "size": self._size,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave.

        Raises:
            ConfigError: more steps were kept than this buffer has room for, or it was full then
                and has more room now, so that its oldest step is not the next to go.
        """
        size, following = int(state["size"]), int(state["next"])
        fits = size == self.capacity or (size < self.capacity and following == size)
        if not fits:
            raise ConfigError(
                f"the saved replay buffer is a ring of {size} steps and buffer_size is "
                f"{self.capacity}; resume with the buffer_size that the run had"
            )
        held = {key: state["arrays"].get(_name(key)) for key in STEP_KEYS}
        saved = {key: value for key, value in held.items() if value is not None}
        self._arrays, self._size, self._next = {}, size, following
        if saved:
            self._allocate({key: (tuple(v.shape[1:]), v.dtype) for key, v in saved.items()})
        for key, value in saved.items():
            self._arrays[key][:size] = value
        self._rng.bit_generator.state = state["rng"]


def _name(key: Key) -> str:
    return key if isinstance(key, str) else "/".join(key)


def _rows(value: torch.Tensor | None, batch_dims: int) -> torch.Tensor:
    if value is None:
        names = ", ".join(_name(key) for key in STEP_KEYS)
        raise ContractError(f"a batch for the replay buffer needs the keys {names}")
    return value.flatten(0, batch_dims - 1) if batch_dims > 1 else value
