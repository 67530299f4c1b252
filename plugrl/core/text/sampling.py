"""Sampling parameters, and random numbers that depend on the request alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. ``temperature`` 0 is greedy, ``top_p`` 1 keeps everything."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 256
    stop_token_ids: tuple[int, ...] = ()


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def stream_seeds(streams: Sequence[tuple[int, ...]]) -> npt.NDArray[np.uint64]:
    """One seed per request from its coordinates (seed, step, item, run, turn)."""
    coordinates = np.asarray(streams, dtype=np.int64).astype(np.uint64)
    seeds = np.zeros(len(coordinates), dtype=np.uint64)
    for column in coordinates.T:
        seeds = _mix((seeds ^ column) + _GOLDEN)
    return seeds


def uniforms(seeds: npt.NDArray[np.uint64], position: int) -> npt.NDArray[np.float64]:
    """The ``position``-th number in [0, 1) of each stream: SplitMix64, read by counter.

    A row's number does not depend on which other rows are in the batch.
    """
    offset = np.uint64((position + 1) * int(_GOLDEN) & 0xFFFFFFFFFFFFFFFF)
    return (_mix(seeds + offset) >> np.uint64(11)).astype(np.float64) * 2.0**-53
