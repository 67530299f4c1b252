"""What penalties and masks of a policy-gradient algorithm make of a batch, by hand."""

import math

import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import rewards_of_tokens, total_rewards
from plugrl.core.text.learn.batch_shaping import REF_LOG_PROBS, Shaper
from plugrl.core.text.self_hosted import SelfHostedTrainer
from plugrl.core.text.trajectory import Trajectory


class Plain(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        return batch, {}


def shaper(length=None, **algorithm):
    return Shaper(configure(Plain, {"algorithm": algorithm}).algorithm, length)


def batch():
    """Three answers, of which the second was cut off and the third is not trained."""
    rows = [([0, 1, 1], "stop", 1.0), ([0, 1, 1], "length", 2.0), ([0, 0, 0], "stop", 4.0)]
    made = Batch.from_trajectories(
        [
            Trajectory([1, 2, 3], mask, finish_reason=reason, reward=reward, logprobs=[0.0] * 3)
            for mask, reason, reward in rows
        ]
    )
    made.metadata["model"] = "policy"
    made.values["old_log_probs"] = torch.tensor([[9.0, -1, -2], [9, -3, -1], [9, -5, -5]])
    made.values[REF_LOG_PROBS] = torch.tensor([[0.0, -2, -1.5], [0, -1, -1.25], [0, 0, 0]])
    return made


def test_leaving_the_reference_costs_reward_at_each_trained_token():
    """Old less reference is 1 and -0.5, then -2 and 0.25: what has grown likelier is punished."""
    data = batch()
    found = shaper(kl={"reward": {"coefficient": 0.5}}).shape_rewards(data)
    earned = [[0.0, -0.5, 1.25], [0.0, 1.0, 1.875], [0.0, 0.0, 0.0]]
    assert rewards_of_tokens(data).tolist() == earned
    assert total_rewards(data).tolist() == pytest.approx([0.75, 2.875, 4.0])
    # The sum is -1.25, over four tokens and over two sequences.
    assert found == pytest.approx(
        {"kl_reward": -0.3125, "kl_sequence": -0.625, "kl_coefficient": 0.5}
    )
    squares = shaper(kl={"reward": {"coefficient": 1.0, "kind": "mse"}}).shape_rewards(batch())
    assert squares["kl_sequence"] == pytest.approx((1 + 0.25 + 4 + 0.0625) / 2 / 2)


def test_a_coefficient_follows_the_divergence_of_each_model():
    section = {"coefficient": 0.5, "kind": "abs", "controller": "adaptive"}
    own = shaper(kl={"reward": {**section, "target": 1.5, "horizon": 20}})
    # |1| + |-0.5| + |-2| + |0.25| = 3.75 over two sequences is 1.25 times the target; the error
    # counts as 0.2 at most, times 2 of 20 sequences.
    assert own.shape_rewards(batch())["kl_coefficient"] == 0.5
    assert own.shape_rewards(batch())["kl_coefficient"] == pytest.approx(0.5 * 1.02)
    other = batch()
    other.metadata["model"] = "other"
    assert own.shape_rewards(other)["kl_coefficient"] == 0.5
    expected = {"policy": 0.5 * 1.02**2, "other": 0.5 * 1.02}
    assert own.state_dict() == pytest.approx(expected)


def test_penalties_of_long_answers_and_of_the_reference_add_up():
    own = shaper(3, overlong={"buffer": 2, "penalty": 3.0}, kl={"reward": {"coefficient": 0.5}})
    data = batch()
    # Lengths 2, 2 and 0 of 3, the last 2 punished: half of the penalty, half of it, and nothing.
    found = own.shape_rewards(data)
    assert found["overlong_penalty"] == pytest.approx(-1.0)
    assert total_rewards(data).tolist() == pytest.approx([0.75 - 1.5, 2.875 - 1.5, 4.0])
    with pytest.raises(ConfigError, match="overlong.length is needed outside a run"):
        shaper(overlong={"buffer": 2}).shape_rewards(batch())
    assert shaper(9, overlong={"buffer": 2, "length": 3}).shape_rewards(batch()) == pytest.approx(
        {"overlong_penalty": -1 / 3}
    )


def test_answers_that_were_cut_off_train_nothing_where_they_are_filtered():
    data = batch()
    found = shaper(overlong={"filter": True}).prepare(data, {})
    assert data.values["loss_mask"].tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert found == pytest.approx({"overlong_filtered": 1 / 3})
    kept = batch()
    assert shaper().prepare(kept, {}) == {}
    assert kept.values["loss_mask"].tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 0]]


def test_a_batch_without_a_trained_token_has_no_divergence():
    data = batch()
    data.values["loss_mask"] = torch.zeros_like(data.values["loss_mask"])
    data.values["old_log_probs"].fill_(math.nan)
    section = {"coefficient": 0.5, "controller": "adaptive"}
    own = shaper(kl={"reward": section})
    found = own.shape_rewards(data)
    assert (found["kl_reward"], found["kl_sequence"]) == (0.0, 0.0)
    assert own.state_dict() == {"policy": 0.5}


def test_penalties_that_reach_no_advantage_are_refused():
    for own in (
        shaper(kl={"reward": {"coefficient": 0.5}}),
        shaper(3, overlong={"buffer": 2}),
    ):
        with pytest.raises(ContractError, match="changes rewards, and Mine._prepare_batch makes"):
            own.check_shaped("Mine")
        own.shape_rewards(batch())
        own.check_shaped("Mine")
        # The next batch is another one.
        data = batch()
        own._kl = None
        own.prepare(data, {})
        if own._overlong.buffer:
            with pytest.raises(ContractError, match="overlong.buffer changes rewards"):
                own.check_shaped("Mine")
    shaper(kl={"loss": {"coefficient": 0.5}}).check_shaped("Mine")


def test_what_a_penalty_lacks_is_named():
    for name in ("old_log_probs", REF_LOG_PROBS):
        data = batch()
        del data.values[name]
        with pytest.raises(ContractError, match=f"needs batch.values.'{name}'"):
            shaper(kl={"reward": {"coefficient": 0.5}}).shape_rewards(data)
    with pytest.raises(ConfigError, match="model=policy is the trained model itself"):
        shaper(kl={"model": "policy", "loss": {"coefficient": 0.5}}).prepare(batch(), {})
