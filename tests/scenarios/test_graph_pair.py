"""The body ``graph_pair`` and its heads: what they can see of two graphs, and what they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.scenarios.bodies.graph_marks import exchanges
from plugrl.scenarios.bodies.graph_pair import GraphPairBody

NODES = 6
LAYOUT = Layout(
    {
        "adjacency": (2, NODES, NODES),
        "node_mask": (2, NODES),
        "round": (4,),
        "messages": (4, 1, 2 * NODES),
        "last_message": (1, 2 * NODES),
        "speaks": (1,),
        "may_decide": (1,),
        "action_mask": (2 * NODES + 3,),
    }
)
SPACES = AgentSpaces(LAYOUT.space(), MultiDiscrete([2 * NODES, 3]), LAYOUT)
RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0)]
TRIANGLES = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
# Of a path the ends have one neighbour; the nodes beside them know that after two rounds.
PATH = [(0, 1), (1, 2), (2, 3), (3, 4)]
# As many nodes of each degree as PATH, but a triangle and an edge.
BROKEN = [(0, 1), (2, 3), (3, 4), (4, 2)]


def matrix(edges: list[tuple[int, int]], order: Any = range(NODES)) -> np.ndarray:
    adjacency = np.zeros((NODES, NODES))
    for a, b in edges:
        adjacency[order[a], order[b]] = adjacency[order[b], order[a]] = 1
    return adjacency


def seen(first: np.ndarray, second: np.ndarray, *named: int) -> torch.Tensor:
    parts = {name: np.zeros((1, *shape)) for name, shape in LAYOUT.fields.items()}
    parts["adjacency"][0] = [first, second]
    parts["node_mask"][:] = 1
    for round, node in enumerate(named):
        parts["messages"][0, round, 0, node] = 1
    if named:
        parts["last_message"][0, 0, named[-1]] = 1
    return torch.from_numpy(LAYOUT.pack(parts))


def built(layers: int, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    body = GraphPairBody({"layers": layers, **options})
    network, features = body.build_for(SPACES, (LAYOUT.size,))
    heads = [
        body.head("policy_head", SPACES, features, 2 * NODES + 3),
        body.head("value_head", SPACES, features, 1),
    ]
    policy, value = heads
    assert policy is not None
    assert value is not None
    return network, policy, value


def given(parts: tuple[Any, Any, Any], observation: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Logits of nodes ``[12]`` and of decisions ``[3]``, and the value."""
    network, policy, value = parts
    with torch.no_grad():
        features = network(observation)
        logits = policy(features)[0]
        return logits[: 2 * NODES], logits[2 * NODES :], value(features)[0]


@pytest.mark.parametrize("attention", [False, True])
def test_the_order_of_nodes_and_graphs_changes_neither_decisions_nor_values(
    attention: bool,
) -> None:
    parts, order = built(3, attention=attention), [3, 0, 5, 1, 4, 2]
    nodes, decision, value = given(parts, seen(matrix(PATH), matrix(BROKEN), 1, NODES + 3))
    moved, same, worth = given(
        parts, seen(matrix(PATH, order), matrix(BROKEN), order[1], NODES + 3)
    )
    torch.testing.assert_close(same, decision)
    torch.testing.assert_close(worth, value)
    # What is known of a node goes where the node goes.
    torch.testing.assert_close(moved[order], nodes[:NODES])
    torch.testing.assert_close(moved[NODES:], nodes[NODES:])
    # The answer is named last in both orders of the graphs.
    swapped, same, worth = given(parts, seen(matrix(BROKEN), matrix(PATH), 1 + NODES, 3))
    torch.testing.assert_close(same, decision)
    torch.testing.assert_close(worth, value)
    torch.testing.assert_close(swapped.roll(NODES), nodes)


def test_it_sees_as_many_rounds_as_it_has_layers() -> None:
    def apart(layers: int, first: Any, second: Any) -> float:
        parts = built(layers)
        same = given(parts, seen(matrix(first), matrix(first)))[1]
        return float((given(parts, seen(matrix(first), matrix(second)))[1] - same).abs().max())

    # Degrees are alike, and what a node knows of the degrees of its neighbours is not.
    assert apart(1, PATH, BROKEN) < 1e-5
    assert apart(2, PATH, BROKEN) > 1e-3
    # A ring and two triangles look alike however often neighbours are heard.
    assert apart(5, RING, TRIANGLES) < 1e-5


def test_marking_a_pair_of_nodes_shows_what_is_hidden_without() -> None:
    parts = built(2)
    ring, triangles = matrix(RING), matrix(TRIANGLES)
    _, same, _ = given(parts, seen(ring, ring, 0, NODES + 4))
    _, other, _ = given(parts, seen(ring, triangles, 0, NODES + 4))
    assert (same - other).abs().max() > 1e-4
    # A node without a partner is told to the heads, and nothing spreads from it.
    _, half, _ = given(parts, seen(ring, ring, 0))
    _, half_other, _ = given(parts, seen(ring, triangles, 0))
    assert (half - half_other).abs().max() < 1e-5


def test_an_answer_that_looks_like_the_question_is_preferred_from_the_beginning() -> None:
    parts, order = built(3), [3, 0, 5, 1, 4, 2]
    # Node 2 is the middle of the path, the only one of its kind.
    nodes, _, _ = given(parts, seen(matrix(PATH), matrix(PATH, order), 2))
    assert int(nodes[NODES:].argmax()) == order[2]


def test_weights_of_all_parts_learn() -> None:
    network, policy, value = built(2, attention=True)
    features = network(seen(matrix(PATH), matrix(BROKEN), 1, NODES + 3))
    (policy(features).square().sum() + value(features).sum()).backward()
    for part in (network, policy, value):
        for name, weight in part.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.abs().max() > 0, name


def test_pairs_are_the_nth_nodes_named_in_either_graph() -> None:
    messages = torch.zeros(1, 5, 1, 4)
    # Graph 0: nodes 1, 0, 1. Graph 1: nodes 0, 1. In turns: 1, then 0', 1', 0, 1.
    for round, message in enumerate([1, 2, 3, 0, 1]):
        messages[0, round, 0, message] = 1
    pairs, single = exchanges(messages, 2)
    assert pairs[0, :, 0].tolist() == [[[0, 1], [1, 0]], [[1, 0], [0, 1]]]
    assert single[0, 0].tolist() == [[0, 1], [0, 0]]


def test_other_observations_are_refused() -> None:
    with pytest.raises(ConfigError, match="take scenario: graph_isomorphism"):
        GraphPairBody({}).build((4,))
    plain = AgentSpaces(LAYOUT.space(), MultiDiscrete([3]))
    with pytest.raises(ConfigError, match="take scenario: graph_isomorphism"):
        GraphPairBody({}).build_for(plain, (4,))
