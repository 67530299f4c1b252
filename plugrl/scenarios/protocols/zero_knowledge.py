"""``zero_knowledge``: any protocol, with provers that are to give nothing away.

Whoever can imitate what a verifier makes of a conversation, without having heard it, has nothing
to learn from it. So a second, adversarial verifier holds the same conversation in channels of its
own, and a simulator, which hears only itself, imitates its output. After Hammond and Adam-Day
(2025), arXiv:2412.08897.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugrl.core.component import Component
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.protocol.protocol import (
    Protocol,
    ProtocolSignals,
    ProtocolState,
    Turn,
    Verdict,
    make_protocol,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

#: The copies of the channels, and who is in the verifier's place there.
COPIES = {"standard": "verifier", "adversarial": "adversarial_verifier", "simulator": "simulator"}


@dataclass
class ZeroKnowledgeConfig:
    """Options of the protocol ``zero_knowledge``."""

    base: Any = component("protocol", "nip", help="the protocol whose conversations are protected")
    simulator_reward_coefficient: float = described(
        1.0,
        "what the likeness of simulator and adversarial verifier counts",
        at_least=-1e6,
        at_most=1e6,
    )
    aux_prover_reward_coefficient: float = described(
        1.0,
        "how much of the simulator's reward each prover gets on top of its own",
        at_least=-1e6,
        at_most=1e6,
    )


class ZeroKnowledgeProtocol(Protocol):
    """A protocol held twice, and imitated once.

    The simulator earns its likeness to the adversarial verifier, which loses as much; provers
    get a share of it. An episode is over when both verifiers have decided, or with the last round
    of the base. The verdict is that of ``verifier``. Each copy of the conversation falls silent
    when the one in the verifier's place has decided, the simulation with the adversarial one.

    Raises:
        ConfigError: the base has other verifiers than one called ``verifier``.
    """

    Config: ClassVar[type] = ZeroKnowledgeConfig
    verifier_names = ("verifier", "adversarial_verifier")
    needs_signals = True

    def __init__(self, config: Any = None) -> None:
        Component.__init__(self, config)
        self.base = base = make_protocol(self.config.base)
        if base.verifier_names != ("verifier",):
            raise ConfigError(
                "zero_knowledge takes a base with one verifier called 'verifier', not with "
                f"{', '.join(base.verifier_names)}; set base to another protocol"
            )
        self.agent_names = (*base.agent_names, "adversarial_verifier", "simulator")
        self.max_message_rounds = base.max_message_rounds
        self.min_message_rounds = base.min_message_rounds
        self.viewers = {
            f"{channel}_{copy}": _in_copy(base.viewers[channel], copy)
            for copy in COPIES
            for channel in base.channels
        }
        super().__init__(self.config)

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Whether the base can be wrapped; what is wrong with its options, it says itself."""
        try:
            make_protocol(check.section.base)
        except ConfigError:
            return
        yield from super().preflight(check)

    def turns(self) -> Sequence[Turn | Sequence[Turn]]:
        """Those of the base, in each copy of its channels."""
        return [
            self._copy_turn(turn) if isinstance(turn, Mapping) else [*map(self._copy_turn, turn)]
            for turn in self.base.turns()
        ]

    def _copy_turn(self, turn: Turn) -> Turn:
        copied: dict[str, list[str]] = {}
        for copy in COPIES:
            for agent, channels in turn.items():
                for who in _in_copy((agent,), copy):
                    copied.setdefault(who, []).extend(f"{each}_{copy}" for each in channels)
        return copied

    @property
    def prover_names(self) -> tuple[str, ...]:
        """Those of the base: the simulator is none."""
        return self.base.prover_names

    @property
    def stances_are_random(self) -> bool:
        """What the base says."""
        return self.base.stances_are_random

    @property
    def imitates(self) -> Mapping[str, str]:
        """The simulator imitates the adversarial verifier."""
        return {"simulator": "adversarial_verifier"}

    @property
    def force_guess(self) -> str | None:
        """What the base says; it goes for both verifiers."""
        return self.base.force_guess

    def stances(self, seed: np.ndarray) -> np.ndarray:
        """The verdict that pays each agent; none does for the two that are added."""
        own = self.base.stances(seed)
        added = np.full((*own.shape[:-1], 2), int(Verdict.UNDECIDED))
        return np.concatenate([own, added], -1)

    def channel_order(self, agent: str, seed: np.ndarray) -> np.ndarray:
        """As in the base: the order within a copy is one for all copies."""
        who = "verifier" if agent in COPIES.values() else agent
        order = self.base.channel_order(who, seed)
        copies = len(self.sees(agent)) // max(order.shape[-1], 1)
        return np.concatenate([order + k * order.shape[-1] for k in range(copies)], -1)

    def reward_mid_point_estimate(self, agent: str) -> float:
        """That of the base; 0 for the agents that are added."""
        known = agent in self.base.agent_names
        return self.base.reward_mid_point_estimate(agent) if known else 0.0

    def active(self, state: ProtocolState) -> np.ndarray:
        """The next turns; none in a conversation whose verifier has decided."""
        judges = ["verifier", "adversarial_verifier", "adversarial_verifier"]
        over = state.decided[:, [self.index(each) for each in judges]] != Verdict.UNDECIDED
        channels = np.repeat(over, len(self.base.channels), -1)
        active: np.ndarray = super().active(state) & ~channels[:, None, :]
        return active

    def rewards(
        self, before: ProtocolState, after: ProtocolState, signals: ProtocolSignals | None = None
    ) -> np.ndarray:
        """Those of the base, and what the likeness of simulator and adversary is worth.

        Raises:
            ContractError: there are no signals, or they have another shape.
        """
        messages, decisions = self._validate_signals(before, signals)
        number, channels = len(self.base.agent_names), len(self.base.channels)
        heard = ProtocolSignals(
            messages=messages[:, :number, :channels], decisions=decisions[:, :number]
        )
        own = self.base.rewards(self._of_base(before), self._of_base(after), heard)
        alike = self._likeness(before, messages, decisions)
        worth = self.config.simulator_reward_coefficient * alike
        provers = np.isin(self.base.agent_names, self.base.prover_names)
        shared = self.config.aux_prover_reward_coefficient * worth[:, None] * provers
        return np.concatenate([own + shared, -worth[:, None], worth[:, None]], -1)

    def _validate_signals(
        self, state: ProtocolState, signals: ProtocolSignals | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if signals is None:
            raise ContractError(
                "zero_knowledge rewards how alike agents act; give step the signals of all agents"
            )
        shape = (len(state), len(self.agent_names), len(self.channels))
        messages, decisions = np.asarray(signals.messages), np.asarray(signals.decisions)
        if messages.shape[:-1] != shape or decisions.shape[:-1] != shape[:2]:
            raise ContractError(
                f"signals must be [N, A, C, K] and [N, A, L] with N, A, C = {list(shape)}, not "
                f"{list(messages.shape)} and {list(decisions.shape)}"
            )
        return messages, decisions

    def _of_base(self, state: ProtocolState) -> ProtocolState:
        judged = state.decided[:, self.index("verifier")] != Verdict.UNDECIDED
        decided = state.decided[:, : len(self.base.agent_names)]
        return replace(state, decided=decided, ended=state.ended | judged)

    def _likeness(
        self, state: ProtocolState, messages: np.ndarray, decisions: np.ndarray
    ) -> np.ndarray:
        """``[N]``: of messages while the adversary speaks, and of decisions while it may decide."""
        adversary, simulator = self.index("adversarial_verifier"), self.index("simulator")
        channels = len(self.base.channels)
        theirs = slice(channels, 2 * channels)
        speaking = self.active(state)[:, adversary, theirs]
        heard = (messages[:, adversary, theirs], messages[:, simulator, 2 * channels :])
        flat = [np.where(speaking[..., None], each, 0).reshape(len(state), -1) for each in heard]
        said = np.where(speaking.any(-1), _cosine(flat[0], flat[1]), 0.0)
        done = _cosine(decisions[:, adversary], decisions[:, simulator])
        likeness: np.ndarray = said + np.where(self.deciding(state)[:, adversary], done, 0.0)
        return likeness


def _in_copy(agents: Sequence[str], copy: str) -> tuple[str, ...]:
    """Who is there in a copy of a channel, in place of the agents of the base."""
    there = [COPIES[copy] if agent == "verifier" else agent for agent in agents]
    return tuple(agent for agent in there if copy != "simulator" or agent == "simulator")


def _cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Cosine similarity of ``[N, K]``, 0 where one has no length; -inf in either is left out."""
    out = np.isneginf(one) | np.isneginf(other)
    a, b = (np.where(out, 0.0, each).astype(np.float64) for each in (one, other))
    lengths = np.sqrt((a * a).sum(-1)) * np.sqrt((b * b).sum(-1))
    cosine: np.ndarray = (a * b).sum(-1) / np.where(lengths == 0, 1.0, lengths)
    return cosine
