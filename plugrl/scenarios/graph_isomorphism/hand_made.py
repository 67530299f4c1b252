"""Agents that no one trains: what they do shows what can be reached by naming nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from plugrl.core.protocol.protocol import Verdict
from plugrl.core.tensordict.environment.layout import ACTION_MASK, Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces, Script
from plugrl.scenarios.bodies.graph_marks import exchanges
from plugrl.scenarios.graph_isomorphism.colours import first_colours, mix_bits, of_graph, refine

#: What the hand-made verifier sees, in rounds of refinement.
VERIFIER_LAYERS = 2


def matching_prover(
    spaces: AgentSpaces, observation: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Answer each node with one that looks like it after as many rounds as possible.

    If the graphs are isomorphic and refinement tells all their nodes apart, the answer is right.
    """
    layout = _layout(spaces)
    size = layout.fields["node_mask"][-1]
    colours = _colours(layout, observation, size)
    last = layout.view(observation, "last_message")
    allowed = _allowed(layout, observation)
    # The more rounds two nodes look alike, the higher; ties are broken by chance.
    flat = colours.reshape(len(colours), len(observation), 1, -1)
    named = np.where(last > 0.5, flat, np.uint64(0)).max(-1, keepdims=True)
    alike = (flat == named).cumprod(0).sum(0) * last.any(-1, keepdims=True)
    ranked = np.where(allowed, alike + rng.random(allowed.shape), -1.0)
    return _action(spaces, ranked.argmax(-1), None)


def checking_verifier(
    spaces: AgentSpaces, observation: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Ask for any node; reject graphs that look different, with all pairs of nodes marked.

    It looks at two rounds of refinement. Graphs that look alike it accepts on its last turn.
    """
    layout = _layout(spaces)
    allowed = _allowed(layout, observation)
    asked = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(-1)
    colours = _colours(layout, observation, VERIFIER_LAYERS)[-1]
    seen = of_graph(colours.reshape(-1, colours.shape[-1])).reshape(-1, 2)
    round = layout.view(observation, "round").argmax(-1)
    last_turn = round >= layout.fields["round"][0] - 2
    accepted = np.where(last_turn, Verdict.ACCEPT, Verdict.UNDECIDED)
    decision = np.where(seen[:, 0] == seen[:, 1], accepted, Verdict.REJECT)
    may = layout.view(observation, "may_decide")[:, 0] > 0.5
    return _action(spaces, asked, np.where(may, decision, Verdict.UNDECIDED))


SCRIPTS: Mapping[str, Script] = {
    "matching_prover": matching_prover,
    "checking_verifier": checking_verifier,
}


def _layout(spaces: AgentSpaces) -> Layout:
    assert spaces.layout is not None, "agents of a protocol see named parts"
    return spaces.layout


def _allowed(layout: Layout, observation: np.ndarray) -> np.ndarray:
    """``[N, channels, messages]``."""
    channels, size = layout.fields["last_message"]
    mask = layout.view(observation, ACTION_MASK)[:, : channels * size]
    allowed: np.ndarray = mask.reshape(-1, channels, size) > 0.5
    return allowed


def _action(spaces: AgentSpaces, named: np.ndarray, decision: np.ndarray | None) -> np.ndarray:
    """Messages ``[N, channels]`` and what is decided; agents that do not decide leave it out."""
    width = spaces.action.shape[0]  # type: ignore[index]
    columns = [named] if width == named.shape[1] else [named, _without_decision(named, decision)]
    return np.concatenate(columns, 1).astype(spaces.action.dtype)


def _without_decision(named: np.ndarray, decision: np.ndarray | None) -> np.ndarray:
    chosen = np.full(len(named), Verdict.UNDECIDED) if decision is None else decision
    return chosen[:, None]


def _colours(layout: Layout, observation: np.ndarray, rounds: int) -> np.ndarray:
    """Colours ``[rounds + 1, N, 2, nodes]``, pairs of nodes that were named being marked."""
    messages = torch.from_numpy(np.ascontiguousarray(layout.view(observation, "messages")))
    pairs = exchanges(messages, messages.shape[1] // 2)[0].numpy()
    kinds = pairs.reshape(len(pairs), -1, *pairs.shape[-2:]).astype(np.uint64)
    names = mix_bits(np.arange(1, kinds.shape[1] + 1))[:, None, None]
    marks = (kinds * names).sum(1, dtype=np.uint64)
    size = layout.fields["node_mask"][-1]
    mask = layout.view(observation, "node_mask").reshape(-1, size)
    adjacency = layout.view(observation, "adjacency").reshape(-1, size, size)
    colours = [first_colours(mask, marks.reshape(-1, size).view(np.int64))]
    for _ in range(rounds):
        colours.append(refine(adjacency, colours[-1]))
    return np.stack(colours).reshape(rounds + 1, -1, 2, size)
