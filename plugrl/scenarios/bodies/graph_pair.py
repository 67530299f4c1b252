"""``graph_pair``: messages along the edges of two graphs, and heads that point at their nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import ACTIVATIONS, Activation, Body
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.scenarios.bodies.graph_heads import Parts, Pointer, PooledHead
from plugrl.scenarios.bodies.graph_marks import exchanges

#: Parts of an observation that tell whose turn it is, if there are any.
_CONTEXT = ("round", "speaks", "may_decide", "stance")


@dataclass
class GraphPairConfig:
    """Options of the body ``graph_pair``."""

    layers: int = described(
        2, "how far a node sees: rounds of messages along the edges", at_least=1, at_most=1000
    )
    width: int = described(32, "what is known of each node", at_least=1, at_most=10**6)
    attention: bool = described(False, "let nodes look at those of the other graph afterwards")
    head_width: int = described(32, "of the hidden layer of each head", at_least=1, at_most=10**6)
    activation: Activation = described("tanh", "what follows each linear layer")


class GraphPairBody(Body):
    """A graph isomorphism network over both graphs (Xu et al., 1810.00826), the same for each.

    What it sees of two graphs that so many rounds of colour refinement do not tell apart is the
    same. Nodes that were named are marked: the n-th node named in one graph and the n-th in the
    other belong together and have one mark. A node that has no partner yet has no mark: heads are
    told which one it is. Which of the graphs comes first changes neither decisions nor values.

    It brings its own heads: one that points at nodes, by what is known of them and by how alike
    they are to the node that was named last, and heads for decisions, values and labels.
    """

    Config: ClassVar[type] = GraphPairConfig

    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Refused: where the graphs are in an observation, its layout says alone.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "graph_pair reads pairs of graphs that agents of a protocol talk about, not "
            f"observations of shape {list(shape)}; take scenario: graph_isomorphism, or body: mlp"
        )

    def build_for(self, spaces: AgentSpaces, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The network and its features.

        Raises:
            ConfigError: observations have no pair of graphs.
        """
        layout = spaces.layout
        if layout is None or not {"adjacency", "node_mask", "messages"} <= set(layout.fields):
            return self.build(shape)
        network = GraphPair(layout, self.config)
        return network, network.parts.size

    def head(self, part: str, spaces: AgentSpaces, features: int, outputs: int) -> nn.Module:
        """See the class."""
        assert spaces.layout is not None, "build_for refuses spaces without a layout"
        parts, config = _parts(spaces.layout, self.config), self.config
        if part == "policy_head":
            return Pointer(parts, outputs, config.head_width, config.activation)
        return PooledHead(parts, outputs, config.head_width, config.activation)


def _parts(layout: Layout, config: GraphPairConfig) -> Parts:
    context = sum(layout.fields[name][0] for name in _CONTEXT if name in layout)
    channels, nodes = layout.fields["last_message"]
    return Parts(
        nodes=nodes,
        width=config.width,
        channels=channels,
        pooled=(config.layers + 1) * config.width + config.width + channels * config.width,
        context=context,
    )


class GraphPair(nn.Module):
    """``[..., size]`` to the features that :class:`Parts` describes, in one vector."""

    def __init__(self, layout: Layout, config: GraphPairConfig) -> None:
        super().__init__()
        self._layout = layout
        self.parts = _parts(layout, config)
        rounds, seen, _ = layout.fields["messages"]
        self._exchanges = rounds // 2
        self._context = [name for name in _CONTEXT if name in layout]
        width = config.width
        self.first = nn.Linear(1 + self._exchanges * seen, width)
        self.layers = nn.ModuleList(_Layer(width, config.activation) for _ in range(config.layers))
        self.attention = _Attention(width) if config.attention else None

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """See the class."""
        flat, view = observation.reshape(-1, observation.shape[-1]), self._layout.view
        mask = view(flat, "node_mask").unsqueeze(-1)
        adjacency = view(flat, "adjacency")
        marks, single = exchanges(view(flat, "messages"), self._exchanges)
        inputs = torch.cat([mask, marks.permute(0, 3, 4, 1, 2).flatten(3)], -1)
        known = self.first(inputs) * mask
        pooled = [known.sum(2)]
        for layer in self.layers:
            known = layer(known, adjacency) * mask
            pooled.append(known.sum(2))
        if self.attention is not None:
            known = self.attention(known, mask) * mask
        sums = torch.cat(pooled, -1)
        apart = torch.log1p(_SHARPNESS * (sums[:, 0] - sums[:, 1]).abs())
        nodes = known.flatten(1, 2)
        named = single.flatten(2) @ nodes
        features = [
            nodes.flatten(1),
            view(flat, "last_message").flatten(1),
            apart,
            known.sum((1, 2)) / self.parts.nodes,
            named.flatten(1),
            *(view(flat, name) for name in self._context),
        ]
        return torch.cat(features, -1).reshape(*observation.shape[:-1], self.parts.size)


#: How much differences of the sums over two graphs are stretched near 0, where they matter most.
_SHARPNESS = 10.0


class _Layer(nn.Module):
    """One round: each node hears the sum of what is known of its neighbours."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        make = ACTIVATIONS[activation]
        self.own = nn.Linear(width, width)
        self.around = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.middle, self.last = make(), make()

    def forward(self, known: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        """``[N, 2, nodes, width]`` and ``[N, 2, nodes, nodes]`` to the first shape."""
        heard = self.own(known) + adjacency @ self.around(known)
        after: torch.Tensor = self.last(self.out(self.middle(heard)))
        return after


class _Attention(nn.Module):
    """Each node looks at the nodes of the other graph, most at those that answer it best."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, known: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """``[N, 2, nodes, width]`` and the mask ``[N, 2, nodes, 1]`` to the first shape."""
        other, there = known.flip(1), mask.flip(1)
        scores = self.query(known) @ self.key(other).transpose(-1, -2) / known.shape[-1] ** 0.5
        scores = scores.masked_fill(there.transpose(-1, -2) < 0.5, -1e9)
        return known + scores.softmax(-1) @ self.value(other)
