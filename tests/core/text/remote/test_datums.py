"""Datums by hand, and trajectories that make none."""

import pytest

from plugrl.core.errors import ContractError
from plugrl.core.text.remote.datums import advantages_of, datum_of, sum_metrics
from plugrl.core.text.remote.service import NAMED_LOSSES, Datum, ForwardBackward
from plugrl.core.text.trajectory import Trajectory

POLICY = NAMED_LOSSES["importance_sampling"]


def trajectory(**fields):
    """A prompt of two tokens, two sampled ones, one of a tool, one sampled."""
    given = {"logprobs": [0.0, 0.0, -1.0, -2.0, 0.0, -3.0], "advantage": 2.0}
    return Trajectory([4, 5, 6, 7, 8, 9], [0, 0, 1, 1, 0, 1], **{**given, **fields})


def test_everything_is_shifted_by_one():
    datum = datum_of(trajectory(), POLICY, [9.0, 9.0, 1.0, 0.5, 9.0, 0.25])
    assert datum.input_tokens == [4, 5, 6, 7, 8]
    assert datum.loss_fn_inputs == {
        "target_tokens": [5, 6, 7, 8, 9],
        "mask": [0, 1, 1, 0, 1],
        "logprobs": [0.0, -1.0, -2.0, 0.0, -3.0],
        "advantages": [0.0, 2.0, 1.0, 0.0, 0.5],
    }


def test_supervised_datums_have_weights_and_need_no_advantage():
    one = trajectory(logprobs=None, advantage=None)
    datum = datum_of(one, NAMED_LOSSES["cross_entropy"], [9.0, 9.0, 1.0, 0.5, 9.0, 0.25])
    assert set(datum.loss_fn_inputs) == {"target_tokens", "mask", "weights"}
    assert datum.loss_fn_inputs["weights"] == [0.0, 1.0, 0.5, 0.0, 0.25]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1.0, 2.0, 3.0], [0.0, 0.0, 1.0, 2.0, 0.0, 3.0]),
        ([7.0, 7.0, 1.0, 2.0, 7.0, 3.0], [0.0, 0.0, 1.0, 2.0, 0.0, 3.0]),
    ],
)
def test_advantages_of_tokens_are_for_trained_ones_or_for_all(given, expected):
    one = trajectory()
    one["token_advantages"] = given
    assert advantages_of(one) == expected


def test_an_advantage_by_item_is_the_one_by_attribute():
    one, other = trajectory(), trajectory()
    one["advantage"], other.advantage = 0.5, 0.5
    assert advantages_of(one) == advantages_of(other) == [0.0, 0.0, 0.5, 0.5, 0.0, 0.5]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"advantage": None}, r"no advantage; write traj\['advantage'\]"),
        ({"advantage": float("nan")}, "not finite"),
        ({"token_advantages": [1.0]}, "1 token_advantages for 3 trained tokens of 6"),
        ({"logprobs": None}, "no logprobs, which the loss reads"),
    ],
)
def test_what_is_missing_is_named_with_its_trajectory(fields, message):
    with pytest.raises(ContractError, match=f"group 'g', run 3.*{message}"):
        datum_of(trajectory(group_id="g", run_id=3, **fields), POLICY, [1.0] * 6)


def test_trajectories_without_a_gradient_make_no_datum():
    untrained = trajectory()
    untrained.loss_mask = [0] * 6
    equal = trajectory(advantage=0.0)
    each = trajectory(token_advantages=[0.0, 0.0, 0.0])
    assert [datum_of(one, POLICY, [1.0] * 6) for one in (untrained, equal, each)] == [None] * 3


def test_a_first_token_is_predicted_by_nothing():
    alone = Trajectory([3], [1], logprobs=[-1.0], advantage=1.0)
    assert datum_of(alone, POLICY, [1.0]) is None
    pair = Trajectory([3, 4], [1, 1], logprobs=[-1.0, -1.0], advantage=1.0)
    assert datum_of(pair, POLICY, [1.0, 1.0]).loss_fn_inputs["advantages"] == [1.0]


def test_a_datum_whose_parts_do_not_fit_cannot_be_made():
    with pytest.raises(ValueError, match="no target_tokens"):
        Datum([1, 2], {"mask": [1, 1]})
    with pytest.raises(ValueError, match="1 mask for 2 input tokens"):
        Datum([1, 2], {"target_tokens": [2, 3], "mask": [1]})


def test_the_divergence_from_the_sampler_is_that_of_trained_targets():
    datum = datum_of(trajectory(), POLICY, [1.0] * 6)
    answer = ForwardBackward(0.0, [[-9.0, -1.0, -1.0, -9.0, -3.0]], {"own": (1.0, 2.0)})
    # One ratio is e, two are 1: e - 1 - 1.
    told = sum_metrics([datum], answer)
    assert told["kl_to_sampler"] == pytest.approx((0.71828, 3), abs=1e-5)
    assert told["own"] == (1.0, 2.0)
