"""The scenario ``graph_isomorphism``: agents name nodes of two graphs to one another."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.scenarios.protocol_task import ProtocolTask, ProtocolTaskConfig

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled
    from plugrl.core.tensordict.environment.message_space import MessageSpace
    from plugrl.core.tensordict.environment.vector_environment import Script, Split

logger = logging.getLogger(__name__)

#: The groups that results are reported of, by what refinement makes of a pair.
GROUPS = ("isomorphic", "depth_1", "depth_2", "depth_3_or_more", "wl_equal")


@dataclass
class GraphIsomorphismConfig(ProtocolTaskConfig):
    """How many pairs of graphs there are, of what sizes, and how hard they are to tell apart."""

    train_size: int = described(
        10_000, "pairs to train on, an even number", at_least=2, at_most=10**8
    )
    test_size: int = described(
        1000, "pairs to evaluate on, an even number", at_least=2, at_most=10**8
    )
    min_nodes: int = described(7, "nodes of a graph, at least", at_least=2, at_most=64)
    max_nodes: int = described(11, "nodes of a graph, at most", at_least=2, at_most=64)
    edge_probabilities: list[float] = described(
        [0.2, 0.4, 0.6, 0.8],
        "how likely each edge is; each graph has one of them",
        above=0,
        below=1,
    )
    depth_shares: list[float] = described(
        [0.08, 0.2, 0.72],
        "of pairs that are not isomorphic, those that 1, 2 and more rounds of colour refinement "
        "tell apart; what is left to 1, no number of rounds does",
        at_least=0,
        at_most=1,
    )
    data_seed: int | None = described(
        None, "decides the graphs; null: the seed of the run", at_least=0
    )

    def __post_init__(self) -> None:
        for name in ("train_size", "test_size"):
            if getattr(self, name) % 2:
                raise ConfigError(f"{name} must be an even number: half of the pairs are the same")
        if self.max_nodes < self.min_nodes:
            raise ConfigError("max_nodes must be at least min_nodes")
        if not self.edge_probabilities:
            raise ConfigError("edge_probabilities must name at least one")
        if len(self.depth_shares) != 3 or sum(self.depth_shares) > 1 + 1e-9:
            raise ConfigError("depth_shares must be three shares that are at most 1 together")


class GraphIsomorphismScenario(ProtocolTask):
    """Pairs of graphs, half of them isomorphic, label 1.

    An observation has the parts ``adjacency`` ``[2, N, N]`` and ``node_mask`` ``[2, N]`` for
    graphs of up to N nodes. Message ``g * N + n`` names node n of graph g. Provers name nodes of
    the graph opposite to that of the last message of the channel; all other agents name any node.
    """

    Config: ClassVar[type] = GraphIsomorphismConfig
    name = "graph_isomorphism"

    def data(self, split: Split, seed: int) -> Labelled:
        """The pairs of a split; no graph looks like one of the other split after two rounds."""
        from plugrl.core.tensordict.environment.labelled_dataset import Labelled
        from plugrl.scenarios.graph_isomorphism.pairs import ISOMORPHIC, Recipe, make_pairs

        config, test = self.config, split != "train"
        half = (config.test_size if test else config.train_size) // 2
        recipe = Recipe(
            counts=counts_of(half, list(config.depth_shares)),
            smallest=config.min_nodes,
            largest=config.max_nodes,
            edge_probabilities=tuple(config.edge_probabilities),
            test=test,
        )
        pairs = make_pairs(recipe, seed if config.data_seed is None else int(config.data_seed))
        bounds = ", ".join(f"{ceiling(pairs.depth, n):.3f} with {n}" for n in (1, 2, 3, 5))
        logger.info(
            "graph_isomorphism: %d pairs to %s on; best accuracy of a network alone, by its "
            "layers: %s",
            2 * half,
            "test" if test else "train",
            bounds,
        )
        arrays = {"adjacency": pairs.adjacency, "node_mask": pairs.node_mask}
        groups = np.where(pairs.depth < 0, len(GROUPS) - 1, np.minimum(pairs.depth, 3))
        labels = (pairs.depth == ISOMORPHIC).astype(np.int64)
        return Labelled(arrays, labels, groups, GROUPS)

    def messages(self, data: Labelled) -> MessageSpace:
        """One for each node of both graphs."""
        from plugrl.scenarios.graph_isomorphism.nodes import NodeMessages

        protocol = make_protocol(self.config.protocol)
        bound = [agent for agent in protocol.prover_names if agent not in protocol.imitates]
        return NodeMessages(data.arrays["node_mask"].shape[-1], bound)

    def scripts(self) -> Mapping[str, Script]:
        """``matching_prover`` and ``checking_verifier``, see :mod:`.hand_made`."""
        from plugrl.scenarios.graph_isomorphism.hand_made import SCRIPTS

        return SCRIPTS


def counts_of(pairs: int, shares: list[float]) -> tuple[int, int, int, int]:
    """How many of so many pairs have each depth, the last being those that have none."""
    bounds = np.floor(np.cumsum(shares) * pairs + 1e-6).astype(int)
    first, second, third = np.diff(bounds, prepend=0).tolist()
    return first, second, third, pairs - first - second - third


def ceiling(depth: np.ndarray, layers: int) -> float:
    """The best accuracy of whoever sees of pairs what so many rounds of refinement show.

    It is exact for the pairs that :func:`~.pairs.make_pairs` gives: of pairs that look alike,
    at least as many are isomorphic as are not, so that nothing beats taking all of them for
    isomorphic.

    Args:
        depth: ``[M]``, of each pair.
        layers: rounds that are seen.
    """
    return float(((depth >= 0) & (depth <= layers)).mean())
