"""What overridden methods of environments and algorithms may give, and how messages blame them."""

import dataclasses
import functools
import math

import pytest
import torch
from testers import PolicyGradient, make_environment, make_system

from plugrl import HFASTConfiguration
from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.harness import Harness
from plugrl.core.text.dialogue.scorer import Score, as_scorer, score_dialogues
from plugrl.trainers.hf_ast import HFASTTrainer


@functools.cache
def untrained():
    """One system for all tests, since none of them trains it."""
    return make_system()


def forget_scores(environment, nodes):
    for node in nodes:
        node.score = 0.5


#: The method, what it does instead, and what the message says after its name and place.
WRONG = {
    "rewards None": ("reward", lambda e, n: None, "returned NoneType; a list"),
    "reward text": ("reward", lambda e, n: ["1.0"] * len(n), "part 'reward' is '1.0'; a number"),
    "reward None": ("reward", lambda e, n: [None] * len(n), "part 'reward' is None; a number"),
    "part text": ("reward", lambda e, n: [{"a": "x"}] * len(n), "part 'a' is 'x'; a number"),
    "part nan": ("reward", lambda e, n: [{"a": math.nan}] * len(n), "part 'a' is nan; a finite"),
    "part 1e39": (
        "reward",
        lambda e, n: [{"a": 1e39}] * len(n),
        "part 'a' is 1e.39; a number below",
    ),
    "sum 4e38": (
        "reward",
        lambda e, n: [{"a": 2e38, "b": 2e38}] * len(n),
        "the sum of the parts is 4e.38; a number below",
    ),
    "too few": ("reward", lambda e, n: [0.0], r"returned 1 rewards for \d+ exchanges"),
    "no dialogue": ("advance", lambda e, c, p, r: p + r, "returned str; a Dialogue"),
    "no children": ("expand", lambda e, leaves, w: None, "returned NoneType; a list of lists"),
    "too few lists": ("expand", lambda e, leaves, w: [[]], "returned 1 lists for 2 leaves"),
    "flat": ("expand", lambda e, leaves, w: ["ab"] * len(leaves), "returned a list of str;"),
    "texts": ("expand", lambda e, leaves, w: [["a"]] * len(leaves), "returned a str in a list"),
    "scores returned": ("score", lambda e, n: [0.5] * len(n), "returned list; it must set"),
    "scores are numbers": ("score", forget_scores, "left float as the score of an exchange"),
}


@pytest.mark.parametrize(("name", "method", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_of_an_overridden_method_is_blamed_on_it(name, method, message):
    own = type("Own", (DialogueEnvironment,), {name: method})
    environment = make_environment(untrained(), cls=own)
    with pytest.raises(ContractError, match=rf"^Own\.{name} \(.*:\d+\):? {message}"):
        environment.rollouts([1, 2])


@pytest.mark.parametrize("number", [torch.tensor(0.25), True, 1, 1e30])
def test_whatever_is_a_number_is_a_reward(number):
    own = type("Own", (DialogueEnvironment,), {"reward": lambda e, n: [number] * len(n)})
    (tree,) = make_environment(untrained(), cls=own).rollouts([1])
    assert {node.reward for node in tree.nodes()} == {float(number)}


def test_a_number_of_numpy_is_a_reward():
    np = pytest.importorskip("numpy")
    rewards = {"reward": lambda e, n: list(np.full(len(n), 0.25, dtype=np.float32))}
    own = type("Own", (DialogueEnvironment,), rewards)
    (tree,) = make_environment(untrained(), cls=own).rollouts([1])
    assert {node.reward for node in tree.nodes()} == {0.25}


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("flatten", lambda a, tree: None, "returned NoneType; a list of steps"),
        ("flatten", lambda a, tree: 3, "returned int; a list of steps"),
        ("prepare", lambda a, steps: None, "returned NoneType; a list of steps"),
    ],
)
def test_an_algorithm_that_gives_no_steps_is_named(name, method, message):
    own = type("Own", (PolicyGradient,), {name: method})
    harness = Harness(make_environment(untrained()), own(), num_episodes_per_experience=1)
    with pytest.raises(ContractError, match=rf"^Own\.{name} \(.*:\d+\) {message}"):
        harness.experience()


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        ({"x": "text"}, r"logs 'x', 'text'; a number"),
        ({"x": torch.ones(2)}, r"logs 'x', tensor\(\[1., 1.\]\); a number"),
        ([1, 2], r"returned list as logs; a dict"),
    ],
)
def test_logs_that_are_no_numbers_are_named(logs, message):
    own = type(
        "Own", (PolicyGradient,), {"step": lambda a, b: (torch.ones((), requires_grad=True), logs)}
    )
    harness = Harness(make_environment(untrained()), own(), num_episodes_per_experience=1)
    with pytest.raises(ContractError, match=rf"^Own\.step \(.*:\d+\) {message}"):
        harness.step([])


def no_number(dialogue):
    """A scorer that gives none."""


def test_a_function_that_gives_no_score_is_blamed_by_its_own_line():
    line = no_number.__code__.co_firstlineno
    (score,) = score_dialogues(as_scorer(no_number)(), [Dialogue("a")])
    assert f"test_contracts.py:{line})" in score.failure


@pytest.mark.parametrize("value", [1e39, -1e39, math.inf, math.nan])
def test_a_score_beyond_single_precision_is_none(value):
    (score,) = score_dialogues(
        as_scorer(lambda dialogue: Score(0.5, {"a": value}))(), [Dialogue("a")]
    )
    assert "returned a" in score.failure


def test_a_reason_is_text_on_one_line():
    answer = Score(failure=ValueError("one\ntwo"))
    (score,) = score_dialogues(as_scorer(lambda dialogue: answer)(), [Dialogue("a")])
    assert score.failure == "one two"
    (score,) = score_dialogues(
        as_scorer(lambda dialogue: Score(failure="x" * 10_000))(), [Dialogue("a")]
    )
    # 2,000 of 10,000 characters are kept.
    assert score.failure.count("x") == 2000


def test_huge_scores_end_a_step_with_their_reason():
    environment = make_environment(untrained(), scorer=lambda dialogue: 1e308)
    harness = Harness(environment, PolicyGradient(), num_episodes_per_experience=1)
    with pytest.raises(RunError, match=r"exchanges of an experience failed.*1e\+308"):
        harness.experience()


def test_a_value_head_leaves_the_random_numbers_as_they_are():
    before = torch.get_rng_state()
    make_system(train={"value_head": True})
    assert torch.equal(before, torch.get_rng_state())


def test_a_weight_of_a_category_that_no_score_has_is_told_once(caplog):
    scorer = as_scorer(lambda dialogue: Score(0.5, {"colour": 1.0}))()
    weights = {"categories": {"color": 1.0, "colour": 0.5}}
    environment = make_environment(untrained(), scorer=scorer, reward=weights)
    for seed in (1, 2):
        (tree,) = environment.rollouts([seed])
        assert {node.reward for node in tree.nodes()} == {0.5}
    (record,) = caplog.records
    message = record.getMessage()
    assert "weighs 'color'" in message
    assert message.endswith("has: colour; did you mean colour?")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr": "x"}, "lr is 'x'; a number is expected"),
        ({"lr": math.inf}, "lr is inf; a finite number is expected"),
        ({"lr": True}, "lr is True; a number is expected"),
        ({"batch_size": 1.5}, "batch_size is 1.5; a whole number is expected"),
        ({"training_steps": None}, "training_steps is None; a number is expected"),
        ({"weight_decay": math.nan}, "weight_decay is nan; a finite number is expected"),
        ({"max_grad_norm": "1"}, "max_grad_norm is '1'; a number is expected"),
        ({"early_stopping_min_delta": math.nan}, "early_stopping_min_delta is nan; a finite"),
        ({"early_stopping_patience": 1.5}, "early_stopping_patience is 1.5; a whole number"),
    ],
)
def test_code_is_told_which_number_of_a_configuration_is_none(fields, message):
    with pytest.raises(ConfigError, match=message):
        HFASTConfiguration(**fields)


def test_numbers_of_a_configuration_may_be_whole_or_missing_where_that_is_meant():
    made = HFASTConfiguration(lr=1, max_grad_norm=None, early_stopping_patience=None)
    assert (made.lr, made.max_grad_norm, made.early_stopping_patience) == (1, None, None)


def test_one_text_is_not_a_list_of_prompts():
    with pytest.raises(ConfigError, match=r"prompts are the text 'abc'; give a list, \['abc'\]"):
        make_environment(untrained(), prompts="abc")
    with pytest.raises(ConfigError, match="prompts are the text"):
        make_environment(untrained()).eval_rollouts("abc", [1, 2, 3])
    with pytest.raises(ConfigError, match="dev_prompts is the text 'abc'; give a list of them"):
        HFASTTrainer(HFASTConfiguration(), dev_prompts="abc")


def test_fields_of_a_subclass_may_be_annotated_in_any_way():
    @dataclasses.dataclass
    class Own(HFASTConfiguration):
        more: "NoSuchName" = None  # noqa: F821

    with pytest.raises(ConfigError, match="lr is 'x'; a number is expected"):
        Own(lr="x")


def test_a_scorer_that_raises_an_exception_of_any_class_has_failed():
    class Odd(BaseException):
        pass

    def odd(dialogue):
        raise Odd("boo")

    first, second = score_dialogues(as_scorer(odd)(), [Dialogue("a"), Dialogue("b")])
    assert "raised Odd: boo (" in first.failure
    assert "raised Odd: boo (" in second.failure
