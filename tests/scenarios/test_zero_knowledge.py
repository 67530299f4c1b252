"""The wrapper ``zero_knowledge``: who is there, who hears what, and what likeness is worth."""

from dataclasses import replace

import numpy as np
import pytest

from plugrl import ConfigError, ContractError, ProtocolSignals, Verdict, make_protocol
from plugrl.core.protocol.protocol import Protocol

NO, YES, OPEN = Verdict.REJECT, Verdict.ACCEPT, Verdict.UNDECIDED
BASES = ["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel"]
NIP = {
    "type": "nip",
    "verifier_reward": 2.0,
    "verifier_incorrect_penalty": -4.0,
    "verifier_terminated_penalty": -8.0,
    "verifier_no_guess_reward": -16.0,
    "max_message_rounds": 4,
}
HALF = 2**-0.5


def wrap(base, **options):
    return make_protocol({"type": "zero_knowledge", "base": base, **options})


def nip(**options):
    return wrap({**NIP, **options.pop("base", {})}, **options)


def signals(
    protocol, adversary, simulator, adversary_decides=(1, 0, 0), simulator_decides=(0, 1, 0)
):
    """Vectors of ``nip``: in its channels main_standard, main_adversarial and main_simulator."""
    assert protocol.channels == ("main_standard", "main_adversarial", "main_simulator")
    messages = np.full((1, 4, 3, len(adversary)), 7.0)
    messages[0, 2, 1], messages[0, 3, 2] = adversary, simulator
    decisions = np.full((1, 4, 3), 7.0)
    decisions[0, 2], decisions[0, 3] = adversary_decides, simulator_decides
    for array in (messages, decisions):
        array.flags.writeable = False
    return ProtocolSignals(messages=messages, decisions=decisions)


def play(protocol, label, rounds, given=None):
    """The outcomes of rounds in which (verifier, adversary) say what ``rounds`` has."""
    state, outcomes = protocol.begin([0], [label]), []
    for verifier, adversary in rounds:
        shown = given or signals(protocol, (1, 0), (1, 1))
        outcomes.append(protocol.step(state, [[OPEN, verifier, adversary, OPEN]], shown))
        state = outcomes[-1].state
    return outcomes


def rewards_of(outcomes):
    return np.concatenate([outcome.rewards for outcome in outcomes])


def test_agents_channels_and_their_viewers():
    protocol = wrap("mnip")
    assert protocol.agent_names == (
        "prover0",
        "prover1",
        "verifier",
        "adversarial_verifier",
        "simulator",
    )
    assert protocol.channels == (
        "prover0_channel_standard",
        "prover1_channel_standard",
        "prover0_channel_adversarial",
        "prover1_channel_adversarial",
        "prover0_channel_simulator",
        "prover1_channel_simulator",
    )
    assert {agent: protocol.sees(agent) for agent in protocol.agent_names} == {
        "prover0": ("prover0_channel_standard", "prover0_channel_adversarial"),
        "prover1": ("prover1_channel_standard", "prover1_channel_adversarial"),
        "verifier": ("prover0_channel_standard", "prover1_channel_standard"),
        "adversarial_verifier": ("prover0_channel_adversarial", "prover1_channel_adversarial"),
        "simulator": ("prover0_channel_simulator", "prover1_channel_simulator"),
    }
    assert protocol.verifier_names == ("verifier", "adversarial_verifier")
    assert protocol.prover_names == ("prover0", "prover1")
    assert protocol.stackelberg_sequence == (
        ("verifier", "adversarial_verifier"),
        ("prover0", "prover1", "simulator"),
    )


@pytest.mark.parametrize("base", BASES)
def test_turns_are_those_of_the_base_in_each_copy(base):
    inner, outer = make_protocol(base), wrap(base)
    rounds, seeds = (part.ravel() for part in np.meshgrid(range(10), range(4)))
    own, mask = inner.speaks(rounds, seeds), outer.speaks(rounds, seeds)
    agents, channels = own.shape[1:]
    judge = inner.index("verifier")
    provers = np.delete(own, judge, 1)
    copies = mask.reshape(len(rounds), agents + 2, 3, channels)
    for copy, who in enumerate((judge, agents, agents + 1)):
        assert (copies[:, who, copy] == own[:, judge]).all()
        others = np.delete(copies[:, :, copy], who, 1)
        heard = np.zeros_like(provers) if copy == 2 else provers
        assert (others[:, : agents - 1] == heard).all()
        assert not others[:, agents - 1 :].any()
    decide = outer.may_decide(rounds, seeds)
    assert (decide[:, judge] == inner.may_decide(rounds, seeds)[:, judge]).all()
    assert (decide[:, agents] == decide[:, judge]).all()
    assert not np.delete(decide, [judge, agents], 1).any()


def test_likeness_is_paid_to_simulator_and_provers_and_taken_from_the_adversary():
    protocol = nip(simulator_reward_coefficient=2.0, aux_prover_reward_coefficient=0.5)
    # (1, 0) and (1, 1) have a cosine of 1 / sqrt(2); the decisions' is 0.
    first, second = play(protocol, 1, [(OPEN, OPEN), (YES, YES)])
    assert first.rewards == pytest.approx(np.array([[HALF, -16, -2 * HALF, 2 * HALF]]))
    # In the prover's turn neither the adversary nor the simulator does anything.
    assert second.rewards.tolist() == [[0, 0, 0, 0]]
    assert not second.registered.any()


def test_decisions_count_as_likeness_where_they_may_be_made():
    protocol = nip(base={"min_message_rounds": 2})
    same = signals(protocol, (1, 0), (0, 1), (3, 4, 0), (6, 8, 0))
    outcomes = play(protocol, 1, [(OPEN, OPEN)] * 3, same)
    assert rewards_of(outcomes)[:, 3] == pytest.approx([0, 0, 1])


def test_likeness_adds_up_over_messages_and_decisions():
    protocol = nip()
    given = signals(protocol, (1, 0), (-1, 0), (1, 0, 0), (1, 1, 0))
    (outcome,) = play(protocol, 0, [(OPEN, OPEN)], given)
    assert outcome.rewards[0] == pytest.approx([HALF - 1, -16, 1 - HALF, HALF - 1])


def test_masked_choices_and_vectors_without_length_do_not_count():
    protocol = nip()
    masked = signals(protocol, (3, -np.inf, 4), (6, 5, 8), (-np.inf, 1, 0), (1, 1, -np.inf))
    (outcome,) = play(protocol, 0, [(OPEN, OPEN)], masked)
    assert outcome.rewards[0, 3] == pytest.approx(2)
    nothing = signals(protocol, (0, 0), (1, 1), (-np.inf,) * 3)
    (outcome,) = play(protocol, 0, [(OPEN, OPEN)], nothing)
    assert outcome.rewards[0, 3] == 0


def test_the_episode_goes_on_until_both_verifiers_have_decided():
    protocol = nip()
    first, second, third = play(protocol, 1, [(YES, OPEN), (OPEN, OPEN), (NO, NO)])
    assert first.registered.tolist() == [[False, True, False, False]]
    assert first.rewards == pytest.approx(np.array([[1 + HALF, 2, -HALF, HALF]]))
    assert (first.verdict[0], first.terminated[0]) == (YES, False)
    assert second.rewards.tolist() == [[0, 0, 0, 0]]
    # The verifier's second guess is neither registered nor rewarded, nor its silence.
    assert third.registered.tolist() == [[False, False, True, False]]
    assert third.rewards == pytest.approx(np.array([[HALF, 0, -HALF, HALF]]))
    assert (third.verdict[0], third.terminated[0], third.ended_undecided[0]) == (YES, True, False)


def test_a_verifier_that_has_decided_is_not_punished_by_the_round_limit():
    outcomes = play(nip(), 0, [(NO, OPEN), *[(OPEN, OPEN)] * 3])
    assert rewards_of(outcomes)[:, 1].tolist() == [2, 0, 0, 0]
    assert outcomes[-1].terminated[0]
    assert not outcomes[-1].ended_undecided[0]


def test_the_adversary_may_decide_first_and_is_then_left_alone():
    protocol = nip()
    rounds = [(OPEN, YES), (OPEN, OPEN), (OPEN, NO), (OPEN, OPEN)]
    alike = signals(protocol, (1, 0), (1, 1), (1, 0, 0), (2, 0, 0))
    assert rewards_of(play(protocol, 0, rounds, alike))[:, 3] == pytest.approx([1 + HALF, 0, 0, 0])
    outcomes = play(protocol, 0, rounds)
    assert [o.registered[0, 2] for o in outcomes] == [True, False, False, False]
    assert rewards_of(outcomes)[:, 1].tolist() == [-16, 0, -16, -8]
    assert rewards_of(outcomes)[:, 2] == pytest.approx([-HALF, 0, 0, 0])
    assert [bool(o.ended_undecided[0]) for o in outcomes] == [False, False, False, True]
    assert outcomes[-1].verdict.tolist() == [OPEN]


def test_a_conversation_falls_silent_when_its_verifier_has_decided():
    protocol = nip()
    for decided, silent in ((1, [0]), (2, [1, 2])):
        begun = protocol.begin([0], [0])
        given = begun.decided.copy()
        given[0, decided] = NO
        for round in range(4):
            state = replace(begun, decided=given, round=np.array([round]))
            expected = protocol.speaks(state.round, state.seed)
            expected[..., silent] = False
            assert (protocol.active(state) == expected).all()


def test_shared_rewards_and_forced_guesses_of_the_base():
    protocol = nip(base={"shared_reward": True, "force_guess": "y"})
    (outcome,) = play(protocol, 1, [(OPEN, NO)])
    assert outcome.registered.tolist() == [[False, True, True, False]]
    assert outcome.rewards == pytest.approx(np.array([[2 + HALF, 2, -HALF, HALF]]))
    assert (outcome.verdict[0], outcome.terminated[0]) == (YES, True)


def test_stances_orders_and_expectations_are_those_of_the_base():
    seeds = np.arange(50)
    outer = wrap({"type": "nip", "randomize_prover_stance": True})
    stances = outer.stances(seeds)
    assert (stances[:, :2] == outer.base.stances(seeds)).all()
    assert (stances[:, 2:] == OPEN).all()
    assert [outer.reward_mid_point_estimate(agent) for agent in outer.agent_names] == [0.5, 0, 0, 0]
    debate = wrap("debate")
    own = debate.base.channel_order("verifier", seeds)
    for agent in ("verifier", "adversarial_verifier", "simulator"):
        assert (debate.channel_order(agent, seeds) == own).all()
    assert (debate.channel_order("prover0", seeds) == [0, 1, 2, 3]).all()


@pytest.mark.parametrize("base", BASES)
def test_many_episodes_end_at_different_times(base):
    protocol = wrap(base)
    random = np.random.default_rng(0)
    shape = (48, len(protocol.agent_names), len(protocol.channels), 5)
    state = protocol.begin(np.arange(48), random.integers(0, 2, 48))
    for _ in range(protocol.max_message_rounds):
        given = ProtocolSignals(
            messages=random.normal(size=shape), decisions=random.normal(size=(*shape[:2], 3))
        )
        outcome = protocol.step(state, random.integers(0, 3, shape[:2]), given)
        likeness = outcome.rewards[:, -1]
        assert (outcome.rewards[:, -2] == -likeness).all()
        assert (np.abs(likeness) <= 2).all()
        state = outcome.state
    assert state.ended.all()


def test_what_cannot_be_wrapped_and_missing_signals():
    with pytest.raises(
        ConfigError, match=r"one verifier called 'verifier', not with verifier, adv"
    ):
        wrap({"type": "zero_knowledge", "base": "nip"})
    with pytest.raises(ConfigError, match="must be a number, not nan"):
        nip(simulator_reward_coefficient=float("nan"))
    protocol = nip()
    state = protocol.begin([0], [0])
    with pytest.raises(ContractError, match="give step the signals of all agents"):
        protocol.step(state, [[OPEN] * 4])
    wrong = signals(protocol, (1, 0), (1, 1))
    wrong = replace(wrong, messages=wrong.messages[:, :2])
    with pytest.raises(ContractError, match=r"N, A, C = \[1, 4, 3\], not \[1, 2, 3, 2\]"):
        protocol.step(state, [[OPEN] * 4], wrong)


class PaysWhileOpen(Protocol):
    """Pays the prover for each step before the end, which the base protocols do not look at."""

    agent_names = ("prover", "verifier")
    viewers = {"main": ("prover", "verifier")}
    max_message_rounds = 3

    def turns(self):
        return [{"verifier": ("main",)}]

    def rewards(self, before, after, signals=None):
        return np.stack([~before.ended, 10 * after.ended], 1).astype(float)


def test_the_base_is_over_when_its_verifier_has_decided(registry):
    """Though the adversarial one has not, so that the episode goes on."""
    registry.register("protocol", "pays_while_open", PaysWhileOpen)
    protocol = wrap("pays_while_open", aux_prover_reward_coefficient=0.0)
    outcomes = play(protocol, 1, [(OPEN, OPEN), (YES, OPEN), (OPEN, NO)])
    of_base = rewards_of(outcomes)[:, :2]
    assert of_base.tolist() == [[1.0, 0.0], [1.0, 10.0], [0.0, 10.0]]
