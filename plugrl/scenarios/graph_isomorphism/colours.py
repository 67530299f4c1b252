"""Colour refinement (1-dimensional Weisfeiler-Leman) of many small graphs at once.

A network that passes messages along edges so many times sees no more of a graph than its colours
after so many rounds (Xu et al., 1810.00826; Morris et al., 1810.02244). Colours are hashes of 64
bits: equal where refinement makes them equal, and different otherwise but for collisions, which
are too rare to be met.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
#: Graphs that are refined at a time; more do not fit the caches of processors.
_CHUNK = 4096


def mix_bits(numbers: np.ndarray) -> np.ndarray:
    """Scatter integers over 64 bits, one to one (splitmix64)."""
    x = numbers.astype(np.uint64) + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIXERS[0]
    x = (x ^ (x >> np.uint64(27))) * _MIXERS[1]
    result: np.ndarray = x ^ (x >> np.uint64(31))
    return result


def first_colours(node_mask: np.ndarray, marks: np.ndarray | None = None) -> np.ndarray:
    """Colours ``[M, N]`` of nodes by their marks alone; 0 where there is no node.

    Args:
        node_mask: ``[M, N]``, where there is a node.
        marks: ``[M, N]``, integers; None: all alike.
    """
    colours = np.zeros(node_mask.shape, np.int64) if marks is None else np.asarray(marks)
    return np.where(node_mask.astype(bool), mix_bits(colours + 1), np.uint64(0))


def refine(adjacency: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """One round: each node gets a colour of its own colour and those of its neighbours.

    Args:
        adjacency: ``[M, N, N]``, 1 where there is an edge.
        colours: ``[M, N]``, 0 where there is no node.
    """
    told = mix_bits(colours)
    edges = adjacency.astype(bool)
    around = np.empty_like(colours)
    for start in range(0, len(colours), _CHUNK):
        part = slice(start, start + _CHUNK)
        heard = np.where(edges[part], told[part, None, :], np.uint64(0))
        around[part] = heard.sum(-1, dtype=np.uint64)
    own = mix_bits(colours ^ _GOLDEN)
    return np.where(colours == 0, np.uint64(0), mix_bits(own + around))


def of_graph(colours: np.ndarray) -> np.ndarray:
    """One number ``[M]`` per graph for its colours ``[M, N]``, independent of the nodes' order."""
    there = colours != 0
    summed = np.where(there, mix_bits(colours), np.uint64(0)).sum(-1, dtype=np.uint64)
    return mix_bits(summed + there.sum(-1).astype(np.uint64))


def signatures(
    adjacency: np.ndarray,
    node_mask: np.ndarray,
    rounds: int,
    marks: np.ndarray | None = None,
) -> np.ndarray:
    """What is seen of each graph before the first round and after each, ``[rounds + 1, M]``.

    Args:
        adjacency: ``[M, N, N]``.
        node_mask: ``[M, N]``.
        rounds: how many.
        marks: ``[M, N]``, integers that tell nodes apart from the beginning; None: all alike.
    """
    colours = first_colours(node_mask, marks)
    seen = [of_graph(colours)]
    for _ in range(rounds):
        colours = refine(adjacency, colours)
        seen.append(of_graph(colours))
    return np.stack(seen)


def depths(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The first round ``[M]`` after which two graphs look different; -1: they never do.

    Args:
        first: ``[rounds + 1, M]``, signatures of the first graphs.
        second: those of the second ones.
    """
    differ = first != second
    result: np.ndarray = np.where(differ.any(0), differ.argmax(0), -1)
    return result
