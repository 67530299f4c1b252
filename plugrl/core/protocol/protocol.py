"""``Protocol``: who speaks when and where, who decides, and what it is worth.

A protocol knows neither networks nor text, so that scenarios of both sorts share it, and with it
the rewards. It is a table of turns: which agent speaks in which channels in which round. The rest
follows from the table. N counts episodes, A agents, C channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.factory import make_component
from plugrl.core.protocol.config import ProtocolConfig, ProtocolRoundsConfig, VerifierConfig
from plugrl.core.protocol.state import (
    ProtocolOutcome,
    ProtocolSignals,
    ProtocolState,
    Tally,
    Verdict,
    initial_state,
    scatter,
)
from plugrl.core.protocol.turns import (
    Turn,
    at_round,
    check_names,
    check_rewards,
    turn_table,
)

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight

__all__ = [
    "Protocol",
    "ProtocolConfig",
    "ProtocolOutcome",
    "ProtocolRoundsConfig",
    "ProtocolSignals",
    "ProtocolState",
    "Tally",
    "Turn",
    "Verdict",
    "VerifierConfig",
    "make_protocol",
]


_VERDICTS = np.array(list(Verdict))


class Protocol(Component, ABC):
    """An interaction between agents at whose end a verifier has judged a label of 0 or 1.

    A subclass names its agents, says who sees which channel and which verdict pays each prover,
    and writes :meth:`turns`. An option ``max_message_rounds`` or ``min_message_rounds`` takes the
    place of the attribute.

    Attributes:
        agent_names: the agents in order; arrays with an axis of agents follow it.
        verifier_names: those of them that decide. The first one's decision is the verdict.
        viewers: the agents that see each channel; the order of channels is that of its keys.
        wins: the verdict that pays each prover; a prover that it lacks earns nothing.
        max_message_rounds: an episode ends after so many rounds.
        min_message_rounds: a decision counts from the last of so many rounds on.
        needs_signals: whether :meth:`step` has to be given signals.

    Raises:
        ConfigError: an option is wrong, or the verifier could never decide.
        PluginError: the turns name an agent or channel that is not there, let an agent speak
            where it does not see, or two agents speak in one channel in one round.
    """

    Config: ClassVar[type] = ProtocolConfig
    agent_names: tuple[str, ...]
    verifier_names: tuple[str, ...] = ("verifier",)
    viewers: Mapping[str, Sequence[str]]
    wins: Mapping[str, Verdict] = {}
    max_message_rounds: int = 2
    min_message_rounds: int = 1
    needs_signals: bool = False

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        for name in ("max_message_rounds", "min_message_rounds"):
            if name in self.config:
                setattr(self, name, int(self.config[name]))
        own = type(self).__name__
        check_names(own, self.agent_names, self.verifier_names, self.viewers, self.wins)
        if not self._may_decide.any():
            raise ConfigError(
                f"no decision of the verifier could count: it speaks in none of the rounds "
                f"{self.min_message_rounds - 1} to {self.max_message_rounds - 1}, the first being "
                f"0; change {self._remedy}"
            )

    @property
    def _remedy(self) -> str:
        """What decides the rounds in which a decision counts: options, or attributes."""
        names = ("max_message_rounds", "min_message_rounds", "verifier_first")
        options = [name for name in names if name in self.config]
        attributes = [f"{type(self).__name__}.{name}" for name in names[:2] if name not in options]
        return " or ".join([*options, *attributes])

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Check that the options are consistent."""
        try:
            cls(check.section)
        except ConfigError as error:
            yield check.path, str(error)

    @abstractmethod
    def turns(self) -> Sequence[Turn | Sequence[Turn]]:
        """What happens in rounds 0, 1, 2 and so on; the last is followed by the first.

        In place of one turn there may be a list of them, of which ``seed`` modulo their number
        picks one.
        """

    # Who is there

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels."""
        return tuple(self.viewers)

    @property
    def prover_names(self) -> tuple[str, ...]:
        """The agents that argue for a verdict or help to find it."""
        return tuple(agent for agent in self.agent_names if agent not in self.verifier_names)

    @property
    def stances_are_random(self) -> bool:
        """Whether a prover has to be told which verdict pays it: the seed decides."""
        return bool(self.config.get("randomize_prover_stance"))

    @property
    def imitates(self) -> Mapping[str, str]:
        """Agents whose decisions count for nothing but are compared with those of another."""
        return {}

    @property
    def stackelberg_sequence(self) -> tuple[tuple[str, ...], ...]:
        """Groups of agents in the order in which they commit to a policy."""
        others = tuple(agent for agent in self.agent_names if agent not in self.verifier_names)
        return (self.verifier_names, others) if others else (self.verifier_names,)

    def index(self, agent: str) -> int:
        """The index of ``agent`` among the agents."""
        return self.agent_names.index(agent)

    def sees(self, agent: str) -> tuple[str, ...]:
        """The channels that ``agent`` sees, in order."""
        return tuple(channel for channel in self.channels if agent in self.viewers[channel])

    def channel_order(self, agent: str, seed: np.ndarray) -> np.ndarray:
        """The order ``[N, seen]`` in which ``agent`` is shown what it sees, as places in `sees`.

        It is random for verifiers where the option ``randomize_channel_order`` says so, and
        depends on the seed alone.
        """
        places = np.arange(len(self.sees(agent)))
        seeds = np.asarray(seed)[..., None]
        if agent in self.verifier_names and self.config.get("randomize_channel_order"):
            return np.argsort(scatter(seeds, places + 1), axis=-1)
        return np.broadcast_to(places, (*seeds.shape[:-1], len(places)))

    def stances(self, seed: np.ndarray) -> np.ndarray:
        """The verdict ``[N, A]`` that pays each agent; UNDECIDED: none does.

        With the option ``randomize_prover_stance`` it is one or the other, by the seed; whoever
        speaks for a prover has to be told.
        """
        paid = [self.wins.get(agent, Verdict.UNDECIDED) for agent in self.agent_names]
        seeds = np.asarray(seed)[..., None]
        stances = np.broadcast_to(np.array(paid, np.int64), (*seeds.shape[:-1], len(paid)))
        if self.stances_are_random:
            flip = (scatter(seeds, 0) & np.uint64(1)).astype(bool)
            stances = np.where((stances != Verdict.UNDECIDED) & flip, 1 - stances, stances)
        return stances

    def reward_mid_point_estimate(self, agent: str) -> float:
        """What ``agent`` may expect in an episode in which all act at random, roughly."""
        if agent not in self.verifier_names and not self.config.get("shared_reward"):
            return float(self.config.get("prover_reward", 0.0)) / 2 if agent in self.wins else 0.0
        options = self.config
        turns = self._speaks[..., self.index(self.verifier_names[0]), :].any(-1).any(-1).sum()
        middle = (options.verifier_reward + options.verifier_incorrect_penalty) / 2
        return float(middle + options.verifier_no_guess_reward * (int(turns) - 1) / 2)

    # Who speaks and decides

    @cached_property
    def _speaks(self) -> np.ndarray:
        """``[rounds, alternatives, A, C]``."""
        name, rounds = type(self).__name__, self.max_message_rounds
        return turn_table(name, self.turns(), self.agent_names, self.viewers, rounds)

    @cached_property
    def _may_decide(self) -> np.ndarray:
        """``[rounds, alternatives, A]``."""
        late = np.arange(self.max_message_rounds) >= self.min_message_rounds - 1
        verifiers = np.isin(self.agent_names, self.verifier_names)
        mask: np.ndarray = self._speaks.any(-1) & late[:, None, None] & verifiers
        return mask

    def speaks(self, round: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """Who speaks where in a round: a mask ``[N, A, C]``, all false beyond the last round."""
        return at_round(self._speaks, round, seed)

    def may_decide(self, round: np.ndarray, seed: np.ndarray) -> np.ndarray:
        """Whose decisions count in a round: a mask ``[N, A]``."""
        return at_round(self._may_decide, round, seed)

    def active(self, state: ProtocolState) -> np.ndarray:
        """Who speaks where next: a mask ``[N, A, C]``, false for those who have done their part.

        An agent without a channel in it is inactive: what it puts out has no effect.
        """
        silent = (state.decided != Verdict.UNDECIDED) | state.ended[:, None]
        active: np.ndarray = self.speaks(state.round, state.seed) & ~silent[..., None]
        return active

    def deciding(self, state: ProtocolState) -> np.ndarray:
        """Whose decisions would count next: a mask ``[N, A]``."""
        silent = (state.decided != Verdict.UNDECIDED) | state.ended[:, None]
        deciding: np.ndarray = self.may_decide(state.round, state.seed) & ~silent
        return deciding

    # What happens

    @property
    def force_guess(self) -> str | None:
        """What verifiers decide whatever they say: zero, one, y or nothing."""
        forced: str | None = self.config.get("force_guess")
        return forced

    def begin(self, seed: Any, label: Any) -> ProtocolState:
        """The state in which episodes with these seeds ``[N]`` and labels ``[N]`` begin.

        Raises:
            ContractError: seeds and labels differ in number, or a label is neither 0 nor 1.
        """
        return initial_state(len(self.agent_names), seed, label)

    def step(
        self, state: ProtocolState, decisions: Any, signals: ProtocolSignals | None = None
    ) -> ProtocolOutcome:
        """Take the decisions ``[N, A]`` of a round; those that do not count are passed over.

        Episodes that have ended stay as they are and give no more rewards.

        Raises:
            ContractError: decisions are no :class:`Verdict`, or an array has another shape.
            NonFiniteError: a reward is NaN or infinite.
        """
        said = np.asarray(decisions)
        if said.shape != state.decided.shape or not np.isin(said, _VERDICTS).all():
            raise ContractError(
                f"decisions must be 0, 1 or 2 in an array of shape {list(state.decided.shape)}, "
                f"not {said.dtype} of shape {list(said.shape)} up to {said.max(initial=0)}"
            )
        if self.force_guess is not None:
            guesses = {"zero": np.zeros_like(state.label), "one": np.ones_like(state.label)}
            said = np.broadcast_to(guesses.get(self.force_guess, state.label)[:, None], said.shape)
        registered = self.deciding(state) & (said != Verdict.UNDECIDED)
        decided = np.where(registered, said, state.decided)
        verdict = decided[:, self.index(self.verifier_names[0])]
        verifiers = [self.index(agent) for agent in self.verifier_names]
        last = state.round >= self.max_message_rounds - 1
        ended = state.ended | last | (decided[:, verifiers] != Verdict.UNDECIDED).all(-1)
        after = ProtocolState(
            round=np.where(state.ended, state.round, state.round + 1),
            seed=state.seed,
            label=state.label,
            decided=decided,
            ended=ended,
        )
        return ProtocolOutcome(
            rewards=check_rewards(
                type(self).__name__, self.rewards(state, after, signals), said.shape
            ),
            registered=registered,
            verdict=verdict,
            terminated=ended,
            ended_undecided=ended & ~state.ended & (verdict == Verdict.UNDECIDED),
            state=after,
        )

    def rewards(
        self, before: ProtocolState, after: ProtocolState, signals: ProtocolSignals | None = None
    ) -> np.ndarray:
        """What the step between two states is worth ``[N, A]``; override it for another scheme."""
        options, judge = self.config, self.index(self.verifier_names[0])
        verdict = after.decided[:, judge]
        open_before = ~before.ended & (before.decided[:, judge] == Verdict.UNDECIDED)
        judged = open_before & (verdict != Verdict.UNDECIDED)
        late = before.round >= self.max_message_rounds - 1
        turn = self.speaks(before.round, before.seed)[:, judge].any(-1)
        cases = {
            "right": (judged & (verdict == before.label), options.verifier_reward),
            "wrong": (judged, options.verifier_incorrect_penalty),
            "too late": (open_before & late, options.verifier_terminated_penalty),
            "waited": (open_before & turn, options.verifier_no_guess_reward),
        }
        when, worth = zip(*cases.values(), strict=True)
        of_judge = np.select(when, worth, 0.0)
        if options.get("shared_reward"):
            return np.repeat(of_judge[:, None], len(self.agent_names), 1)
        won = judged[:, None] & (self.stances(before.seed) == verdict[:, None])
        rewards = np.where(won, float(options.get("prover_reward", 0.0)), 0.0)
        rewards[:, judge] = of_judge
        return rewards


def make_protocol(section: Any) -> Protocol:
    """Build the protocol that a section, or a name alone, means in this process.

    Raises:
        PlugrlError: there is no such protocol, it cannot be loaded, or an option is wrong.
    """
    protocol: Protocol = make_component("protocol", section)
    return protocol
