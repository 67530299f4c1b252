"""Turns, channels and rewards of the built-in protocols, written out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from plugrl import ConfigError, Verdict, make_protocol, register_protocol
from plugrl.core.plugins.registry import default_registry
from plugrl.core.protocol.protocol import Protocol

# Powers of two, so that no sum of some is another one.
WORTH = {
    "verifier_reward": 2.0,
    "verifier_incorrect_penalty": -4.0,
    "verifier_terminated_penalty": -8.0,
    "verifier_no_guess_reward": -16.0,
}
FOUR = {**WORTH, "max_message_rounds": 4, "min_message_rounds": 2}
NO, YES, OPEN = Verdict.REJECT, Verdict.ACCEPT, Verdict.UNDECIDED
MAIN, BOTH = ("main",), ("prover0_channel", "prover1_channel")
ZERO, ONE = ({f"prover{i}": (f"prover{i}_channel",)} for i in (0, 1))
ASKS = {"verifier": BOTH}


def make(name, **options):
    return make_protocol({"type": name, **options})


def state_at(protocol, round, seed=0, label=0):
    state = protocol.begin([seed], [label])
    return replace(state, round=np.array([round]))


def speaking(protocol, round, seed=0):
    """Who speaks where, read from the mask."""
    mask = protocol.speaks(np.array([round]), np.array([seed]))[0]
    spoken = {
        agent: tuple(c for c, on in zip(protocol.channels, row, strict=True) if on)
        for agent, row in zip(protocol.agent_names, mask, strict=True)
    }
    return {agent: channels for agent, channels in spoken.items() if channels}


TURNS = [
    ("nip", {}, [{"verifier": MAIN}, {"prover": MAIN}]),
    ("nip", {"verifier_first": False}, [{"prover": MAIN}, {"verifier": MAIN}]),
    ("debate", {}, [ASKS, {**ZERO, **ONE}]),
    ("debate", {"verifier_first": False}, [{**ZERO, **ONE}, ASKS]),
    ("debate", {"sequential": True}, [ASKS, ZERO, ONE]),
    ("debate", {"sequential": True, "prover0_first": False}, [ASKS, ONE, ZERO]),
    ("debate", {"sequential": True, "verifier_first": False}, [ZERO, ONE, ASKS]),
    (
        "debate",
        {"sequential": True, "verifier_first": False, "prover0_first": False},
        [ONE, ZERO, ASKS],
    ),
    ("mnip", {}, [ASKS, {**ZERO, **ONE}]),
    ("mnip", {"sequential": True, "verifier_first": False}, [ZERO, ONE, ASKS]),
    (
        "multi_channel",
        {},
        [
            {"prover0": ("prover_chat",), "prover1": MAIN},
            {"prover0": ("prover0_verifier",), "prover1": ("prover_chat",), "prover2": MAIN},
            {"prover2": ("prover_chat",), "verifier": ("main", "prover0_verifier")},
        ],
    ),
]


@pytest.mark.parametrize(("name", "options", "cycle"), TURNS)
def test_turns_of_protocols_with_many_rounds(name, options, cycle):
    protocol = make(name, **options)
    assert protocol.max_message_rounds == 8
    for round in range(8):
        assert speaking(protocol, round) == cycle[round % len(cycle)]
    for round in (-1, 8, 9):
        assert speaking(protocol, round) == {}


@pytest.mark.parametrize(
    ("name", "seed", "rounds"),
    [
        ("adp", 0, [{"prover": MAIN}, {"verifier": MAIN}, {}]),
        ("merlin_arthur", 0, [{"prover0": MAIN}, {"verifier": MAIN}, {}]),
        ("merlin_arthur", 1, [{"prover1": MAIN}, {"verifier": MAIN}, {}]),
        ("merlin_arthur", 6, [{"prover0": MAIN}, {"verifier": MAIN}, {}]),
        ("solo_verifier", 3, [{"verifier": MAIN}, {}]),
    ],
)
def test_turns_of_protocols_with_few_rounds(name, seed, rounds):
    protocol = make(name)
    assert protocol.max_message_rounds == len(rounds) - 1
    assert [speaking(protocol, round, seed) for round in range(len(rounds))] == rounds


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("nip", {"prover": MAIN, "verifier": MAIN}),
        ("adp", {"prover": MAIN, "verifier": MAIN}),
        ("debate", {"prover0": BOTH, "prover1": BOTH, "verifier": BOTH}),
        ("mnip", {"prover0": BOTH[:1], "prover1": BOTH[1:], "verifier": BOTH}),
        ("merlin_arthur", {"prover0": MAIN, "prover1": MAIN, "verifier": MAIN}),
        ("solo_verifier", {"verifier": MAIN}),
        (
            "multi_channel",
            {
                "prover0": ("main", "prover0_verifier", "prover_chat"),
                "prover1": ("main", "prover_chat"),
                "prover2": ("main", "prover_chat"),
                "verifier": ("main", "prover0_verifier"),
            },
        ),
    ],
)
def test_who_sees_which_channels(name, seen):
    protocol = make(name)
    assert {agent: protocol.sees(agent) for agent in protocol.agent_names} == seen
    assert protocol.verifier_names == ("verifier",)
    assert protocol.prover_names == tuple(seen)[:-1]
    provers = (protocol.prover_names,) if protocol.prover_names else ()
    assert protocol.stackelberg_sequence == (("verifier",), *provers)


# protocol, options, round, seed, label, the verifier's decision -> rewards in the order of the
# agents, verdict, and whether the episode is over. Only NO and YES verdicts are registered.
NIP, LAST = ("nip", FOUR), ("nip", {**FOUR, "verifier_first": False})
SHARED = ("nip", {**FOUR, "shared_reward": True})
ADP, MERLIN, SOLO = ("adp", WORTH), ("merlin_arthur", WORTH), ("solo_verifier", WORTH)
DEBATE, MNIP = ("debate", FOUR), ("mnip", FOUR)
DEBATE_LAST = ("debate", {**FOUR, "verifier_first": False, "prover_reward": 32.0})
MNIP_LAST = ("mnip", {**FOUR, "verifier_first": False})
TURNWISE = ("debate", {**FOUR, "sequential": True, "verifier_first": False})
CHANNELS = ("multi_channel", WORTH)
REWARDS = [
    # The verifier speaks in rounds 0 and 2; a decision counts from round 1 on.
    (*NIP, 0, 0, 1, YES, [0, -16], OPEN, False),
    (*NIP, 1, 0, 1, YES, [0, 0], OPEN, False),
    (*NIP, 2, 0, 1, YES, [1, 2], YES, True),
    (*NIP, 2, 0, 0, YES, [1, -4], YES, True),
    (*NIP, 2, 0, 0, NO, [0, 2], NO, True),
    (*NIP, 2, 0, 1, NO, [0, -4], NO, True),
    (*NIP, 2, 0, 1, OPEN, [0, -16], OPEN, False),
    (*NIP, 3, 0, 1, YES, [0, -8], OPEN, True),
    # The prover opens: the verifier speaks in rounds 1 and 3.
    (*LAST, 0, 0, 1, YES, [0, 0], OPEN, False),
    (*LAST, 1, 0, 1, YES, [1, 2], YES, True),
    (*LAST, 1, 0, 0, OPEN, [0, -16], OPEN, False),
    (*LAST, 3, 0, 0, NO, [0, 2], NO, True),
    (*LAST, 3, 0, 0, YES, [1, -4], YES, True),
    (*LAST, 3, 0, 0, OPEN, [0, -8], OPEN, True),
    (*SHARED, 0, 0, 1, YES, [-16, -16], OPEN, False),
    (*SHARED, 2, 0, 1, YES, [2, 2], YES, True),
    (*SHARED, 2, 0, 0, YES, [-4, -4], YES, True),
    (*SHARED, 3, 0, 0, OPEN, [-8, -8], OPEN, True),
    (*ADP, 0, 0, 1, YES, [0, 0], OPEN, False),
    (*ADP, 1, 0, 1, YES, [1, 2], YES, True),
    (*ADP, 1, 0, 0, YES, [1, -4], YES, True),
    (*ADP, 1, 0, 0, NO, [0, 2], NO, True),
    (*ADP, 1, 0, 1, NO, [0, -4], NO, True),
    (*ADP, 1, 0, 1, OPEN, [0, -8], OPEN, True),
    (*DEBATE, 0, 0, 1, YES, [0, 0, -16], OPEN, False),
    (*DEBATE, 1, 0, 1, YES, [0, 0, 0], OPEN, False),
    (*DEBATE, 2, 0, 1, YES, [0, 1, 2], YES, True),
    (*DEBATE, 2, 0, 0, YES, [0, 1, -4], YES, True),
    (*DEBATE, 2, 0, 0, NO, [1, 0, 2], NO, True),
    (*DEBATE, 2, 0, 1, NO, [1, 0, -4], NO, True),
    (*DEBATE, 3, 0, 1, NO, [0, 0, -8], OPEN, True),
    (*DEBATE_LAST, 1, 0, 1, NO, [32, 0, -4], NO, True),
    (*DEBATE_LAST, 2, 0, 1, NO, [0, 0, 0], OPEN, False),
    (*DEBATE_LAST, 3, 0, 1, YES, [0, 32, 2], YES, True),
    (*TURNWISE, 1, 0, 1, YES, [0, 0, 0], OPEN, False),
    (*TURNWISE, 2, 0, 1, YES, [0, 1, 2], YES, True),
    (*TURNWISE, 2, 0, 1, OPEN, [0, 0, -16], OPEN, False),
    (*TURNWISE, 3, 0, 1, YES, [0, 0, -8], OPEN, True),
    (*MNIP, 2, 0, 1, YES, [1, 1, 2], YES, True),
    (*MNIP, 2, 0, 0, YES, [1, 1, -4], YES, True),
    (*MNIP, 2, 0, 0, NO, [0, 0, 2], NO, True),
    (*MNIP, 2, 0, 1, NO, [0, 0, -4], NO, True),
    (*MNIP, 3, 0, 1, OPEN, [0, 0, -8], OPEN, True),
    (*MNIP_LAST, 1, 0, 1, YES, [1, 1, 2], YES, True),
    (*MNIP_LAST, 3, 0, 1, OPEN, [0, 0, -8], OPEN, True),
    *((*MERLIN, 0, seed, 1, YES, [0, 0, 0], OPEN, False) for seed in (0, 1)),
    *((*MERLIN, 1, seed, 1, YES, [0, 1, 2], YES, True) for seed in (0, 1)),
    (*MERLIN, 1, 0, 0, NO, [1, 0, 2], NO, True),
    (*MERLIN, 1, 1, 1, NO, [1, 0, -4], NO, True),
    (*MERLIN, 1, 0, 0, OPEN, [0, 0, -8], OPEN, True),
    (*SOLO, 0, 0, 1, YES, [2], YES, True),
    (*SOLO, 0, 0, 1, NO, [-4], NO, True),
    (*SOLO, 0, 0, 0, OPEN, [-8], OPEN, True),
    (*CHANNELS, 0, 0, 1, YES, [0, 0, 0, 0], OPEN, False),
    (*CHANNELS, 2, 0, 1, YES, [0, 0, 0, 2], YES, True),
    (*CHANNELS, 5, 0, 1, NO, [0, 0, 0, -4], NO, True),
    (*CHANNELS, 5, 0, 1, OPEN, [0, 0, 0, -16], OPEN, False),
    (*CHANNELS, 7, 0, 1, YES, [0, 0, 0, -8], OPEN, True),
]


@pytest.mark.parametrize("row", REWARDS, ids=lambda row: f"{row[0]}-{row[2:6]}")
def test_rewards(row):
    name, options, round, seed, label, says, rewards, verdict, over = row
    protocol = make(name, **options)
    # What provers decide has no effect.
    decisions = [[NO] * len(protocol.prover_names) + [says]]
    outcome = protocol.step(state_at(protocol, round, seed, label), decisions)
    counted = verdict != OPEN
    assert outcome.rewards.tolist() == [rewards]
    assert outcome.verdict.tolist() == [verdict]
    assert outcome.registered.tolist() == [[False] * len(protocol.prover_names) + [counted]]
    assert outcome.terminated.tolist() == outcome.state.ended.tolist() == [over]
    assert outcome.ended_undecided.tolist() == [over and not counted]
    assert outcome.state.round.tolist() == [round + 1]


def test_every_protocol_has_a_table_but_the_wrapper():
    names = {record.name for record in default_registry().records("protocol")}
    assert names == {row[0] for row in REWARDS} | {"zero_knowledge"}


@pytest.mark.parametrize(
    ("force", "label", "rewards", "verdict"),
    [
        ("zero", 0, [0, 2], NO),
        ("zero", 1, [0, -4], NO),
        ("one", 0, [1, -4], YES),
        ("one", 1, [1, 2], YES),
        ("y", 0, [0, 2], NO),
        ("y", 1, [1, 2], YES),
    ],
)
@pytest.mark.parametrize("says", [NO, YES, OPEN])
def test_the_forced_guess_is_rewarded_whatever_is_said(force, label, rewards, verdict, says):
    protocol = make("nip", **FOUR, force_guess=force)
    early = protocol.step(state_at(protocol, 0, label=label), [[OPEN, says]])
    assert early.registered.tolist() == [[False, False]]
    assert early.rewards.tolist() == [[0, -16]]
    outcome = protocol.step(state_at(protocol, 2, label=label), [[OPEN, says]])
    assert outcome.rewards.tolist() == [rewards]
    assert outcome.verdict.tolist() == [verdict]
    assert outcome.registered.tolist() == [[False, True]]


@pytest.mark.parametrize("name", ["nip", "adp"])
def test_a_random_stance_is_what_the_prover_is_paid_for(name):
    protocol = make(name, **WORTH, randomize_prover_stance=True)
    seeds = np.arange(400)
    stances = protocol.stances(seeds)
    assert (stances[:, 1] == OPEN).all()
    assert set(stances[:, 0].tolist()) == {NO, YES}
    assert 150 < (stances[:, 0] == YES).sum() < 250
    state = replace(protocol.begin(seeds, seeds % 2), round=np.full(400, 2 if name == "nip" else 1))
    for says in (NO, YES):
        outcome = protocol.step(state, np.full((400, 2), says))
        assert (outcome.rewards[:, 0] == (stances[:, 0] == says)).all()
    assert (make(name).stances(seeds)[:, 0] == YES).all()


def test_the_order_of_channels_is_random_for_verifiers_alone():
    seeds = np.arange(400)
    debate = make("debate")
    order = debate.channel_order("verifier", seeds)
    assert (np.sort(order, -1) == [0, 1]).all()
    assert 150 < (order[:, 0] == 0).sum() < 250
    assert (debate.channel_order("verifier", seeds[7:9]) == order[7:9]).all()
    assert (debate.channel_order("prover0", seeds) == [0, 1]).all()
    fixed = make("debate", randomize_channel_order=False)
    assert (fixed.channel_order("verifier", seeds) == [0, 1]).all()
    assert make("mnip").channel_order("prover1", seeds).tolist() == [[0]] * 400


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("nip", {}, [0.5, 0.0]),
        # Four turns, of which three may pass without a guess: (2 - 4) / 2 + 3 * 0.5 / 2.
        ("nip", {**WORTH, "verifier_no_guess_reward": 0.5}, [0.5, -0.25]),
        ("nip", {**WORTH, "shared_reward": True, "verifier_no_guess_reward": 0.0}, [-1.0, -1.0]),
        ("debate", {"prover_reward": 3.0}, [1.5, 1.5, 0.0]),
        ("multi_channel", {}, [0.0, 0.0, 0.0, 0.0]),
        # Either prover may speak, but the verifier has one turn.
        ("merlin_arthur", WORTH, [0.5, 0.5, -1.0]),
    ],
)
def test_what_agents_may_expect(name, options, expected):
    protocol = make(name, **options)
    assert [protocol.reward_mid_point_estimate(a) for a in protocol.agent_names] == expected


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("nip", {"max_message_rounds": 0}, "max_message_rounds: must be at least"),
        ("nip", {"min_message_rounds": 0}, "min_message_rounds: must be at least 1"),
        ("nip", {"max_message_rounds": 2, "min_message_rounds": 3}, "at least min_message_rounds"),
        ("nip", {"min_message_rounds": 8}, "it speaks in none of the rounds 7 to 7"),
        ("nip", {"max_message_rounds": 1, "verifier_first": False}, "rounds 0 to 0"),
        ("debate", {"sequential": True, "min_message_rounds": 8}, "rounds 7 to 7"),
        ("nip", {"verifier_incorrect_penalty": 2.0}, "write a penalty with its minus sign"),
        ("nip", {"prover_reward": float("inf")}, "prover_reward: must be a number, not inf"),
        ("nip", {"force_guess": "two"}, "force_guess"),
        ("nip", {"sequential": True}, "sequential: unknown key"),
        ("adp", {"max_message_rounds": 4}, "max_message_rounds: unknown key"),
        ("solo_verifier", {"prover_reward": 1.0}, "prover_reward: unknown key"),
        ("npi", {}, "unknown protocol 'npi'; did you mean nip?"),
    ],
)
def test_options_are_checked(name, options, said):
    with pytest.raises(ConfigError) as caught:
        make(name, **options)
    assert said in str(caught.value)


def test_a_protocol_is_one_class():
    registry = default_registry()
    before = registry.snapshot()

    try:

        @register_protocol("echo-in-a-test")
        class Echo(Protocol):
            agent_names = ("prover", "verifier")
            viewers = {"a": ("prover", "verifier")}
            wins = {"prover": NO}
            max_message_rounds = 3

            def turns(self):
                return [{"prover": ("a",)}, {"prover": ("a",)}, {"verifier": ("a",)}]

        echo = make("echo-in-a-test", prover_reward=5.0)
        assert echo.step(state_at(echo, 2), [[OPEN, NO]]).rewards.tolist() == [[5.0, 1.0]]
    finally:
        registry.restore(before)
