"""The contract of protocols.

Run it with ``--plugrl-protocol NAME``, or subclass :class:`ProtocolContract` with an attribute
``plugrl_protocol``. A protocol gives its section as ``conformance["config"]``. The tests play
episodes in which all agents decide at random.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plugrl.core.errors import ContractError
from plugrl.core.protocol.protocol import Protocol
from plugrl.core.protocol.state import ProtocolOutcome, ProtocolSignals, ProtocolState, Verdict
from plugrl.testing.contract import ComponentContract

EPISODES = 24


class ProtocolContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_protocol``."""

    kind = "protocol"

    def begin(self, protocol: Protocol) -> ProtocolState:
        numbers = np.arange(EPISODES)
        return protocol.begin(numbers, numbers % 2)

    def play(
        self, protocol: Protocol, state: ProtocolState, draws: Any = None
    ) -> list[tuple[ProtocolState, ProtocolOutcome]]:
        """Whole episodes: the state before each step, and what the step gave."""
        drawn = self.draws(protocol) if draws is None else draws
        steps = []
        for decisions, signals in drawn:
            steps.append((state, protocol.step(state, decisions[: len(state)], signals)))
            state = steps[-1][1].state
        return steps

    def draws(self, protocol: Protocol) -> list[tuple[np.ndarray, ProtocolSignals | None]]:
        """What is decided and put out in each round, at random; late rounds always decide."""
        random = np.random.default_rng(0)
        agents, channels = len(protocol.agent_names), len(protocol.channels)
        found = []
        for _ in range(protocol.max_message_rounds + 1):
            decisions = random.choice(3, (EPISODES, agents), p=(0.15, 0.15, 0.7))
            signals = None
            if protocol.needs_signals:
                messages = random.normal(size=(EPISODES, agents, channels, 3))
                signals = ProtocolSignals(
                    messages=messages, decisions=random.normal(size=(EPISODES, agents, 3))
                )
            found.append((decisions, signals))
        return found

    def test_masks_have_their_shapes(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        state = self.begin(protocol)
        agents, channels = len(protocol.agent_names), len(protocol.channels)
        assert protocol.active(state).shape == (EPISODES, agents, channels)
        assert protocol.deciding(state).shape == (EPISODES, agents)
        assert protocol.stances(state.seed).shape == (EPISODES, agents)
        assert set(protocol.verifier_names) <= set(protocol.agent_names)

    def test_every_round_has_a_speaker_who_sees(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        seeds = np.arange(EPISODES)
        for number in range(protocol.max_message_rounds):
            speaks = protocol.speaks(np.full(EPISODES, number), seeds)
            assert speaks.any((-1, -2)).all(), f"nobody speaks in round {number}"
            for agent in protocol.agent_names:
                spoken = np.asarray(speaks[:, protocol.index(agent)].any(0))
                heard = {
                    c for c, said in zip(protocol.channels, spoken.tolist(), strict=True) if said
                }
                assert heard <= set(protocol.sees(agent))

    def test_episodes_end_with_rewards_that_are_finite(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        steps = self.play(protocol, self.begin(protocol))
        assert steps[-1][1].terminated.all()
        total = np.sum([outcome.rewards for _, outcome in steps], axis=0)
        assert np.isfinite(total).all()
        assert total.shape == (EPISODES, len(protocol.agent_names))
        assert np.abs(total).sum() > 0, "no episode is worth anything to anybody"

    def test_an_episode_that_has_ended_is_worth_no_more(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        for before, outcome in self.play(protocol, self.begin(protocol)):
            assert (outcome.rewards[before.ended] == 0).all()
            assert (outcome.state.decided[before.ended] == before.decided[before.ended]).all()
            assert (outcome.state.round[before.ended] == before.round[before.ended]).all()

    def test_a_right_verdict_is_worth_more_to_the_verifier(
        self, make: Callable[[], Protocol]
    ) -> None:
        protocol = make()
        judge = protocol.index(protocol.verifier_names[0])
        worth: dict[bool, list[float]] = {True: [], False: []}
        for before, outcome in self.play(protocol, self.begin(protocol)):
            fresh = (outcome.verdict != Verdict.UNDECIDED) & outcome.registered[:, judge]
            for row in np.flatnonzero(fresh & ~before.ended):
                right = bool(outcome.verdict[row] == before.label[row])
                worth[right].append(float(outcome.rewards[row, judge]))
        if all(worth.values()):
            assert min(worth[True]) > max(worth[False])

    def test_episodes_do_not_mix(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        state, drawn = self.begin(protocol), self.draws(protocol)
        together = self.play(protocol, state, drawn)
        for row in range(0, EPISODES, 5):
            pick = slice(row, row + 1)
            alone = [
                (
                    decisions[pick],
                    signals
                    and ProtocolSignals(
                        messages=signals.messages[pick], decisions=signals.decisions[pick]
                    ),
                )
                for decisions, signals in drawn
            ]
            for (_, one), (_, all_) in zip(
                self.play(protocol, state.rows(pick), alone), together, strict=True
            ):
                np.testing.assert_allclose(one.rewards, all_.rewards[pick], atol=1e-9)
                assert (one.verdict == all_.verdict[pick]).all()

    def test_equal_seeds_give_equal_episodes(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        first, second = (self.play(p, self.begin(p)) for p in (protocol, protocol))
        for (_, one), (_, other) in zip(first, second, strict=True):
            assert (one.rewards == other.rewards).all()
            assert (one.state.decided == other.state.decided).all()
        third = make()
        for number in range(protocol.max_message_rounds):
            rounds, seeds = np.full(EPISODES, number), np.arange(EPISODES)
            assert (third.speaks(rounds, seeds) == protocol.speaks(rounds, seeds)).all()

    def test_states_are_never_changed(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        state = self.begin(protocol)
        for decisions, signals in self.draws(protocol):
            kept = {name: value.copy() for name, value in vars(state).items()}
            given = decisions.copy()
            outcome = protocol.step(state, decisions, signals)
            for name, value in kept.items():
                assert (getattr(state, name) == value).all(), f"step changed state.{name}"
            assert (decisions == given).all(), "step changed the decisions"
            state = outcome.state

    def test_decisions_that_are_none_are_refused(self, make: Callable[[], Protocol]) -> None:
        protocol = make()
        state = self.begin(protocol)
        wrong = np.full((EPISODES, len(protocol.agent_names)), 7)
        with pytest.raises(ContractError):
            protocol.step(state, wrong)


class TestProtocol(ProtocolContract):
    """The contract for every ``--plugrl-protocol``."""

    __test__ = True
