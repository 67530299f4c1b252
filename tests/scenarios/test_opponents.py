"""Evaluations of trained agents against others, each in its own seat."""

from pathlib import Path

import pytest
import torch

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.evaluation import Evaluation
from plugrl.scenarios.pettingzoo.scenario import PettingZooScenario
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer

SCRIPTS = str(Path(__file__).with_name("scripted_agents.py"))
DILEMMA = {
    "environment": "plugrl.scenarios.pettingzoo.dilemma:IteratedDilemma",
    "env_kwargs": {"rounds": 3},
}
TICTACTOE = {"environment": "tictactoe_v3", "num_envs": 2}


def prefer(agent, logits):
    """Let a policy have these logits whatever it sees."""
    *_, last = (each for each in agent.policy_head.modules() if isinstance(each, torch.nn.Linear))
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor(logits))


def evaluation(scenario, preferred, section=None, agents=None):
    """An evaluation of policies that have these logits, and its metrics."""
    instance = PettingZooScenario(scenario).build(0)
    params = VanillaPpoTrainer(hyper_params={"validate": section or {}}).hyper_params
    policies = build_agents(instance.test_environment.spaces, agents or {})
    for name, logits in preferred.items():
        prefer(policies.policies[name], logits)
    shapes = dict.fromkeys(policies.policies)
    count = instance.test_environment.num_envs
    normalisers = Normalisers(
        shapes, dict.fromkeys(shapes, count), observations=False, rewards=False, gamma=1.0
    )
    made = Evaluation(instance, policies, normalisers, params)
    return made, made.run(0)


COOPERATE, DEFECT = [1.0, 0.0], [0.0, 1.0]


def test_each_trained_agent_meets_the_opponent_in_its_own_seat():
    section = {"opponent": f"{SCRIPTS}:defect", "episodes": 4}
    made, metrics = evaluation(DILEMMA, {"first": COOPERATE, "second": DEFECT}, section)
    # Three rounds against one who defects: -3 a round for who cooperates, -2 for who defects.
    assert metrics["validation/first/mean_episode_return"] == -9
    assert metrics["validation/second/mean_episode_return"] == -6
    assert metrics["validation/mean_episode_return"] == -7.5
    assert metrics["validation/episodes"] == 4
    played = list(made.episodes(3))
    assert [(each["episode"], each["seat"]) for each in played] == [
        (0, "first"), (1, "first"), (2, "second"),
    ]  # fmt: skip
    assert played[0]["agents"] == {"first": (-9.0, 3), "second": (0.0, 3)}


def test_without_an_opponent_the_policies_meet_each_other():
    _, metrics = evaluation(DILEMMA, {"first": COOPERATE, "second": DEFECT}, {"episodes": 2})
    assert metrics["validation/first/mean_episode_return"] == -9
    assert metrics["validation/second/mean_episode_return"] == 0


def test_an_agent_that_learns_nothing_has_no_seat():
    section = {"opponent": f"{SCRIPTS}:defect", "episodes": 3}
    agents = {"second": {"agent_lr_factor": {"actor": 0, "critic": 0}}}
    _, metrics = evaluation(DILEMMA, {"first": COOPERATE}, section, agents)
    assert metrics["validation/mean_episode_return"] == -9
    assert metrics["validation/episodes"] == 3
    assert not any("second" in name for name in metrics)


def test_wins_and_losses_of_a_policy_that_plays_both_seats():
    section = {"opponent": f"{SCRIPTS}:highest", "episodes": 6}
    lowest = [float(-cell) for cell in range(9)]
    agents = {"_default": {"policy": "player"}}
    _, metrics = evaluation(TICTACTOE, {"player": lowest}, section, agents)
    # It takes the lowest free cell and the opponent the highest: who begins has 0, 1 and 2, or 6,
    # 7 and 8, which are lines, in the fifth move.
    told = {name.removeprefix("validation/"): value for name, value in metrics.items()}
    assert told == {
        "episodes": 6, "mean_episode_return": 0, "mean_episode_length": 5,
        "player_1/episodes": 3, "player_1/mean_episode_return": 1,
        "player_1/mean_episode_length": 5,
        "player_2/episodes": 3, "player_2/mean_episode_return": -1,
        "player_2/mean_episode_length": 5,
        "player_1/wins": 1, "player_1/draws": 0, "player_1/losses": 0,
        "player_2/wins": 0, "player_2/draws": 0, "player_2/losses": 1,
        "wins": 0.5, "draws": 0, "losses": 0.5,
    }  # fmt: skip


def test_random_opponents_are_the_same_in_each_evaluation():
    section = {"opponent": "random", "episodes": 20}
    agents = {"_default": {"policy": "player"}}
    made, first = evaluation(TICTACTOE, {}, section, agents)
    assert made.run(1) == first
    assert 0 < first["validation/losses"] < 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"opponent": "randm"}, "validate.opponent: the task has no hand-made policy 'randm'"),
        ({"opponent": f"{SCRIPTS}:nobody"}, "has no function 'nobody'"),
        ({"opponent": "random", "episodes": 1}, "validate.episodes: 1 is not one for each of 2"),
    ],
)
def test_faults_are_found_before_the_run(sections, message):
    tree = {"trainer": "vanilla_ppo", "scenario": {"type": "pettingzoo", **TICTACTOE}}
    with pytest.raises(ConfigError) as said:
        prepare({**tree, "validate": sections})
    assert message in str(said.value).replace(" (Python)", "")


def test_an_agent_alone_has_no_opponent():
    tree = {"trainer": "vanilla_ppo", "scenario": {"type": "gymnasium", "id": "CartPole-v1"}}
    with pytest.raises(ConfigError, match="has no effect with one agent, agent; remove it"):
        prepare({**tree, "validate": {"opponent": "random"}})
