"""Trajectories as columns of numbers give equal trajectories back, through a checkpoint too."""

import json

from hypothesis import given
from hypothesis import strategies as st

from plugrl.core.run.checkpoints.state import Encoder, decode
from plugrl.core.text.trajectory import Trajectory
from plugrl.core.text.trajectory_columns import pack, unpack

NUMBERS = st.floats(-10, 0, allow_nan=False)


@st.composite
def trajectories(draw):
    length = draw(st.integers(1, 4))

    def column(values):
        return draw(st.lists(values, min_size=length, max_size=length))

    def perhaps(values):
        return column(values) if draw(st.booleans()) else None

    return Trajectory(
        # Ids may be larger than those of any vocabulary.
        column(st.integers(0, draw(st.sampled_from([5, 2**31, 2**40])))),
        column(st.integers(0, 1)),
        reward=draw(NUMBERS),
        logprobs=perhaps(NUMBERS),
        versions=perhaps(st.integers(-1, 3)),
        token_rewards=perhaps(NUMBERS),
        # Nobody checks its length.
        token_advantages=draw(st.sampled_from([None, [], [0.5], [0.25] * length])),
        group_id=draw(st.text(max_size=3)),
        run_id=draw(st.integers(0, 3)),
        valid=draw(st.booleans()),
        temperature=draw(st.sampled_from([None, 0.5])),
        metrics=draw(st.sampled_from([{}, {"length": 2.0}])),
        extra_fields=draw(st.sampled_from([{}, {"note": "x", "more": [1, {"a": None}]}])),
    )


@given(st.lists(trajectories(), max_size=5))
def test_nothing_changes(given):
    encoder = Encoder()
    tree = json.loads(json.dumps(encoder.encode(pack(given))))
    found = unpack(decode(tree, encoder.tensors))
    assert found == given
    for own, was in zip(found, given, strict=True):
        assert [type(t) for t in own.tokens] == [int] * len(was.tokens)


def test_thousands_of_lists_are_a_few_tensors():
    many = [Trajectory([1, 2], [0, 1], logprobs=[0.0, -1.5]) for _ in range(1000)]
    encoder = Encoder()
    encoder.encode(pack(many))
    assert len(encoder.tensors) == 4
