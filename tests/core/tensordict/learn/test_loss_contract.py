"""What a loss module must give is said in its own terms, and its own weights learn too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plugrl.core.errors import ContractError
from plugrl.core.tensordict.off_policy import OffPolicyTrainer
from plugrl.core.tensordict.sections import TENSORDICT
from plugrl.trainers.dqn import DqnConfig, DqnRlConfig
from tests.core.tensordict.test_rl_trainer import LogLikelihood, Plain, task

RL = {"num_iterations": 2, "frames_per_batch": 8, "minibatch_size": 4, "num_epochs": 1}


class Given(torch.nn.Module):
    """Gives what a function makes of the loss that would be right."""

    def __init__(self, agent: Any, make: Any) -> None:
        super().__init__()
        self._right, self._make = LogLikelihood(agent), make

    def forward(self, td: Any) -> Any:
        return self._make(self._right(td)["loss_objective"])


def run(pair: Any) -> Plain:
    class Trainer(Plain):
        def _get_loss_module_and_gae(self) -> Any:
            return pair(self.agent)

    trainer = Trainer(
        scenario_instance=task(), hyper_params={"rl": RL, "validate": {"episodes": 1}}
    )
    trainer.train()
    return trainer


WRONG = [
    (lambda loss: None, "loss module Given gave None; return a mapping"),
    (lambda loss: loss, "gave a tensor of float32 with shape []; return a mapping"),
    (lambda loss: [loss], "gave a list of 1; return a mapping"),
    (lambda loss: {}, "can be differentiated (it gave: nothing)"),
    (lambda loss: {"objective": loss}, "can be differentiated (it gave: objective)"),
    (lambda loss: {"loss_a": loss.detach()}, "can be differentiated (it gave: loss_a)"),
    (lambda loss: {"loss_a": 1.0}, "gave a float as loss_a; return one real number"),
    (lambda loss: {"loss_a": loss.expand(3)}, "float32 with shape [3] as loss_a"),
    (lambda loss: {"loss_a": loss.to(torch.complex64)}, "complex64 with shape [] as loss_a"),
    (lambda loss: {"loss_a": loss, "name": "x"}, "gave a str as name; metrics are numbers"),
]


@pytest.mark.parametrize(("make", "said"), WRONG)
def test_what_cannot_be_differentiated_is_told(make: Any, said: str) -> None:
    with pytest.raises(ContractError) as caught:
        run(lambda agent: (Given(agent, make), None))
    assert said in str(caught.value)


@pytest.mark.parametrize(("make", "said"), [WRONG[0], WRONG[5]])
def test_learners_from_old_steps_tell_it_too(make: Any, said: str) -> None:
    class Trainer(OffPolicyTrainer):
        sections = {**TENSORDICT, "rl": DqnRlConfig, "dqn": DqnConfig}
        section = "dqn"

        def _get_loss_module_and_gae(self) -> Any:
            return Given(self.agent, make), None

    rl = {"num_iterations": 1, "frames_per_batch": 32, "minibatch_size": 4}
    sections = {"rl": rl, "dqn": {"learning_starts": 0}, "validate": {"episodes": 1}}
    with pytest.raises(ContractError) as caught:
        Trainer(scenario_instance=task(), hyper_params=sections).train()
    assert said in str(caught.value)


class Backward(LogLikelihood):
    """Would make its gradient itself, as objectives of other frameworks do."""

    def backward(self, losses: Any) -> None:
        raise AssertionError("nothing calls this")


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (lambda agent: None, "gave None; return two"),
        (LogLikelihood, "gave a LogLikelihood; return two"),
        (lambda agent: (lambda td: {}, None), "gave a function as loss module; return two"),
        (lambda agent: (LogLikelihood(agent), 0.9), "gave a float to estimate advantages"),
        (lambda agent: (Backward(agent), None), "gave Backward, whose method backward nothing c"),
    ],
)
def test_what_is_no_loss_module_is_told(pair: Any, said: str) -> None:
    with pytest.raises(
        ContractError, match=r"Trainer\._get_loss_module_and_gae\(\) gave"
    ) as caught:
        run(pair)
    assert said in str(caught.value)


def test_metrics_may_be_plain_numbers() -> None:
    trainer = run(lambda agent: (Given(agent, lambda loss: {"loss_a": loss, "n": 3}), None))
    assert [m["train/n"] for m in trainer.run.metrics if "train/n" in m] == [3, 3]


class Telling(LogLikelihood):
    """Tells a number of its own, and one of each of three rows."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, td: Any) -> dict[str, torch.Tensor]:
        told = {"scale": self.scale, "each": torch.tensor([1, 2, 6])}
        return {**super().forward(td), **told, "n": 3}  # type: ignore[dict-item]


def test_learners_from_old_steps_report_means_and_change_nothing_that_they_were_told() -> None:
    class Trainer(OffPolicyTrainer):
        sections = {**TENSORDICT, "rl": DqnRlConfig, "dqn": DqnConfig}
        section = "dqn"

        def _get_loss_module_and_gae(self) -> Any:
            modules.append(Telling(self.agent))
            return modules[-1], None

    modules: list[Telling] = []
    rl = {"num_iterations": 2, "frames_per_batch": 32, "minibatch_size": 4}
    sections = {
        "rl": rl,
        "dqn": {"learning_starts": 0, "train_freq": 1},
        "validate": {"enabled": False},
    }
    trainer = Trainer(scenario_instance=task(), hyper_params=sections)
    trainer.train()
    (module,) = modules
    assert float(module.scale) == 1.5
    assert len(module.seen) > 10
    for numbers in trainer.run.metrics[-2:]:
        found = [numbers[f"train/{name}"] for name in ("scale", "each", "n")]
        assert found == [1.5, 3.0, 3.0]
    # Nor are the graphs of losses kept until the report.
    (learner,) = trainer._active_learners.values()
    learner.update(module(module.seen[0]), lambda *found: None)
    sums = learner._means._sums.values()
    assert sums
    assert not any(isinstance(total, torch.Tensor) and total.requires_grad for total in sums)


class Scaled(LogLikelihood):
    """Has a weight of its own, which is to become 5."""

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self.own = torch.nn.Parameter(torch.zeros(2))

    def forward(self, td: Any) -> dict[str, torch.Tensor]:
        return {**super().forward(td), "loss_own": (self.own - 5).square().sum()}


def test_weights_of_a_loss_module_learn_and_are_saved_with_their_moments() -> None:
    trainer = run(lambda agent: (Scaled(agent), None))
    module: Any = trainer._learners["agent"].loss_module
    # Adam moves by the learning rate in each of the four steps.
    assert torch.allclose(module.own, torch.full((2,), 4 * 3e-4), rtol=1e-3)
    saved = trainer._learners["agent"].state_dict()
    assert torch.equal(saved["loss"]["own"], module.own)
    again = run(lambda agent: (Scaled(agent), None))._learners["agent"]
    torch.nn.init.zeros_(again.loss_module.own)  # type: ignore[arg-type]
    again.load_state_dict(saved)
    assert torch.equal(again.loss_module.own, module.own)  # type: ignore[arg-type]
