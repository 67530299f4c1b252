"""What holds for every protocol, and declarations that cannot be right."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl import (
    ConfigError,
    ContractError,
    PluginError,
    ProtocolSignals,
    Scenario,
    ScenarioInstance,
    Tally,
    Verdict,
    component,
    make_protocol,
    register_scenario,
)
from plugrl.core.errors import NonFiniteError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry
from plugrl.core.protocol.protocol import Protocol, ProtocolConfig, ProtocolRoundsConfig
from plugrl.testing import tiny

OPEN = Verdict.UNDECIDED
LONG = ["nip", "debate", "mnip"]
NAMES = [*LONG, "adp", "merlin_arthur", "solo_verifier", "multi_channel"]


@st.composite
def protocols(draw):
    """A protocol with some of its options, wrapped or not."""
    name = draw(st.sampled_from(NAMES))
    section = {"type": name, "verifier_no_guess_reward": draw(st.sampled_from([0.0, -0.25]))}
    if name in LONG:
        section["min_message_rounds"] = draw(st.integers(1, 3))
        section["max_message_rounds"] = draw(st.integers(5, 9))
        section["verifier_first"] = draw(st.booleans())
        section["shared_reward"] = draw(st.booleans())
    if name in ("debate", "mnip"):
        section["sequential"] = draw(st.booleans())
        section["prover0_first"] = draw(st.booleans())
    wrapped = draw(st.booleans())
    return make_protocol({"type": "zero_knowledge", "base": section} if wrapped else section)


@st.composite
def episodes(draw, most=8):
    """A protocol, the state at the start, and for each round and two more what agents put out."""
    protocol = draw(protocols())
    number = draw(st.integers(1, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    begun = protocol.begin(random.integers(0, 99, number), random.integers(0, 2, number))
    shape = (number, len(protocol.agent_names), len(protocol.channels))
    steps = [
        (
            random.choice(3, p=(0.15, 0.15, 0.7), size=shape[:2]),
            ProtocolSignals(
                messages=random.normal(size=(*shape, 4)),
                decisions=random.normal(size=(*shape[:2], 3)),
            ),
        )
        for _ in range(protocol.max_message_rounds + 2)
    ]
    return protocol, begun, steps


def play(protocol, begun, steps):
    state, outcomes = begun, []
    for decisions, signals in steps:
        outcomes.append(protocol.step(state, decisions, signals))
        state = outcomes[-1].state
    return outcomes


@settings(max_examples=25, deadline=None)
@given(episodes())
def test_each_agent_is_rewarded_for_one_decision(played):
    protocol, begun, steps = played
    outcomes = play(protocol, begun, steps)
    registered = np.stack([outcome.registered for outcome in outcomes])
    assert (registered.sum(0) <= 1).all()
    judge = protocol.index("verifier")
    penalty = protocol.config.get("verifier_no_guess_reward")
    options = (protocol.base if penalty is None else protocol).config
    for row in range(len(begun)):
        earned = [float(outcome.rewards[row, judge]) for outcome in outcomes]
        judged = [t for t in range(len(outcomes)) if registered[t, row, judge]]
        last = judged[0] if judged else protocol.max_message_rounds - 1
        right = judged and steps[last][0][row, judge] == begun.label[row]
        # One reward at the end, none after it, and before it those for turns without a guess.
        assert earned[last] == (1.0 if right else -1.0)
        assert set(earned[:last]) <= {0.0, options.verifier_no_guess_reward}
        assert set(earned[last + 1 :]) <= {0.0}
        if judged:
            assert all(o.verdict[row] == steps[last][0][row, judge] for o in outcomes[last:])


@settings(max_examples=25, deadline=None)
@given(episodes())
def test_episodes_end_once_and_for_good(played):
    protocol, begun, steps = played
    outcomes = play(protocol, begun, steps)
    verifiers = [protocol.index(agent) for agent in protocol.verifier_names]
    state = begun
    for t, outcome in enumerate(outcomes):
        done = (outcome.state.decided[:, verifiers] != OPEN).all(-1)
        assert (outcome.terminated == (done | (t >= protocol.max_message_rounds - 1))).all()
        assert (outcome.rewards[state.ended] == 0).all()
        assert not outcome.registered[state.ended].any()
        assert not protocol.active(state)[state.ended].any()
        state = outcome.state
    undecided = np.stack([outcome.ended_undecided for outcome in outcomes])
    never = outcomes[-1].verdict == OPEN
    assert (undecided.sum(0) == never).all()
    assert (undecided[protocol.max_message_rounds - 1] == never).all()


@pytest.mark.parametrize("name", NAMES)
def test_those_undecided_at_the_round_limit_are_counted_apart(name):
    protocol = make_protocol(name)
    state = protocol.begin([0, 1, 2, 3], [0, 1, 0, 1])
    for _ in range(protocol.max_message_rounds):
        outcome = protocol.step(state, np.full(state.decided.shape, OPEN))
        state = outcome.state
    assert outcome.ended_undecided.all()
    assert outcome.rewards[:, protocol.index("verifier")].tolist() == [-1.0] * 4
    tally = Tally.of(outcome.verdict, state.label)
    assert tally == Tally(right=0, wrong=0, undecided=4)
    assert tally.accuracy == 0.0
    assert np.isnan(tally.decided_accuracy)


def test_a_tally_counts_registered_verdicts_only():
    tally = Tally.of(np.array([0, 1, 1, 2, 2, 0, 0, 0]), np.array([0, 1, 0, 0, 1, 0, 0, 0]))
    assert tally == Tally(right=5, wrong=1, undecided=2)
    assert tally.accuracy == 5 / 8
    assert tally.decided_accuracy == 5 / 6


def test_guesses_before_the_time_are_no_verdicts():
    """A verifier that guesses at random where it must not has decided nothing."""
    protocol = make_protocol({"type": "nip", "min_message_rounds": 7, "max_message_rounds": 8})
    state = protocol.begin(np.arange(64), np.arange(64) % 2)
    for _ in range(6):
        outcome = protocol.step(state, np.tile([2, 1], (64, 1)))
        assert not outcome.registered.any()
        assert (outcome.verdict == OPEN).all()
        state = outcome.state
    assert protocol.step(state, np.tile([2, 1], (64, 1))).registered[:, 1].all()


@settings(max_examples=25, deadline=None)
@given(protocols(), st.lists(st.tuples(st.integers(-1, 11), st.integers(0, 50)), min_size=1))
def test_masks_fit_what_agents_see(protocol, drawn):
    rounds, seeds = (np.array(part) for part in zip(*drawn, strict=True))
    mask, deciding = protocol.speaks(rounds, seeds), protocol.may_decide(rounds, seeds)
    seen = np.array(
        [[c in protocol.sees(a) for c in protocol.channels] for a in protocol.agent_names]
    )
    assert not (mask & ~seen).any()
    assert (mask.sum(1) <= 1).all()
    assert not (deciding & ~mask.any(-1)).any()
    assert not deciding[rounds < protocol.min_message_rounds - 1].any()
    others = [protocol.index(a) for a in protocol.agent_names if a not in protocol.verifier_names]
    assert not deciding[:, others].any()
    beyond = (rounds < 0) | (rounds >= protocol.max_message_rounds)
    assert not mask[beyond].any()


@settings(max_examples=25, deadline=None)
@given(episodes(), st.randoms(use_true_random=False))
def test_results_do_not_depend_on_the_batch(played, random):
    protocol, begun, steps = played
    whole = play(protocol, begun, steps)
    order = list(range(len(begun)))
    random.shuffle(order)
    for rows in (order, *([row] for row in order)):
        part = [
            (said[rows], ProtocolSignals(**{k: v[rows] for k, v in vars(given).items()}))
            for said, given in steps
        ]
        for one, all_ in zip(play(protocol, begun.rows(rows), part), whole, strict=True):
            for name in ("rewards", "registered", "verdict", "terminated", "ended_undecided"):
                assert (getattr(one, name) == getattr(all_, name)[rows]).all(), name
            for name, value in vars(one.state).items():
                assert (value == getattr(all_.state, name)[rows]).all(), name


def test_rows_that_ended_begin_anew_beside_others():
    protocol = make_protocol("nip")
    state = protocol.step(protocol.begin([5, 6], [1, 0]), [[2, 1], [2, 2]]).state
    assert state.ended.tolist() == [True, False]
    state = state.restarted(state.ended, protocol.begin([7, 8], [0, 1]))
    assert {name: value.tolist() for name, value in vars(state).items()} == {
        "round": [0, 1],
        "seed": [7, 6],
        "label": [0, 0],
        "decided": [[2, 2], [2, 2]],
        "ended": [False, False],
    }


def test_an_episode_that_has_ended_stays_in_its_last_round():
    """The number of rounds that an episode took is read from its state when all have ended."""
    protocol = make_protocol({"type": "nip", "max_message_rounds": 4})
    state = protocol.begin([0, 1, 2], [0, 1, 0])
    seen = []
    # The verifier speaks in rounds 0 and 2, or 1 and 3; the first episode is decided at once.
    turn = protocol.may_decide(np.zeros(3, int), np.arange(3))[:, protocol.index("verifier")]
    for number in range(6):
        decisions = np.full((3, 2), OPEN)
        decisions[0, protocol.index("verifier")] = Verdict.ACCEPT
        if number == 2:
            decisions[1, protocol.index("verifier")] = Verdict.REJECT
        state = protocol.step(state, decisions).state
        seen.append(state.round.tolist())
    first = 1 if turn[0] else 2
    second = 3 if protocol.may_decide(np.array([2]), np.array([1]))[0, 1] else 4
    assert state.ended.all()
    assert seen[-1] == [first, second, 4]
    assert [rounds[2] for rounds in seen] == [1, 2, 3, 4, 4, 4]


def test_states_are_not_changed_by_a_step():
    protocol = make_protocol("nip")
    state = protocol.begin([1, 2], [0, 1])
    for array in vars(state).values():
        array.flags.writeable = False
    protocol.step(state, np.array([[2, 1], [2, 0]]))
    assert (state.decided == OPEN).all()
    assert state.round.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("seed", "label", "said"),
    [
        ([1, 2], [0], "N whole numbers as seeds and as labels"),
        ([[1]], [[0]], "N whole numbers"),
        ([0.5], [0], "not with float64"),
        ([1, 2], [0, 2], "labels are 0 or 1, not 2"),
    ],
)
def test_how_episodes_cannot_begin(seed, label, said):
    with pytest.raises(ContractError, match=said):
        make_protocol("nip").begin(seed, label)


@pytest.mark.parametrize("decisions", [[[2, 3]], [[2]], [2, 1], [[2, 0.5]], [[2, -1]]])
def test_decisions_of_another_kind_are_refused(decisions):
    protocol = make_protocol("nip")
    with pytest.raises(ContractError, match=r"decisions must be 0, 1 or 2 .* of shape \[1, 2\]"):
        protocol.step(protocol.begin([0], [0]), decisions)


class Written(Protocol):
    """A protocol whose turns a test gives."""

    Config = ProtocolConfig
    agent_names = ("prover", "other", "verifier")
    viewers = {"left": ("prover", "verifier"), "right": ("other", "verifier", "prover")}
    written = ()

    def turns(self):
        return self.written


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], r"turns\(\) is empty"),
        ([{"provers": ("left",)}], "round 0 names 'provers' in 'left'; name agents of"),
        ([{"verifier": ("middle",)}], "names 'verifier' in 'middle'"),
        (
            [{"verifier": ("left",)}, {"other": ("left",)}],
            "round 1 lets 'other' speak in 'left', which it does not see",
        ),
        (
            [[{"verifier": ("left",)}, {"prover": ("right",), "other": ("right",)}]],
            "lets several agents speak in 'right'",
        ),
        (5, r"turns\(\) gave 5; give a list of turns"),
        ([["verifier"]], r"turns\(\) gave .*give a list of turns"),
        ([[]], r"turns\(\) is empty"),
        ([{"verifier": "left"}], "gives 'verifier' 'left'; give a list of channels"),
    ],
)
def test_turns_that_cannot_be(written, said):
    with pytest.raises(PluginError, match=said):
        type("Broken", (Written,), {"written": written})()


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (ProtocolConfig, "Late.max_message_rounds or Late.min_message_rounds"),
        (ProtocolRoundsConfig, "max_message_rounds or min_message_rounds or verifier_first"),
    ],
)
def test_a_verifier_that_speaks_too_late_is_told_what_there_is_to_change(options, remedy):
    turns = [{"prover": ("left",)}] * 9 + [{"verifier": ("left",)}]
    late = type("Late", (Written,), {"written": turns, "Config": options})
    with pytest.raises(ConfigError, match=f"change {remedy}$"):
        late()


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"agent_names": "verifier"}, "agent_names is 'verifier'; write a tuple of names"),
        ({"viewers": {"left": "verifier"}}, "viewers is .* a tuple of agents for each channel"),
        ({"viewers": {"left": ("judge",)}}, "viewers of 'left' names 'judge', and agent_names has"),
        ({"verifier_names": ("judge",)}, "verifier_names names 'judge'"),
        ({"verifier_names": ()}, r"verifier_names is \(\)"),
        ({"wins": {"nobody": Verdict.ACCEPT}}, "wins names 'nobody', and agent_names has prover"),
        ({"wins": Verdict.ACCEPT}, "wins is .*write the verdict that pays, by agent"),
    ],
)
def test_names_that_cannot_be(declared, said):
    with pytest.raises(PluginError, match=f"^Broken: {said}"):
        type("Broken", (Written,), {"written": [{"verifier": ("left",)}], **declared})()


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        # It would fit a row of two agents by broadcasting.
        (np.zeros(3), ContractError, r"float64 of shape \[3\]; give numbers of shape \[2, 3\]"),
        (0.0, ContractError, r"shape \[\]"),
        ("abc", ContractError, "shape"),
        (np.full((2, 3), "a"), ContractError, "gave <U1"),
        (np.full((2, 3), np.nan), NonFiniteError, "gave NaN or infinity"),
        (np.full((2, 3), np.inf), NonFiniteError, "gave NaN or infinity"),
    ],
)
def test_rewards_of_another_kind_are_refused(given, error, said):
    turns = [{"verifier": ("left",)}]
    made = type("Broken", (Written,), {"written": turns, "rewards": lambda *_: given})()
    state = made.begin([0, 1], [0, 1])
    with pytest.raises(error, match=rf"^Broken\.rewards gave .*{said}|^Broken\.rewards {said}"):
        made.step(state, np.full((2, 3), OPEN))


def test_of_several_verifiers_the_first_judges_and_all_have_to_decide():
    turns = [{"verifier": ("left",), "other": ("right",)}]
    fields = {"written": turns, "verifier_names": ("verifier", "other"), "max_message_rounds": 4}
    pair = type("Pair", (Written,), {**fields, "wins": {"prover": Verdict.ACCEPT}})()
    state, seen = pair.begin([0], [1]), []
    for says in ([2, 2, 1], [2, 2, 0], [2, 0, 0], [2, 1, 1]):
        outcome = pair.step(state, [says])
        state = outcome.state
        seen.append((*outcome.rewards[0].tolist(), outcome.verdict[0], outcome.terminated[0]))
    assert seen == [
        (1, 0, 1, 1, False),
        (0, 0, 0, 1, False),
        (0, 0, 0, 1, True),
        (0, 0, 0, 1, True),
    ]
    assert state.decided.tolist() == [[2, 0, 1]]
    assert pair.prover_names == ("prover",)


def test_alternatives_of_different_number_follow_the_seed():
    both = type(
        "Both",
        (Written,),
        {
            "written": [
                [{"prover": ("left",)}, {"other": ("right",)}],
                [{"verifier": ("left",)}, {"verifier": ("right",)}, {"prover": ("right",)}],
            ]
        },
    )()
    seeds = np.arange(12)
    zero, one = (both.speaks(np.full(12, round), seeds) for round in (0, 1))
    assert [both.agent_names[int(m.any(-1).argmax())] for m in zero] == ["prover", "other"] * 6
    expected = ["verifier", "verifier", "prover"] * 4
    assert [both.agent_names[int(m.any(-1).argmax())] for m in one] == expected
    # Where the verifier does not speak, no verdict can be registered.
    state = replace(both.begin(seeds, seeds % 2), round=np.ones(12, int))
    registered = both.step(state, np.ones((12, 3), int)).registered[:, 2]
    assert registered.tolist() == [True, True, False] * 4


@dataclass
class CourtConfig:
    """Options of a scenario that takes a protocol."""

    protocol: Any = component("protocol", "nip")


class Court(Scenario):
    """A scenario of which only the options matter."""

    Config = CourtConfig

    def build(self, seed):
        make_protocol(self.config.protocol)
        return ScenarioInstance(name="court")


@pytest.mark.parametrize(
    ("protocol", "path", "said"),
    [
        ("debate", None, None),
        ({"type": "zero_knowledge", "base": "adp"}, None, None),
        ({"min_message_rounds": 8}, "scenario.protocol", "it speaks in none of the rounds 7 to 7"),
        ({"max_message_rounds": 0}, "scenario.protocol.max_message_rounds", "at least"),
        (
            {"type": "zero_knowledge", "base": {"min_message_rounds": 8}},
            "scenario.protocol.base",
            "it speaks in none of the rounds 7 to 7",
        ),
        (
            {"type": "zero_knowledge", "base": {"type": "zero_knowledge"}},
            "scenario.protocol",
            "one verifier called 'verifier'",
        ),
    ],
)
def test_options_of_a_run_are_checked_before_it_starts(protocol, path, said, tmp_path):
    registry = default_registry()
    before = registry.snapshot()
    try:
        register_scenario("court-in-a-test")(Court)
        sections = {"scenario": {"type": "court-in-a-test", "protocol": protocol}}
        config = tiny.config("self_hosted_grpo", tmp_path, sections)
        if path is None:
            prepare(config)
            return
        with pytest.raises(ConfigError) as caught:
            prepare(config)
        (fault,) = caught.value.faults
        assert fault.startswith((f"{path} ", f"{path}:")), fault
        assert said in fault
    finally:
        registry.restore(before)


def test_a_protocol_in_a_file_by_its_path(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from plugrl import Protocol\n\n\n"
        "class Mine(Protocol):\n"
        '    agent_names = ("verifier",)\n'
        '    viewers = {"main": ("verifier",)}\n\n'
        "    def turns(self):\n"
        '        return [{"verifier": ["main"]}]\n'
    )
    by_path = {
        "custom_protocol_module_path": str(tmp_path / "mine.py"),
        "custom_protocol_class_name": "Mine",
    }
    assert make_protocol(by_path).agent_names == ("verifier",)
    wrapped = make_protocol({"type": "zero_knowledge", "base": by_path})
    assert wrapped.agent_names == ("verifier", "adversarial_verifier", "simulator")
