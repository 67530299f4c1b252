"""Loss modules of TorchRL that ask more of a policy than its densities."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torchrl.objectives import (
    ClipPPOLoss,
    DiscreteIQLLoss,
    DiscreteSACLoss,
    HardUpdate,
    KLPENPPOLoss,
    SoftUpdate,
    ValueEstimators,
)

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.agents.distributions.choice import distribution_for
from plugrl.core.tensordict.agents.operators import ParametersDistribution
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.off_policy import OffPolicyTrainer
from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer
from plugrl.testing import tiny
from plugrl.trainers.dqn import DqnTrainer
from tests.core.tensordict.counting import Counting


def values(key: str) -> TensorDictModule:
    return TensorDictModule(torch.nn.Linear(1, 2), in_keys=["observation"], out_keys=[key])


class WithTargets(TensorDictRlTrainer):
    """A loss with target networks that move the tenth part of their way."""

    moved = True

    def make(self) -> Any:
        raise NotImplementedError

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        loss = self.make()
        loss.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
        if self.moved:
            loss.update_targets = SoftUpdate(loss, tau=0.1).step
        return loss, None


class DiscreteSac(WithTargets):
    def make(self) -> Any:
        return DiscreteSACLoss(
            actor_network=self.policy_operator,
            qvalue_network=values("action_value"),
            num_actions=2,
            action_space="categorical",
        )


class DiscreteIql(WithTargets):
    def make(self) -> Any:
        return DiscreteIQLLoss(
            self.policy_operator,
            qvalue_network=values("state_action_value"),
            value_network=self.value_operator,
            action_space="categorical",
        )


class Unmoved(DiscreteSac):
    moved = False


class Copied(DiscreteSac):
    """Targets are copies, as of every third step."""

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        loss, gae = super()._get_loss_module_and_gae()
        loss.update_targets = HardUpdate(loss, value_network_update_interval=2).step
        return loss, gae


class Penalty(TensorDictRlTrainer):
    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        loss = KLPENPPOLoss(self.policy_operator, self.value_operator, increment=1.0, decrement=1.0)
        loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)
        return loss, loss.value_estimator


def made(trainer: type[TensorDictRlTrainer], **rl: Any) -> Any:
    section = {"num_iterations": 1, "frames_per_batch": 10, "minibatch_size": 4, "lr": 0.05, **rl}
    return trainer(
        scenario_instance=ScenarioInstance(
            name="counting", make_environment=lambda split: Counting([2, 3])
        ),
        hyper_params={"rl": {"num_epochs": 1, **section}, "validate": {"episodes": 1}},
    )


@pytest.mark.parametrize("kind", [DiscreteSac, DiscreteIql])
def test_target_networks_follow_after_each_step(kind: type[WithTargets]) -> None:
    trainer = made(kind)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(loss: Any) -> Any:
        move = loss.update_targets

        def update() -> None:
            move()
            name = "qvalue_network_params"
            networks = (getattr(loss, each) for each in (f"target_{name}", name))
            target, source = (each.flatten_keys(".")["module.weight"] for each in networks)
            seen.append((target.detach().clone(), source.detach().clone()))

        loss.update_targets = update
        return loss

    made_loss = trainer._get_loss_module_and_gae
    trainer._get_loss_module_and_gae = lambda: (watched(made_loss()[0]), None)
    trainer.train()
    # 10 rows in minibatches of about 4.
    assert len(seen) == 2
    (before, _), (after, source) = seen
    assert not torch.equal(before, source)
    torch.testing.assert_close(after, 0.9 * before + 0.1 * source)


class FromOldSteps(DqnTrainer):
    """Discrete soft actor-critic on old steps, with metrics that are no tensors of torch."""

    _update = OffPolicyTrainer._update

    def _stepped(self, steps: int) -> None:
        """Targets move after each update."""

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        loss = DiscreteSACLoss(
            actor_network=self.policy_operator,
            qvalue_network=values("action_value"),
            num_actions=2,
            action_space="categorical",
        )
        loss.make_value_estimator(ValueEstimators.TD0, gamma=0.9)
        loss.update_targets = SoftUpdate(loss, tau=0.1).step
        loss.register_forward_hook(
            lambda module, given, losses: {**losses, "number": 2.5, "rows": torch.arange(3)}
        )
        return loss, None


def test_old_steps_are_enough_for_losses_of_torchrl() -> None:
    trainer = made(FromOldSteps, num_epochs=4, frames_per_batch=200)
    trainer.train()
    metrics = trainer.run.metrics[-1]
    assert metrics["train/updates"] > 0
    assert (metrics["train/number"], metrics["train/rows"]) == (2.5, 1.0)


def test_target_networks_that_nothing_moves_are_refused() -> None:
    with pytest.raises(
        ContractError,
        match=r"DiscreteSACLoss, whose target network of qvalue_network nothing moves",
    ):
        made(Unmoved).train()


@pytest.mark.parametrize(("name", "refused"), [("Unmoved", True), ("Copied", False)])
def test_validate_says_it_before_a_run_begins(tmp_path: Path, name: str, refused: bool) -> None:
    config = tiny.config("reinforce", tmp_path, TensorDictRlTrainer.conformance)
    named = {"module_path": __file__, "class_name": name}
    config["trainer"] = {f"custom_trainer_{key}": value for key, value in named.items()}
    drawn = torch.random.get_rng_state()
    if refused:
        with pytest.raises(ConfigError, match=r"trainer.*DiscreteSACLoss.* nothing moves; .*Soft"):
            prepare(config)
    else:
        prepare(config)
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_the_penalty_is_on_the_distance_from_the_policy_that_acted() -> None:
    # Of one step there is none yet; of three minibatches of unequal size the later ones move away.
    whole = made(Penalty, minibatch_size=None)
    whole.train()
    assert whole.run.metrics[-1]["train/kl"] == pytest.approx(0, abs=1e-7)
    parts = made(Penalty, minibatch_size=3)
    parts.train()
    assert parts.run.metrics[-1]["train/kl"] > 1e-6


def test_choices_have_the_probabilities_of_torch() -> None:
    params = torch.tensor([[0.0, math.log(3.0)]])
    found = ParametersDistribution(params, distribution_for(spaces.Discrete(2, start=-1)))
    torch.testing.assert_close(found.probs, torch.tensor([[0.25, 0.75]]))
    torch.testing.assert_close(found.logits, torch.tensor([[0.25, 0.75]]).log())
    normal = ParametersDistribution(torch.zeros(1, 2), distribution_for(spaces.Box(-1, 1, (1,))))
    assert not hasattr(normal, "logits")
    with pytest.raises(AttributeError, match="no probs: Normal is not over one of several"):
        _ = normal.probs


def expected(space: spaces.Space[Any], params: torch.Tensor) -> list[Any]:
    if isinstance(space, spaces.Box):
        mean, log_std = params.chunk(2, -1)
        return [Independent(Normal(mean, log_std.exp()), 1)]
    if isinstance(space, spaces.MultiBinary):
        return [Independent(torch.distributions.Bernoulli(logits=params), 1)]
    counts = [3] if isinstance(space, spaces.Discrete) else [2, 3]
    return [Categorical(logits=part) for part in params.split(counts, -1)]


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-2, 2, (2,)),
    ],
)
def test_divergences_are_those_of_torch_and_of_samples(
    space: spaces.Space[Any], squash: bool
) -> None:
    of = distribution_for(space, squash=squash)
    rng = torch.Generator().manual_seed(3)
    one, other = (torch.randn(4, of.parameters, generator=rng) * 0.5 for _ in range(2))
    found = kl_divergence(ParametersDistribution(one, of), ParametersDistribution(other, of))
    pairs = zip(expected(space, one), expected(space, other), strict=True)
    by_torch = torch.stack([kl_divergence(p, q) for p, q in pairs]).sum(0)
    torch.testing.assert_close(found, by_torch)
    # Several draws of each, as losses take them that estimate a divergence.
    p, q = ParametersDistribution(one, of), ParametersDistribution(other, of)
    torch.manual_seed(0)
    drawn = p.sample((20_000,))
    estimate = (p.log_prob(drawn) - q.log_prob(drawn)).mean(0)
    np.testing.assert_allclose(estimate, found, atol=0.05)


@pytest.mark.parametrize("kind", [DiscreteSac, Copied, Penalty])
def test_a_resumed_run_has_the_target_networks_and_weights_of_one_that_was_not_stopped(
    kind: type[TensorDictRlTrainer],
) -> None:
    def run(iterations: int, state: Any = None) -> Any:
        torch.manual_seed(0)
        trainer = made(kind, num_iterations=iterations)
        if state is not None:
            trainer.load_state_dict(copy.deepcopy(state))
        trainer.train()
        return trainer.state_dict()

    whole, resumed = run(4), run(4, run(2))
    for path in (("learners", "agent", "loss"), ("policies", "agent", "weights")):
        one, other = (
            functools.reduce(lambda tree, key: tree[key], path, s) for s in (whole, resumed)
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in one.items())


class Clipped(TensorDictRlTrainer):
    """PPO of TorchRL, with its advantages or ours."""

    ours = True

    def _get_loss_module_and_gae(self) -> tuple[torch.nn.Module, Any]:
        rl = self.hyper_params.rl
        loss = ClipPPOLoss(self.policy_operator, self.value_operator, entropy_coeff=0.0)
        loss.make_value_estimator(ValueEstimators.GAE, gamma=rl.gamma, lmbda=rl.lmbda)
        ours = GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
        return loss, ours if self.ours else loss.value_estimator


class ClippedByTorchrl(Clipped):
    ours = False


def trained(cls: type[Clipped], task: ScenarioInstance, **rl: Any) -> list[dict[str, Any]]:
    sections = {"rl": {"num_iterations": 3, "lr": 0.01, **rl}, "validate": {"enabled": False}}
    trainer = cls(scenario_instance=task, hyper_params=sections)
    trainer.train()
    return trainer.run.metrics


def test_our_advantages_ask_the_critic_that_a_loss_of_torchrl_trains() -> None:
    """Its losses keep the weights beside an empty copy of the network."""
    lines = [
        trained(
            cls,
            ScenarioInstance(name="counting", make_environment=lambda split: Counting([3, 5] * 4)),
            frames_per_batch=64,
        )
        for cls in (Clipped, ClippedByTorchrl)
    ]
    ours, theirs = (
        [
            value
            for line in run
            for name, value in line.items()
            if name.startswith(("train/loss", "rollout/mean"))
        ]
        for run in lines
    )
    assert len(theirs) >= 3 * 3
    assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_where_agents_take_turns_a_loss_of_torchrl_learns_from_our_advantages_alone() -> None:
    scenario = default_registry().load(default_registry().resolve("scenario", "pettingzoo"))
    task = scenario({"environment": "tictactoe_v3", "num_envs": 2}).build(seed=0)
    assert "train/player_1/loss_critic" in trained(Clipped, task, frames_per_batch=32)[-1]
    said = (
        r"GAE takes each step .* return GeneralisedAdvantage\(self\.agent, rl\.gamma, rl\.lmbda\)"
    )
    with pytest.raises(ConfigError, match=said):
        trained(ClippedByTorchrl, task, frames_per_batch=32)
