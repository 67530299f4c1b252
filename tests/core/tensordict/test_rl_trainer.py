"""The loop that all trainers of small networks share, on environments that can be counted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.run.progress import Progress
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict import evaluation
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.learn.loss_contract import total_loss
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.core.tensordict.standalone import StandaloneRun
from tests.core.tensordict.counting import Counting


class LogLikelihood(torch.nn.Module):
    """Raises the probability of what was done; keeps the minibatches that it was given."""

    def __init__(self, agent: Any) -> None:
        super().__init__()
        self._agent = agent
        self.seen: list[Any] = []

    def forward(self, td: Any) -> dict[str, torch.Tensor]:
        self.seen.append(td.clone())
        params = self._agent.policy(td["observation"])
        log_prob = self._agent.distribution.log_prob(params, td["action"])
        return {"loss_objective": -log_prob.mean(), "rows": torch.tensor(float(len(td)))}


class Plain(TensorDictRlTrainer):
    """Trains with :class:`LogLikelihood`."""

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl = self.hyper_params.rl
        return LogLikelihood(self.agent), GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)


def task(**options: Any) -> ScenarioInstance:
    lengths = options.pop("lengths", [2, 3])
    return ScenarioInstance(
        name="counting", make_environment=lambda split: Counting(lengths, **options)
    )


def trained(instance: ScenarioInstance, **sections: Any) -> Plain:
    rl = {"num_iterations": 2, "frames_per_batch": 8, "minibatch_size": 4, "num_epochs": 2}
    sections["rl"] = {**rl, **sections.get("rl", {})}
    sections["validate"] = {"episodes": 2, **sections.get("validate", {})}
    trainer = Plain(scenario_instance=instance, hyper_params=sections)
    trainer.train()
    return trainer


def test_every_row_is_learned_from_once_an_epoch() -> None:
    trainer = trained(task(), rl={"num_iterations": 1})
    seen: Any = trainer._learners["agent"].loss_module
    assert [len(td) for td in seen.seen] == [4, 4, 4, 4]
    first_epoch = torch.cat([td["observation"] for td in seen.seen[:2]]).squeeze(-1)
    # By hand: the copies see 0 1 0 1 and 0 1 2 0.
    assert sorted(first_epoch.tolist()) == [0, 0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(("size", "sizes"), [(3, [3, 3, 2]), (5, [4, 4]), (100, [8]), (1, [1] * 8)])
def test_minibatches_differ_by_one_row_at_most(size: int, sizes: list[int]) -> None:
    trainer = trained(task(), rl={"num_iterations": 1, "num_epochs": 1, "minibatch_size": size})
    seen: Any = trainer._learners["agent"].loss_module
    assert [len(td) for td in seen.seen] == sizes


def test_steps_that_only_begin_anew_are_not_learned_from() -> None:
    trainer = trained(task(next_step=True), rl={"num_iterations": 1, "num_epochs": 1})
    seen: Any = trainer._learners["agent"].loss_module
    # By hand: of 0 1 (2) 0 and 0 1 2 (3) those in brackets are no steps.
    assert sorted(float(o) for td in seen.seen for o in td["observation"]) == [0, 0, 0, 1, 1, 2]
    assert trainer.run.metrics[-1]["rollout/frames"] == 6


def test_numbers_of_an_iteration() -> None:
    last = trained(task()).run.metrics[-1]
    # The second batch sees 0 1 0 1 and 1 2 0 1: three episodes end in it.
    assert last["rollout/episodes"] == 3
    assert last["rollout/mean_episode_return"] == pytest.approx((3 + 3 + 6) / 3)
    assert last["rollout/mean_episode_length"] == pytest.approx(7 / 3)
    assert last["rollout/frames"] == 16
    assert last["train/rows"] == 4
    assert last["validation/mean_episode_return"] == pytest.approx(4.5)
    assert {"time/rollout", "time/train", "time/validate", "train/grad_norm"} <= set(last)
    # No copy of it broke.
    assert "rollout/crashes" not in last


def test_an_evaluation_plays_as_many_episodes_in_each_copy() -> None:
    last = trained(task(lengths=[1, 4]), validate={"episodes": 5}).run.metrics[-1]
    # Three episodes of one step (1) and two of four (10), though the short ones end sooner.
    assert last["validation/episodes"] == 5
    assert last["validation/mean_episode_return"] == pytest.approx((3 * 1 + 2 * 10) / 5)


def test_the_first_copies_play_one_more_episode_where_they_cannot_play_equally_many() -> None:
    last = trained(task(lengths=[4, 1]), validate={"episodes": 5}).run.metrics[-1]
    # Three episodes of four steps (10) and two of one (1).
    assert last["validation/mean_episode_return"] == pytest.approx((3 * 10 + 2 * 1) / 5)


def test_evaluations_come_when_they_are_due() -> None:
    metrics = trained(
        task(), rl={"num_iterations": 5}, validate={"every": 2, "before_train": True}
    ).run.metrics
    assert [m["step"] for m in metrics if "validation/episodes" in m] == [0, 2, 4, 5]
    metrics = trained(task(), validate={"enabled": False}).run.metrics
    assert not any("validation/episodes" in m for m in metrics)


def test_agents_with_a_policy_of_their_own_learn_apart() -> None:
    trainer = trained(task(agents=("left", "right")))
    assert set(trainer._learners) == {"left", "right"} == set(trainer.agents)
    last = trainer.run.metrics[-1]
    assert {"train/left/loss_objective", "train/right/loss_objective"} <= set(last)
    assert last["rollout/left/mean_episode_return"] == last["rollout/right/mean_episode_return"]


class Small(Counting):
    """The second agent earns a hundred times as much as the first, which earns little."""

    def step(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        given = super().step(actions)
        of = zip(given.items(), (0.01, 1.0), strict=True)
        return {name: replace(step, reward=step.reward * f) for (name, step), f in of}


def test_what_is_shown_meanwhile_is_the_mean_of_all_agents_to_four_digits(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    monkeypatch.setattr(StandaloneRun, "progress", lambda _, *told: Progress("plain").bar(*told))
    caplog.set_level(logging.INFO)
    agents = ("left", "right")
    instance = ScenarioInstance(
        name="small", make_environment=lambda split: Small([2, 2], agents=agents)
    )
    trained(instance)
    # Episodes of two steps earn 1 + 2 and a hundredth of that: 1.515 in the mean.
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "Training: 2/2  rollout/mean_episode_return 1.515  validation/mean_episode_return 1.515  "
    )
    assert [line for line in caplog.messages if "validation/" in line] == [
        "step 2: validation/mean_episode_return 1.515"
    ]


def test_agents_that_share_a_policy_learn_together() -> None:
    shared = {"_default": {"policy": "both"}}
    trainer = trained(task(agents=("left", "right")), agents=shared)
    assert list(trainer._learners) == ["both"]
    assert trainer.run.metrics[-1]["train/rows"] == 4


def test_a_frozen_agent_keeps_every_bit_and_the_other_learns_as_if_alone() -> None:
    frozen = {"right": {"agent_lr_factor": {"actor": 0, "critic": 0}}}
    trainer = trained(task(agents=("left", "right")), agents=frozen)
    alone = Plain(
        scenario_instance=task(agents=("left", "right")),
        hyper_params={"rl": {"num_iterations": 0}, "validate": {"enabled": False}},
    )
    alone.train()
    for name in ("left", "right"):
        begun, ended = alone.agents[name].state_dict(), trainer.agents[name].state_dict()
        same = [torch.equal(begun[key], ended[key]) for key in begun]
        assert all(same) if name == "right" else not all(same)
    both = trained(task(agents=("left", "right")))
    for key, value in trainer.agents["left"].state_dict().items():
        assert torch.equal(value, both.agents["left"].state_dict()[key])


def test_an_agent_learns_in_the_iterations_of_its_schedule() -> None:
    schedule = {"type": "contiguous_periodic", "period": 3, "start": 1, "stop": 3}
    trainer = trained(
        task(), agents={"_default": {"update_schedule": schedule}}, rl={"num_iterations": 4}
    )
    learned = [m["step"] for m in trainer.run.metrics if "train/loss_objective" in m]
    assert learned == [2, 3]


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    def losses(seed: int) -> list[float]:
        run = trained(task(), seed=seed).run
        return [m["train/loss_objective"] for m in run.metrics[1:]]

    assert losses(1) == losses(1) != losses(2)


def test_a_batch_that_no_copy_can_fill_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rl.frames_per_batch 9 is no multiple of 2 .*take 8"):
        trained(task(), rl={"frames_per_batch": 9})


def test_all_iterations_are_known_beforehand() -> None:
    trainer = Plain(
        scenario_instance=task(),
        hyper_params={"rl": {"num_iterations": 7, "num_test_iterations": 3}},
    )
    assert trainer.get_total_num_iterations() == 10


def test_test_episodes_after_training_are_samples() -> None:
    run: Any = trained(task(), rl={"num_test_iterations": 3}).run
    assert [s["agents"]["agent"] for s in run.samples["test"]] == [(3.0, 2), (6.0, 3), (3.0, 2)]
    assert [s["episode"] for s in run.samples["test"]] == [0, 1, 2]


class Silent(Counting):
    """Its agents take turns, and it has not asked for what their networks gave."""

    def acting(self) -> dict[str, Any]:
        return {agent: np.ones(self.num_envs, bool) for agent in self.spaces}

    def take_params(self, params: Any) -> None:
        raise AssertionError("nobody asked for them")


def test_only_environments_that_ask_for_them_get_the_parameters_of_actions() -> None:
    instance = ScenarioInstance(name="counting", make_environment=lambda split: Silent([2, 3]))
    last = trained(instance).run.metrics[-1]
    assert last["validation/mean_episode_return"] == (3 + 6) / 2


def test_without_a_run_or_a_task_it_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="call bind"):
        Plain({}).train()


def test_wrong_sections_are_refused_with_their_place() -> None:
    with pytest.raises(ConfigError, match=r"rl\.gama.*gamma"):
        trained(task(), rl={"gama": 0.9})


def test_a_loss_module_without_a_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one loss_"):
        total_loss({"objective": torch.zeros(())})


def test_a_gradient_that_is_not_finite_stops_the_run() -> None:
    class Broken(Plain):
        """Its loss has no finite gradient."""

        def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
            class Loss(torch.nn.Module):
                def forward(self, td: Any) -> dict[str, torch.Tensor]:
                    return {"loss_policy": agent.policy(td["observation"]).sum() * float("inf")}

            agent = self.agent

            return Loss(), None

    trainer = Broken(
        scenario_instance=task(), hyper_params={"rl": {"num_iterations": 1, "frames_per_batch": 8}}
    )
    with pytest.raises(RunError, match="gradient norm"):
        trainer.train()


class Gone(Counting):
    """Has no state once it is closed, like copies in processes of their own."""

    def state_dict(self) -> dict[str, Any] | None:
        if self.closed:
            raise RunError("its process was ended")
        return super().state_dict()


def test_a_run_that_is_over_is_saved_with_the_environments_it_ended_with() -> None:
    made = []

    def make(split: str) -> Gone:
        made.append(Gone([2, 3]))
        return made[-1]

    trainer = trained(ScenarioInstance(name="gone", make_environment=make))
    assert made[0].closed
    saved = trainer.state_dict()["collector"]["environment"]
    # Eight steps of episodes that are two and three steps long.
    assert saved["count"].tolist() == [0, 2]


def test_episodes_of_an_evaluation_may_be_longer_together_than_one_may(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluation, "LONGEST", 12)
    monkeypatch.setattr(evaluation, "LONG", 6)
    monkeypatch.setattr(evaluation, "_LOOK", 1)
    assert trained(task(lengths=[4, 4]), validate={"episodes": 20}).run.metrics
    assert "may be endless" not in caplog.text
    trained(task(lengths=[4, 8]), validate={"episodes": 20})
    assert "an episode of the evaluation goes on after 6 steps; it may be endless" in caplog.text
    with pytest.raises(RunError, match=r"did not end within 12 steps; .*max_episode_steps"):
        trained(task(lengths=[4, 500]), validate={"episodes": 20})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"_default": {"body": {"hidden": [5]}}}, "policy_body.0.weight has there shape [4, 1]"),
        ({"_default": {"body": {"hidden": [4, 4]}}}, "policy_body.2.weight has there no weights"),
        (
            {"agent": {"policy": "other", "body": {"hidden": [4]}}},
            "has the policies agent, and now",
        ),
    ],
)
def test_a_checkpoint_of_other_agents_is_refused(changed: dict[str, Any], said: str) -> None:
    state = trained(task(), agents={"_default": {"body": {"hidden": [4]}}}).state_dict()
    sections = {"agents": changed, "rl": {"num_iterations": 3, "frames_per_batch": 8}}
    for act in (Plain.train, Plain.evaluate):
        trainer = Plain(scenario_instance=task(), hyper_params=sections)
        trainer.load_state_dict(state)
        with pytest.raises(RunError) as caught:
            act(trainer)
        assert said in str(caught.value)
