"""The advantages beside GRPO's against values worked by hand."""

import math

import pytest
import torch

from plugrl.core.config.check import configure
from plugrl.core.errors import ContractError
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.advantages import (
    compute,
    for_trajectories,
    rewards_of_tokens,
    total_rewards,
)
from plugrl.core.text.schedule.pool import TrajectoryPool
from plugrl.core.text.trajectory import Trajectory

OF_TRAJECTORIES = ("grpo", "dr_grpo", "rloo")
OF_TOKENS = ("reinforce_pp", "gae", "opd", "turn_grpo")
MASK = [0, 1, 1]


def rollouts(*rows, mask=MASK):
    """Trajectories of (group, run, reward), with validity and rewards of tokens where given."""
    made = []
    for group, run, reward, *rest in rows:
        valid = rest[0] if rest else True
        each = rest[1] if len(rest) > 1 else None
        made.append(
            Trajectory(
                list(range(1, len(mask) + 1)),
                list(mask),
                reward=reward,
                group_id=group,
                run_id=run,
                valid=valid,
                token_rewards=each,
                logprobs=[-1.0] * len(mask),
            )
        )
    return made


def advantages(name, trajectories, options=None, **values):
    function = default_registry().get("advantage", name)
    batch = Batch.from_trajectories(trajectories)
    batch.values["loss_mask"] *= batch.metadata["valid"][:, None]
    batch.values |= values
    return compute(function, batch, configure(function, options or {})), batch


def listed(name, trajectories, options=None, **values):
    return advantages(name, trajectories, options, **values)[0].tolist()


def test_an_advantage_may_change_its_arguments():
    def centred(rewards, group, run, valid, batch, config):
        rewards -= rewards.mean()
        run.zero_()
        valid.fill_(False)
        return rewards

    batch = Batch.from_trajectories(rollouts(("a", 0, 3.0), ("a", 1, 1.0)))
    assert compute(centred, batch, {}).tolist() == [1.0, -1.0]
    found = [batch.metadata[name].tolist() for name in ("rewards", "run_id", "valid")]
    assert found == [[3.0, 1.0], [0, 1], [True, True]]


def test_dr_grpo_is_the_reward_less_the_mean_of_its_group():
    rows = [("a", 0, 3.0), ("a", 1, 1.0), ("b", 0, 5.0), ("a", 2, 2.0), ("b", 1, 9.0)]
    assert listed("dr_grpo", rollouts(*rows)) == [1.0, -1.0, -2.0, 0.0, 2.0]


def test_rloo_leaves_itself_out():
    # 3 - (1 + 2) / 2, 1 - (3 + 2) / 2, 2 - (3 + 1) / 2; and a pair.
    rows = [("a", 0, 3.0), ("a", 1, 1.0), ("b", 0, 5.0), ("a", 2, 2.0), ("b", 1, 9.0)]
    assert listed("rloo", rollouts(*rows)) == pytest.approx([1.5, -1.5, -4.0, 0.0, 4.0])


@pytest.mark.parametrize(("name", "scale"), [("dr_grpo", 1.0), ("rloo", 2.0)])
def test_runs_of_several_trajectories_and_invalid_ones(name, scale):
    # Run 0 has the mean 2; the invalid 100 is no run.
    rows = [("a", 0, 1.0), ("a", 0, 3.0), ("a", 1, 0.0), ("a", 2, 100.0, False)]
    assert listed(name, rollouts(*rows)) == pytest.approx([scale, scale, -scale, 0.0])


@pytest.mark.parametrize("name", [*OF_TRAJECTORIES, "turn_grpo"])
def test_nothing_to_compare_gives_no_advantage(name):
    for rows in (
        [("a", 0, 5.0)],
        [("a", 0, 5.0), ("a", 0, 7.0)],
        [("a", 0, 0.3), ("a", 1, 0.3), ("a", 2, 0.3)],
        [("a", 0, 5.0, False), ("a", 1, 7.0, False)],
        [("a", 0, 5.0), ("a", 1, 7.0, False)],
    ):
        found, _ = advantages(name, rollouts(*rows))
        assert found.abs().max() == 0, rows


def test_reinforce_pp_normalises_returns_over_the_tokens_of_the_batch():
    # Returns 1 1 | 3 3 of two trained tokens each: mean 2, population deviation 1.
    found, _ = advantages("reinforce_pp", rollouts(("a", 0, 1.0), ("b", 0, 3.0)))
    torch.testing.assert_close(found, torch.tensor([[0.0, -1, -1], [0, 1, 1]]))


def test_reinforce_pp_counts_tokens_and_leaves_invalid_rows_out():
    trajectories = rollouts(("a", 0, 1.0), ("b", 0, 9.0, False), ("c", 0, 4.0))
    trajectories[2].loss_mask = [0, 0, 1]
    # Returns 1, 1 and 4: mean 2, deviation sqrt(2).
    found, _ = advantages("reinforce_pp", trajectories)
    low, high = -1 / math.sqrt(2), 2 / math.sqrt(2)
    torch.testing.assert_close(found, torch.tensor([[0, low, low], [0, 0, 0], [0, 0, high]]))


@pytest.mark.parametrize("name", ["reinforce_pp", "gae", "opd"])
def test_a_row_that_is_not_valid_counts_nowhere_though_its_tokens_are_trained(name):
    """Advantages look at ``valid`` themselves: whoever calls them may leave the mask as it is."""
    rows = [("a", 0, 1.0), ("b", 0, 9.0, False), ("c", 0, 4.0)]
    values = {key: torch.zeros(3, 3) for key in ("old_values", "teacher_log_probs")}
    function = default_registry().get("advantage", name)
    config = configure(function, {"normalize": True} if name != "opd" else {"discount": 0.5})

    def found(batch):
        batch.values |= {key: value[: len(batch)] for key, value in values.items()}
        return compute(function, batch, config)

    all_of_them = found(Batch.from_trajectories(rollouts(*rows)))
    without = found(Batch.from_trajectories(rollouts(rows[0], rows[2])))
    assert all_of_them[1].abs().max() == 0
    torch.testing.assert_close(all_of_them[[0, 2]], without)
    assert without.abs().max() > 0


def test_reinforce_pp_with_process_rewards_discount_and_a_baseline():
    rows = [("a", 0, 1.0, True, [0.0, 0.5, 0.0]), ("a", 1, 3.0)]
    plain = {"normalize": False, "gamma": 0.5}
    # r = 0.5, 1 and 0, 3: G = 0.5 + 0.5, 1 and 1.5, 3
    assert listed("reinforce_pp", rollouts(*rows), plain) == [[0.0, 1.0, 1.0], [0.0, 1.5, 3.0]]
    # Totals are 1.5 and 3, so 2.25 is taken from the reward of the whole: r = 0.5, -1.25; 0, 0.75
    found = listed("reinforce_pp", rollouts(*rows), plain | {"baseline": "group"})
    assert found == [[0.0, -0.125, -1.25], [0.0, 0.375, 0.75]]


def test_a_baseline_leaves_the_rewards_of_the_batch_as_they_are():
    """Metrics read them later, and whoever asks twice gets the same answer."""
    trajectories = rollouts(("a", 0, 1.0), ("a", 1, 3.0))
    batch = Batch.from_trajectories(trajectories)
    function = default_registry().get("advantage", "reinforce_pp")
    config = configure(function, {"normalize": False, "baseline": "group"})
    first = compute(function, batch, config)
    assert first.tolist() == [[0.0, -1.0, -1.0], [0.0, 1.0, 1.0]]
    assert compute(function, batch, config).tolist() == first.tolist()
    assert total_rewards(batch).tolist() == [1.0, 3.0]


def test_equal_returns_give_reinforce_pp_nothing_to_learn():
    found, _ = advantages("reinforce_pp", rollouts(("a", 0, 0.3), ("b", 0, 0.3)))
    assert found.abs().max() == 0


def test_returns_are_equal_beside_their_size_and_not_by_themselves():
    """Rewards of any unit are learned from; what is rounding at their size is not."""
    plain = {"epsilon": 0.0}
    found, _ = advantages("reinforce_pp", rollouts(("a", 0, 1e-9), ("b", 0, 3e-9)), plain)
    torch.testing.assert_close(found, torch.tensor([[0.0, -1.0, -1.0], [0.0, 1.0, 1.0]]))
    # Neighbours in float32.
    one = 1e6
    other = float(torch.nextafter(torch.tensor(one), torch.tensor(2e6)))
    found, _ = advantages("reinforce_pp", rollouts(("a", 0, one), ("b", 0, other)), plain)
    assert found.abs().max() == 0


def test_lambda_is_that_of_the_paper_by_default():
    found, _ = advantages("gae", rollouts(("a", 0, 1.0)), {"normalize": False}, **VALUES)
    # delta_2 = 0.75; delta_1 = 0.25 - 0.5; A_1 = -0.25 + 0.95 * 0.75
    assert found.tolist()[0] == pytest.approx([0.0, 0.4625, 0.75])


VALUES = {"old_values": torch.tensor([[0.0, 0.5, 0.25]])}


def test_gae_by_hand():
    options = {"gamma": 0.9, "lam": 0.5, "normalize": False}
    found, batch = advantages("gae", rollouts(("a", 0, 1.0)), options, **VALUES)
    # delta_2 = 1 - 0.25 = 0.75; delta_1 = 0.9 * 0.25 - 0.5 = -0.275; A_1 = -0.275 + 0.45 * 0.75
    assert found.tolist()[0] == pytest.approx([0.0, 0.0625, 0.75])
    assert batch.values["returns"].tolist()[0] == pytest.approx([0.0, 0.5625, 1.0])


def test_gae_with_lambda_one_is_the_return_less_the_value():
    options = {"lam": 1.0, "normalize": False}
    found, batch = advantages(
        "gae", rollouts(("a", 0, 1.0, True, [0.0, 0.25, 0.0])), options, **VALUES
    )
    assert found.tolist()[0] == pytest.approx([0.0, 0.75, 0.75])
    assert batch.values["returns"].tolist()[0] == pytest.approx([0.0, 1.25, 1.0])


def test_gae_passes_over_what_is_not_trained():
    """The tool's answer between two turns neither discounts nor has a value."""
    mask = [0, 1, 0, 0, 1]
    values = {"old_values": torch.tensor([[0.0, 0.5, 9.0, 9.0, 0.25]])}
    options = {"gamma": 0.9, "lam": 0.5, "normalize": False}
    # A reward of the tool's answer belongs to the turn before it.
    rows = [("a", 0, 1.0, True, [0.0, 0.0, 0.0, 2.0, 0.0])]
    found, batch = advantages("gae", rollouts(*rows, mask=mask), options, **values)
    assert found.tolist()[0] == pytest.approx([0.0, 2.0625, 0.0, 0.0, 0.75])
    assert batch.values["returns"].tolist()[0] == pytest.approx([0.0, 2.5625, 0.0, 0.0, 1.0])


def test_gae_normalises_over_valid_tokens():
    trajectories = rollouts(("a", 0, 1.0), ("b", 0, 3.0), ("c", 0, 99.0, False))
    found, _ = advantages("gae", trajectories, {"lam": 1.0}, old_values=torch.zeros(3, 3))
    torch.testing.assert_close(found, torch.tensor([[0.0, -1, -1], [0, 1, 1], [0, 0, 0]]))


def test_the_value_head_learns_returns_whatever_becomes_of_the_advantages():
    """What is scaled for the policy is no target of a critic: that is A + V before scaling."""
    rows = [("a", 0, 1.0), ("b", 0, 3.0)]
    values = torch.tensor([[0.0, 0.5, 0.25], [0.0, 0.5, 1.0]])
    found = {}
    for normalize in (False, True):
        options = {"lam": 1.0, "normalize": normalize}
        scaled, batch = advantages("gae", rollouts(*rows), options, old_values=values)
        found[normalize] = scaled
        # With lambda and gamma 1 the return is the reward.
        assert batch.values["returns"].tolist() == [[0.0, 1.0, 1.0], [0.0, 3.0, 3.0]]
    assert found[False].tolist() == [[0.0, 0.5, 0.75], [0.0, 2.5, 2.0]]
    # Mean 1.4375, population deviation sqrt(0.69921875).
    expected = [(x - 1.4375) / math.sqrt(0.69921875) for x in (0.5, 0.75, 2.5, 2.0)]
    assert found[True][:, 1:].reshape(-1).tolist() == pytest.approx(expected)


def test_gae_without_values_says_where_they_come_from():
    with pytest.raises(ContractError, match="old_values.*value head"):
        advantages("gae", rollouts(("a", 0, 1.0)))


TEACHER = {"teacher_log_probs": torch.tensor([[0.0, -0.5, -3.0], [0.0, -1.0, -2.0]])}


def test_opd_is_what_the_teacher_would_rather_have():
    trajectories = rollouts(("a", 0, 9.0), ("a", 1, 0.0))
    # Student -1 everywhere: T - S = 0.5, -2 and 0, -1, whatever the rewards are.
    assert listed("opd", trajectories, {"coefficient": 2.0}, **TEACHER) == [
        [0.0, 1.0, -4.0],
        [0.0, 0.0, -2.0],
    ]
    assert listed("opd", trajectories, {"discount": 0.5}, **TEACHER) == [
        [0.0, -0.5, -2.0],
        [0.0, -0.5, -1.0],
    ]


def test_opd_honours_mask_and_validity():
    trajectories = rollouts(("a", 0, 0.0), ("a", 1, 0.0, False), mask=[0, 0, 1])
    assert listed("opd", trajectories, {"discount": 1.0}, **TEACHER) == [[0, 0, -2], [0, 0, 0]]


def test_opd_without_a_teacher_names_what_is_missing():
    with pytest.raises(ContractError, match="teacher_log_probs"):
        advantages("opd", rollouts(("a", 0, 1.0)))


TURNS = [0, 1, 0, 1, 1]


def test_turn_grpo_credits_turns_with_what_follows():
    # Rewards of turns: 1, 3 and 0, 0 (mean 1): centred 0, 2 and -1, -1; sums from each turn on.
    rows = [("a", 0, 3.0, True, [0.0, 0.0, 1.0, 0.0, 0.0]), ("a", 1, 0.0)]
    found = listed("turn_grpo", rollouts(*rows, mask=TURNS), {"normalize": False})
    assert found == [[0.0, 2.0, 0.0, 2.0, 2.0], [0.0, -2.0, 0.0, -1.0, -1.0]]
    # Sample deviation of 1, 3, 0, 0: sqrt(6 / 3)
    scaled = listed("turn_grpo", rollouts(*rows, mask=TURNS), {"epsilon": 0.0})
    assert scaled[0] == pytest.approx([x / math.sqrt(2) for x in found[0]])


def test_turn_grpo_of_one_turn_is_grpo():
    rows = [("a", 0, 1.0), ("a", 1, 0.0), ("b", 0, 2.0), ("b", 1, 7.0), ("b", 2, 50.0, False)]
    turns, whole = listed("turn_grpo", rollouts(*rows)), listed("grpo", rollouts(*rows))
    for row, value in zip(turns, whole, strict=True):
        assert row == pytest.approx([0.0, value, value])


def test_rewards_of_tokens_count_for_whole_trajectories_too():
    rows = [("a", 0, 1.0, True, [0.0, 0.5, 0.5]), ("a", 1, 0.0)]
    batch = Batch.from_trajectories(rollouts(*rows))
    assert total_rewards(batch).tolist() == [2.0, 0.0]
    assert batch.metadata["rewards"].tolist() == [1.0, 0.0]
    assert listed("dr_grpo", rollouts(*rows)) == [1.0, -1.0]
    assert [t.token_rewards for t in batch.to_trajectories()] == [[0.0, 0.5, 0.5], [0.0] * 3]


def test_groups_that_differ_in_rewards_of_tokens_alone_are_not_equal():
    pool = TrajectoryPool(group_size=2, drop_equal_groups=True)
    pool.put(rollouts(("a", 0, 1.0, True, [0.0, 0.5, 0.0]), ("a", 1, 1.0)))
    pool.put(rollouts(("b", 0, 1.0), ("b", 1, 1.0)))
    pool.loaded_batch_finished()
    assert {t.group_id for t in pool.take("policy")} == {"a"}


def test_where_rewards_are_earned():
    each = [4.0, 0.0, 1.0, 0.0, 0.5]
    trajectories = rollouts(("a", 0, 2.0, True, each), ("a", 1, 3.0), mask=TURNS)
    trajectories[1].loss_mask = [0] * 5
    # The reward of the prompt goes to the first trained token, that of a tool to the turn before.
    assert rewards_of_tokens(Batch.from_trajectories(trajectories)).tolist() == [
        [0.0, 5.0, 0.0, 0.0, 2.5],
        [0.0] * 5,
    ]


@pytest.mark.parametrize("name", [*OF_TRAJECTORIES, *OF_TOKENS])
def test_order_and_trajectories_do_not_matter(name):
    rows = [("a", 0, 1.0), ("b", 0, 5.0), ("a", 1, 0.0), ("b", 1, 2.0), ("a", 2, 4.0, False)]
    generator = torch.Generator().manual_seed(0)
    values = {
        key: torch.randn(5, 3, generator=generator) for key in ("old_values", "teacher_log_probs")
    }
    straight, batch = advantages(name, rollouts(*rows), **values)
    assert straight.isfinite().all()
    order = [3, 0, 4, 2, 1]
    moved = {key: value[order] for key, value in values.items()}
    shuffled, _ = advantages(name, rollouts(*[rows[i] for i in order]), **moved)
    torch.testing.assert_close(shuffled, straight[order])
    function = default_registry().get("advantage", name)
    config = configure(function, {})
    given = for_trajectories(function, rollouts(*rows), config, batch)
    for trajectory, want in zip(given, straight, strict=True):
        mean = want if want.dim() == 0 else want[1:].mean()
        assert trajectory.advantage == pytest.approx(float(mean), abs=1e-6)


@pytest.mark.parametrize(
    ("each", "complaint"),
    [([1.0], "1 values for 3"), ([0.0, math.inf, 0.0], "infinite"), ([0.0, "1", 0.0], "no number")],
)
def test_rewards_of_tokens_that_do_not_fit_are_refused(each, complaint):
    with pytest.raises(ValueError, match=complaint):
        Trajectory([1, 2, 3], MASK, token_rewards=each)
