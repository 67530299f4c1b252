"""What programs and functions say about their attempts."""

import math

import pytest

from plugrl.core.text.endpoint.clients.outcomes import (
    AttemptOutcome,
    OutcomeError,
    of_output,
    of_value,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, AttemptOutcome()),
        ("yes", AttemptOutcome(answer="yes")),
        (2, AttemptOutcome(reward=2.0)),
        (True, AttemptOutcome(reward=1.0)),
        ({"reward": 0.5, "metrics": {"steps": 3}}, AttemptOutcome(None, 0.5, {"steps": 3.0})),
        ({"answer": None, "reward": None, "metrics": None}, AttemptOutcome()),
    ],
)
def test_values(value, expected):
    assert of_value(value) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"anwser": "x"}, "'anwser'"),
        ({"answer": 5}, "the answer is int; text"),
        ({"reward": "1"}, "the reward is str"),
        ({"reward": math.nan}, "the reward is nan"),
        ({"reward": 10**400}, "the reward is int"),
        ({"metrics": [1]}, "no object of numbers"),
        ({"metrics": {"a": "b"}}, "metric 'a' is str"),
        ([1, 2], "list; a number"),
        (object(), "object; a number"),
    ],
)
def test_values_that_cannot_be_used(value, said):
    with pytest.raises(OutcomeError, match=said):
        of_value(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AttemptOutcome()),
        ("no JSON\n{broken", AttemptOutcome()),
        ('{"reward": 1}\nDone.\n', AttemptOutcome(reward=1.0)),
        ('{"reward": 1}\n{"reward": 2}', AttemptOutcome(reward=2.0)),
        ('{"reward": 1}\n{"log": 2}\n{}\n[1]', AttemptOutcome(reward=1.0)),
        ('{"answer": "日本"}\r\n', AttemptOutcome(answer="日本")),
        ("{" * 100_000, AttemptOutcome()),
    ],
)
def test_outputs(text, expected):
    assert of_output(text) == expected


def test_a_key_beside_the_known_ones_is_refused_by_name():
    with pytest.raises(OutcomeError, match="in its last line, 'metric' is unknown"):
        of_output('{"reward": 1, "metric": 2}')
