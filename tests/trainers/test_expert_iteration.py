"""Which rollouts agents learn from, against hand values."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from written_rollouts import chat, rollouts

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.text.staged.examples import supervised_examples, with_right_decision
from plugrl.core.text.staged.sections import TextRlConfig, guess_replacement_proportion
from plugrl.trainers.ei_pure_text import (
    ExpertIterationConfig,
    ExpertIterationTrainer,
    select_rollouts,
    selection_weights,
)

REWARDS = np.array([1.0, -1.0, 0.9, 0.0])


def section(**values):
    return configure(ExpertIterationTrainer, values)


def test_threshold_keeps_what_reaches_it():
    assert select_rollouts(REWARDS, section(), np.random.default_rng(0)).tolist() == [0, 2]
    lower = section(reward_threshold=0.0)
    assert select_rollouts(REWARDS, lower, np.random.default_rng(0)).tolist() == [0, 2, 3]


def test_weights_by_hand():
    # Above the smallest: 2, 0, 1.9, 1, in sum 4.9; then 0.01 / 4 each, over 1.01.
    expected = (np.array([2, 0, 1.9, 1]) / 4.9 + 0.0025) / 1.01
    assert selection_weights(REWARDS, None, 0.01) == pytest.approx(expected)
    # Above 0.5: 0.5, 0, 0.4, 0.
    assert selection_weights(REWARDS, 0.5, 0.0) == pytest.approx([5 / 9, 0, 4 / 9, 0])
    assert selection_weights(np.array([3.0, 3.0]), None, 0.0) == pytest.approx([0.5, 0.5])


def test_a_sample_has_its_size_and_follows_the_weights():
    options = section(
        rollout_selection_method="weighted_sampling",
        weighting_sample_size_factor=2000.0,
        weighting_epsilon=0.0,
    )
    drawn = Counter(select_rollouts(REWARDS, options, np.random.default_rng(0)).tolist())
    assert sum(drawn.values()) == 8000
    assert drawn[1] == 0
    for place, share in ((0, 2 / 4.9), (2, 1.9 / 4.9), (3, 1 / 4.9)):
        assert drawn[place] / 8000 == pytest.approx(share, abs=0.03)


def test_without_replacement_each_is_drawn_once_at_most():
    options = section(
        rollout_selection_method="weighted_sampling",
        weighting_use_replacement=False,
        weighting_sample_size_factor=1.0,
        weighting_epsilon=0.0,
    )
    drawn = select_rollouts(REWARDS, options, np.random.default_rng(0)).tolist()
    assert sorted(drawn) == [0, 2, 3]


@pytest.mark.parametrize("method", ["threshold", "weighted_sampling"])
def test_nothing_comes_of_nothing(method):
    options = section(rollout_selection_method=method)
    assert select_rollouts(np.array([]), options, np.random.default_rng(0)).tolist() == []


def test_more_than_there_is_cannot_be_drawn_without_replacement():
    with pytest.raises(ConfigError, match="without replacement no sample is larger"):
        ExpertIterationConfig(weighting_use_replacement=False, weighting_sample_size_factor=1.5)


EPISODES = [
    {
        "y": 1,
        "rounds": [
            {"verifier": (chat("q"), "why?")},
            {"prover": (chat("q", "", "why?"), "so")},
            {"verifier": (chat("q", "why?", "so"), "Decision: reject", 0)},
            {"prover": (chat("q"), "  ")},
        ],
    },
    {"y": 0, "rounds": [{"verifier": ("", "")}]},
]
NIP = {"type": "nip", "max_message_rounds": 4}


def test_an_example_is_the_whole_conversation_up_to_the_last_reply_that_says_anything():
    batch = rollouts(EPISODES, NIP)
    (verifier,) = supervised_examples(batch, [0, 1], 1)
    assert verifier.messages == chat("q", "why?", "so", "Decision: reject")
    assert verifier.replies == (1, 3)
    (prover,) = supervised_examples(batch, [0], 0)
    assert prover.messages[-1]["content"] == "so"


def test_the_right_decision_takes_the_place_of_the_last_reply_and_is_learned_alone():
    (example,) = with_right_decision(
        rollouts(EPISODES, NIP), [0, 1], 1, lambda label: f"It is {bool(label)}."
    )
    assert example.messages == chat("q", "why?", "so", "It is True.")
    assert example.replies == (3,)


@pytest.mark.parametrize(
    ("annealing", "shares"),
    [("none", [0.5, 0.5, 0.5]), ("linear", [0.5, 0.3, 0.1]), ("exponential", [0.5, 0.4, 0.32])],
)
def test_the_share_of_replaced_decisions_by_iteration(annealing, shares):
    text_rl = SimpleNamespace(
        verifier_guess_replacement_proportion=0.5,
        verifier_guess_replacement_annealing=annealing,
        verifier_guess_replacement_annealing_rate=0.2,
    )
    got = [guess_replacement_proportion(text_rl, iteration) for iteration in range(3)]
    assert got == pytest.approx(shares)


def test_the_share_does_not_fall_below_nothing():
    text_rl = TextRlConfig(
        verifier_guess_replacement_proportion=0.1,
        verifier_guess_replacement_annealing="linear",
    )
    assert guess_replacement_proportion(text_rl, 5) == 0.0
