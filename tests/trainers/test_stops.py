"""``rollout_worker.stop`` and ``stop_token_ids``: where answers end, in training and validation."""

import pytest

from plugrl import hookimpl
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.agents.agent_config import SamplingSection
from plugrl.core.text.sampling import SamplingParams
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
    with pytest.raises(ConfigError, match=rf"rollout_worker.{next(iter(section))} .* must be"):
        prepare(config(rollout_worker=section))


def test_an_agent_has_the_stops_of_the_section_unless_it_names_its_own():
    common = SamplingParams(stop=("a",), stop_token_ids=(5,))
    assert SamplingSection().over(common, is_val=False).stop == ("a",)
    own = SamplingSection(stop="b").over(common, is_val=True)
    assert (own.stop, own.stop_token_ids) == (("b",), (5,))
