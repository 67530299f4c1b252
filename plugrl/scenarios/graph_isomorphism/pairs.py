"""Pairs of random graphs, of which is known how many rounds of refinement tell them apart.

Half of the pairs are isomorphic. Each pair that is not has a twin that is: one of its graphs, and
the same in another order. Whatever does not tell the two graphs of a pair apart therefore sees as
many isomorphic pairs that look like it, and the best accuracy of a network of so many layers is
known exactly.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from plugrl.core.errors import RunError
from plugrl.core.tensordict.seeding import generator_of
from plugrl.scenarios.graph_isomorphism.colours import depths, mix_bits, signatures

#: Graphs that are drawn at a time for each pair that is missing, and their bounds.
_DRAWN_EACH, _FEWEST, _MOST = 60, 5000, 60_000
#: How often graphs are drawn before it is given up, and before that if there was no pair at all.
_TRIES, _TRIES_IN_VAIN = 100, 10
#: One of so many graphs is kept for tests, with all that look like it.
_PARTS = 5
#: Rounds from a marked node on, enough to tell most graphs apart that look alike without marks.
_MARKED_ROUNDS = 3
#: The depth of pairs that are isomorphic.
ISOMORPHIC = 0


class Recipe(NamedTuple):
    """What pairs are asked for.

    Attributes:
        counts: of pairs that are not isomorphic: told apart by 1 round, by 2, by more, by none.
        smallest: nodes of a graph, at least.
        largest: nodes of a graph, at most.
        edge_probabilities: of which each graph has one.
        test: pairs for tests.
    """

    counts: tuple[int, int, int, int]
    smallest: int
    largest: int
    edge_probabilities: tuple[float, ...]
    test: bool


class Pairs(NamedTuple):
    """M pairs of graphs.

    Attributes:
        adjacency: ``[M, 2, N, N]``, bool.
        node_mask: ``[M, 2, N]``, bool.
        depth: ``[M]``, the round that tells them apart, 0 for isomorphic ones, -1 if none does.
    """

    adjacency: np.ndarray
    node_mask: np.ndarray
    depth: np.ndarray


# Each phase of a sequence asks for the same two splits, in the preflight and in its training.
@functools.lru_cache(maxsize=2)
def make_pairs(recipe: Recipe, seed: int) -> Pairs:
    """Pairs that are not isomorphic, each followed by its twin, in an order by chance.

    Those asked for last are kept, so that their arrays cannot be written to.

    Raises:
        RunError: such pairs are too rare to be found.
    """
    rng = generator_of(seed, "graphs", "test" if recipe.test else "train")
    found: list[list[np.ndarray]] = [[] for _ in recipe.counts]
    for tried in range(_TRIES):
        have = [sum(map(len, pairs)) for pairs in found]
        missing = [count - there for count, there in zip(recipe.counts, have, strict=True)]
        vain = [m > 0 and not there for m, there in zip(missing, have, strict=True)]
        if max(missing) <= 0 or (any(vain) and tried >= _TRIES_IN_VAIN):
            break
        for pairs, new in zip(found, _search(recipe, missing, rng), strict=True):
            pairs.append(new)
    if max(missing) > 0:
        where = ("one round", "two rounds", "more rounds", "no round")
        short = ", ".join(f"{m} by {w}" for m, w in zip(missing, where, strict=True) if m > 0)
        raise RunError(
            f"graph_isomorphism: pairs of graphs are still missing that are told apart {short} of "
            "refinement; ask for fewer of them, or for other sizes or edge_probabilities"
        )
    graphs = np.concatenate([each for have in found for each in have])
    return _with_twins(graphs, rng)


def _search(recipe: Recipe, missing: list[int], rng: np.random.Generator) -> list[np.ndarray]:
    """Pairs ``[k, 2, N, N]`` of each depth among newly drawn graphs, at most those missing."""
    # Those that no round tells apart are rare.
    wanted = _MOST if missing[3] > 0 else sum(max(each, 0) for each in missing) * _DRAWN_EACH
    graphs = _draw_graphs(recipe, min(max(wanted, _FEWEST), _MOST), rng)
    adjacency, node_mask = _parts(graphs)
    seen, final = _signatures_seen(adjacency, node_mask)
    # By what two rounds see, so that neither graph of a deep pair looks like one of another split.
    of_tests = mix_bits(seen[2]) % np.uint64(_PARTS) == 0
    places = np.flatnonzero(of_tests == recipe.test)
    alike = (
        _indistinguishable_pairs(graphs[places], final[places], rng)
        if missing[3] > 0
        else graphs[:0, None].repeat(2, 1)
    )
    places = places[np.unique(final[places], return_index=True)[1]]
    sizes = node_mask[places].sum(1) * 1000 + adjacency[places].sum((1, 2))
    pairs = []
    for level, key in enumerate((mix_bits(sizes), seen[1, places], seen[2, places])):
        first, second = places[_neighbours(key, rng)]
        # Graphs that are alike after all rounds are there once, so that all have a depth.
        shallow = seen[level + 1, first] != seen[level + 1, second]
        chosen = shallow if level < 2 else np.ones_like(shallow)
        pairs.append(graphs[np.stack([first, second], 1)[chosen]])
    return [rng.permutation(p)[: max(m, 0)] for p, m in zip([*pairs, alike], missing, strict=True)]


def _signatures_seen(adjacency: np.ndarray, node_mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Signatures up to round 3 ``[4, G]``, and ones ``[G]`` that are equal where all rounds are."""
    seen = signatures(adjacency, node_mask, 3)
    _, inverse, count = np.unique(seen[3], return_inverse=True, return_counts=True)
    final, open = mix_bits(seen[3]), count[inverse] > 1
    final[open] = signatures(adjacency[open], node_mask[open], adjacency.shape[-1])[-1]
    return seen, final


def _draw_graphs(recipe: Recipe, number: int, rng: np.random.Generator) -> np.ndarray:
    """Random graphs ``[G, N, N]``, with ones on the diagonal where there is a node."""
    size = recipe.largest
    sizes = rng.integers(recipe.smallest, size + 1, number)
    likely = rng.choice(np.array(recipe.edge_probabilities, np.float32), number)
    drawn = rng.random((number, size, size), np.float32) < likely[:, None, None]
    there = np.arange(size) < sizes[:, None]
    upper = np.triu(drawn, 1) & there[:, None] & there[:, :, None]
    return upper | upper.transpose(0, 2, 1) | (np.eye(size, dtype=bool) & there[:, None])


def _parts(graphs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Adjacency and node mask of graphs with ones on the diagonal where there is a node."""
    mask = np.diagonal(graphs, axis1=-2, axis2=-1).copy()
    return graphs & ~np.eye(graphs.shape[-1], dtype=bool), mask


def _neighbours(key: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places ``[2, k]`` of disjoint pairs with equal keys."""
    order = rng.permutation(len(key))
    order = order[np.argsort(key[order], kind="stable")]
    first, inverse = np.unique(key[order], return_index=True, return_inverse=True)[1:]
    rank = np.arange(len(order)) - first[inverse]
    begins = np.flatnonzero((rank[:-1] % 2 == 0) & (rank[1:] == rank[:-1] + 1))
    return np.stack([order[begins], order[begins + 1]])


def _indistinguishable_pairs(
    graphs: np.ndarray, final: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Pairs ``[k, 2, N, N]`` that look equal in every round, and are not isomorphic.

    That they are not is certain: refinement tells them apart once one node is marked, whichever.
    """
    _, inverse, count = np.unique(final, return_inverse=True, return_counts=True)
    several = count[inverse] > 1
    graphs, final = graphs[several], final[several]
    marked = mix_bits(final)
    adjacency, mask = _parts(graphs)
    for node in range(graphs.shape[-1]):
        marks = np.zeros(mask.shape, np.int64)
        marks[:, node] = 1
        marked += mix_bits(signatures(adjacency, mask, _MARKED_ROUNDS, marks)[-1])
    # A node that is not there cannot be marked: it counts alike in all graphs of a size.
    kinds = np.unique(marked, return_index=True)[1]
    result: np.ndarray = graphs[kinds[_neighbours(final[kinds], rng)].T]
    return result


def _with_twins(pairs: np.ndarray, rng: np.random.Generator) -> Pairs:
    """Add to pairs ``[M, 2, N, N]`` their twins, and put nodes, graphs and pairs in any order."""
    number, size = len(pairs), pairs.shape[-1]
    rows = np.arange(number)
    twins = pairs[rows, rng.integers(0, 2, number)]
    pairs = pairs[rows[:, None], rng.random((number, 2)).argsort(1)]
    graphs = np.concatenate([pairs, np.stack([twins, twins], 1)]).reshape(-1, size, size)
    # Nodes in front, in any order.
    there = np.diagonal(graphs, axis1=1, axis2=2)
    order = np.where(there, rng.random(there.shape), 2.0).argsort(1)
    graphs = np.take_along_axis(graphs, order[:, :, None], 1)
    graphs = np.take_along_axis(graphs, order[:, None], 2)
    adjacency, mask = _parts(graphs)
    seen = signatures(adjacency, mask, size)
    depth = depths(seen[:, ::2], seen[:, 1::2])
    depth[number:] = ISOMORPHIC
    shuffled = rng.permutation(2 * number)
    made = Pairs(
        adjacency.reshape(-1, 2, size, size)[shuffled],
        mask.reshape(-1, 2, size)[shuffled],
        depth[shuffled],
    )
    for array in made:
        array.flags.writeable = False
    return made
