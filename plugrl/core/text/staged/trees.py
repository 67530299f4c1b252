"""Trees of replies: what each reply was worth on average, and which to prefer to which.

A tree is made of rollouts ``[n, R]``, its leaves. ``tree`` ``[n, R]`` says which tree a rollout is
of, and ``node_id`` ``[n, R]`` names what was said in a round after all that was said before: two
rollouts have the same one as long as they are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plugrl.core.text.jobs.fine_tuning import PreferenceExample
from plugrl.core.text.staged.examples import reply_text, request_messages

if TYPE_CHECKING:
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict

#: Names a node: its tree and its number there.
Name = tuple[int, int]


@dataclass(slots=True)
class Node:
    """What was said in one round of some rollouts of a tree.

    Attributes:
        row: the first rollout that has it.
        turn: its round.
        parent: the node of the round before; None: it begins the tree.
        value: what an agent earned from this round on, the mean over what may follow.
    """

    row: int
    turn: int
    parent: Name | None
    value: float


def nodes_of(rollouts: NestedArrayDict, agent: int) -> dict[Name, Node]:
    """The nodes of all trees by name, with their values for an agent.

    What follows a reply are samples of one distribution, so that each follower weighs the same,
    whatever number of leaves it has.
    """
    rewards = np.asarray(rollouts["next", "agents", "reward"], np.float64)[..., agent]
    padding = np.asarray(rollouts["padding"]).astype(bool)
    trees, numbers = np.asarray(rollouts["tree"]), np.asarray(rollouts["node_id"])
    nodes: dict[Name, Node] = {}
    for row in range(len(rollouts)):
        parent: Name | None = None
        for turn in np.flatnonzero(~padding[row]).tolist():
            name = (int(trees[row, turn]), int(numbers[row, turn]))
            nodes.setdefault(name, Node(row, turn, parent, float(rewards[row, turn])))
            parent = name
    followers: dict[Name, list[float]] = {}
    for name in sorted(nodes, key=lambda name: -nodes[name].turn):
        node = nodes[name]
        later = followers.get(name)
        if later:
            node.value += sum(later) / len(later)
        if node.parent is not None:
            followers.setdefault(node.parent, []).append(node.value)
    return nodes


def preferences(
    rollouts: NestedArrayDict, agent: int, middle: float, generator: np.random.Generator
) -> list[PreferenceExample]:
    """A preferred and another reply for every place in the trees that has both, the first included.

    Replies are good when their value is ``middle`` or more. One good and one other are drawn; equal
    texts are never compared.
    """
    nodes = nodes_of(rollouts, agent)
    examples = []
    for siblings in _siblings(nodes):
        first = siblings[0]
        messages = request_messages(rollouts, first.row, first.turn, agent)
        if messages is None:
            continue
        replies = [
            (reply_text(rollouts, n.row, n.turn, agent), n.value >= middle) for n in siblings
        ]
        pairs = [
            (good, other)
            for good, is_good in replies
            for other, is_other in replies
            if is_good and not is_other and good != other and good.strip()
        ]
        if pairs:
            good, other = pairs[int(generator.integers(len(pairs)))]
            examples.append(PreferenceExample(messages, good, other))
    return examples


def _siblings(nodes: dict[Name, Node]) -> Iterator[list[Node]]:
    """The nodes that follow the same node, or begin the same tree, in the order of rollouts."""
    families: dict[tuple[int, Name | None], list[Node]] = {}
    for (tree, _), node in nodes.items():
        families.setdefault((tree, node.parent), []).append(node)
    yield from families.values()
