"""Names of metrics of small networks, looked up before a run."""

from __future__ import annotations

import pytest

from plugrl.core.tensordict.metric_names import metric_fault

AGENTS = ["player_1", "player_2"]


@pytest.mark.parametrize(
    "name",
    [
        "validation/mean_episode_return",
        "validation/player_1/mean_episode_return",
        "rollout/frames",
        "train/loss_objective",
        "train/player_1/kl",
        "time/train",
        "message_regression/verifier/accuracy",
        # Environments and losses have numbers of their own.
        "validation/wins",
        "rollout/player_2/goals",
        "validation/episode_return",
        "train/my_loss",
    ],
)
def test_what_may_be_reported_is_no_fault(name: str) -> None:
    assert metric_fault(name, AGENTS, closed=True) is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("validation/mean_episode_retrun", "validation/mean_episode_return"),
        ("validaton/mean_episode_return", "validation/mean_episode_return"),
        ("rollot/frames", "rollout/frames"),
        ("validation/player1/wins", "validation/player_1/wins"),
        ("rollout/player_1/mean_episode_lenght", "rollout/player_1/mean_episode_length"),
        ("train/acuracy", "train/accuracy"),
    ],
)
def test_a_slip_is_told_with_what_is_meant(name: str, meant: str) -> None:
    said = f"this run reports no metric {name!r}; did you mean {meant}?"
    assert metric_fault(name, AGENTS, closed=True) == said
    # A trainer of a user may have families of its own, and slips in ours are slips.
    assert metric_fault(name, AGENTS, closed=False) == said


@pytest.mark.parametrize("name", ["reward", "validation", "validation/", "", "/", "mine/reward"])
def test_what_is_like_nothing_is_told_how_names_begin(name: str) -> None:
    said = metric_fault(name, AGENTS, closed=True)
    assert said is not None
    assert said.endswith(
        "names begin with rollout/, train/, validation/, time/, message_regression/"
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("validation/return", "validation/mean_episode_return"),
        ("validation/reward", "validation/mean_episode_return"),
        ("rollout/ep_rew_mean", "rollout/mean_episode_return"),
        ("validation/episode_length", "validation/mean_episode_length"),
        ("return", "validation/mean_episode_return"),
        ("ep_len_mean", "validation/mean_episode_length"),
    ],
)
def test_names_that_others_use_are_told_ours(name: str, meant: str) -> None:
    said = f"this run reports no metric {name!r}; did you mean {meant}?"
    assert metric_fault(name, AGENTS, closed=True, known_environment=True) == said
    # An environment of a user may have a number of this name.
    if "/" in name:
        assert metric_fault(name, AGENTS, closed=True) is None


@pytest.mark.parametrize("name", ["validation/wins", "train/reward", "rollout/player_1/reward"])
def test_other_numbers_of_a_known_environment_are_no_fault(name: str) -> None:
    assert metric_fault(name, AGENTS, closed=True, known_environment=True) is None


def test_a_trainer_of_a_user_may_have_families_of_its_own() -> None:
    assert metric_fault("mine/reward", AGENTS, closed=False) is None
