"""``rollout_worker.stop`` and ``stop_token_ids``: where answers end, in training and validation."""

from types import SimpleNamespace

import pytest
import text_agents

from plugrl import hookimpl
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.experiment import prepare, start
from plugrl.core.text.agents.agent_config import SamplingSection
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import check_stop_tokens
from plugrl.testing import tiny


class Noting:
    """Keeps what each step has trained on."""

    def __init__(self):
        self.answers = []

    @hookimpl
    def plugrl_rollouts_collected(self, trajectories):
        for trajectory in trajectories:
            start = trajectory.loss_mask.index(1)
            self.answers.append((trajectory.tokens[start:], trajectory.finish_reason))


# Of the characters "ab" with padding 0 and end 1: "a" is token 2 and "b" token 3.
@pytest.mark.parametrize(
    ("section", "ends"),
    [
        ({"stop": "b"}, lambda tokens: tokens[-1] in (1, 3) and 3 not in tokens[:-1]),
        # Padding that is sampled has no text.
        ({"stop": ["ab"]}, lambda t: t[-1] == 1 or [x for x in t if x][-2:] == [2, 3]),
        ({"stop_token_ids": [3]}, lambda tokens: tokens[-1] in (1, 3) and 3 not in tokens[:-1]),
    ],
)
def test_answers_end_with_the_token_that_completes_a_stop(config, section, ends):
    noting = Noting()
    section = {**section, "max_response_length": 8}
    sections = {"trainer": {"total_train_steps": 1}, "validate": {"enabled": False}}
    tiny.train(config(rollout_worker=section, **sections), noting)
    stopped = [tokens for tokens, reason in noting.answers if reason == "stop"]
    assert all(map(ends, stopped))
    # The text that ended an answer is part of it.
    assert any(tokens[-1] == 3 for tokens in stopped)
    assert all(len(tokens) == 8 for tokens, reason in noting.answers if reason != "stop")


@pytest.mark.parametrize("section", [{"stop": ""}, {"stop": ["a", ""]}, {"stop_token_ids": [-1]}])
def test_stops_that_end_nothing_are_refused(config, section):
    with pytest.raises(ConfigError, match=rf"rollout_worker.{next(iter(section))}.* must be"):
        prepare(config(rollout_worker=section))


@pytest.mark.parametrize("tokens", [[True], ["a"], [1.5]])
def test_stop_tokens_are_whole_numbers(config, tokens):
    with pytest.raises(ConfigError, match=r"rollout_worker.stop_token_ids"):
        prepare(config(rollout_worker={"stop_token_ids": tokens}))
    with pytest.raises(ConfigError, match="stop_token_ids"):
        SamplingParams(stop_token_ids=tuple(tokens))


@pytest.mark.parametrize("size", [None, 5])
def test_a_stop_token_that_the_model_never_says_is_refused_before_and_at_the_start(config, size):
    # Padding, end, "a" and "b", unless the configuration has more.
    count = size or 4
    models = {"policy": {"source": {"config": {"vocab_size": size} if size else {}}}}
    tree = config(rollout_worker={"stop_token_ids": [2, count]}, models=models)
    said = rf"rollout_worker.stop_token_ids.* has {count}, and model 'policy' has tokens 0 to "
    with pytest.raises(ConfigError, match=f"{said}{count - 1}; write one of them"):
        prepare(tree)
    # Such as of a service that does not know it before.
    with pytest.raises(RunError, match=f"{said}{count - 1}; write one of them"):
        start(prepare(tree, preflight=False))
    prepare(config(rollout_worker={"stop_token_ids": [2, count - 1]}, models=models))


def test_a_stop_token_of_any_agent_s_model_is_looked_at(tmp_path):
    models = {"other": text_agents.config("ei_pure_text", tmp_path)["models"]["policy"]}
    section = {"agents": {"prover": {"model": "other"}}, "stop_token_ids": [10**6]}
    tree = text_agents.config("ei_pure_text", tmp_path, models=models, rollout_worker=section)
    with pytest.raises(ConfigError) as failure:
        prepare(tree)
    assert "has 1000000, and model 'other' has tokens 0 to" in str(failure.value)
    assert "has 1000000, and model 'policy' has tokens 0 to" in str(failure.value)


def test_a_service_that_ends_answers_at_end_tokens_alone_is_refused_at_the_start():
    tokenizer = SimpleNamespace(eos_token_id=1, end_token_ids=(3,))
    service = SimpleNamespace(tokenizer=tokenizer, vocabulary_size=9, stops_at_tokens=False)
    check_stop_tokens([1, 3], "judge", service, "stop_token_ids")
    with pytest.raises(ConfigError, match=r"cannot be asked of .* model 'judge'.* text of 2 in"):
        check_stop_tokens([1, 2], "judge", service, "stop_token_ids")


def test_an_agent_has_the_stops_of_the_section_unless_it_names_its_own():
    common = SamplingParams(stop=("a",), stop_token_ids=(5,))
    assert SamplingSection().over(common, is_val=False).stop == ("a",)
    own = SamplingSection(stop="b").over(common, is_val=True)
    assert (own.stop, own.stop_token_ids) == (("b",), (5,))
