"""What goes through ``torch.compile`` has the numbers of what does not; what cannot, goes on."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from plugrl.core.run.process.compiler import Payback
from plugrl.core.tensordict.learn import compiled_loss
from plugrl.core.tensordict.learn.compiled_loss import CompiledLoss, worth_compiling
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer
from tests.core.tensordict.test_rl_trainer import task


def ppo(*, iterations: int = 4, state: Any = None, **sections: Any) -> VanillaPpoTrainer:
    """Trained on batches of which other numbers of steps are real each time."""
    rl = {"num_iterations": iterations, "frames_per_batch": 36, "minibatch_size": 20}
    sections["rl"] = {**rl, "num_epochs": 2, "lr": 0.01, "compile": True, **sections.get("rl", {})}
    trainer = VanillaPpoTrainer(
        scenario_instance=task(lengths=[2, 3, 5], next_step=True),
        hyper_params={"validate": {"enabled": False}, **sections},
    )
    if state is not None:
        trainer.load_state_dict(copy.deepcopy(state))
    trainer.train()
    return trainer


def weights(trainer: Any) -> torch.Tensor:
    (agent,) = trainer._policies.policies.values()
    return torch.cat([parameter.detach().flatten() for parameter in agent.parameters()])


def is_compiled(trainer: Any) -> bool:
    (learner,) = trainer._learners.values()
    return bool(learner.is_compiled)


@pytest.mark.parametrize(
    ("setting", "steps", "compiles"),
    [
        (True, 1, True),
        (False, 200_000, False),
        # 20 seconds, at a millisecond a step.
        ("auto", 19_999, False),
        ("auto", 20_000, True),
    ],
)
def test_auto_compiles_in_long_runs(setting: Any, steps: int, compiles: bool) -> None:
    assert worth_compiling(setting, steps) is compiles


@pytest.mark.parametrize(
    ("minibatch_size", "steps"),
    [(20, 5 * 2 * 2), (None, 5 * 2), (7, 5 * 2 * 5)],  # of 36 rows: 2, 1 and 5 minibatches
)
def test_a_run_knows_its_optimizer_steps(minibatch_size: int | None, steps: int) -> None:
    asked: list[int] = []

    def asks(setting: Any, optimizer_steps: int) -> bool:
        asked.append(optimizer_steps)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugrl.core.tensordict.rl_trainer.worth_compiling", asks)
        ppo(iterations=5, rl={"minibatch_size": minibatch_size})
    assert asked == [steps]


def test_without_a_compiler_it_goes_on_and_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with caplog.at_level(logging.WARNING):
        trainer = ppo(iterations=2)
    said = [each.getMessage() for each in caplog.records if "rl.compile" in each.getMessage()]
    assert said == [
        "rl.compile: PpoLoss goes on uncompiled: there is no C++ compiler /nowhere/g++, "
        "which torch.compile needs; install it"
    ]
    assert not is_compiled(trainer)
    assert torch.equal(weights(trainer), weights(ppo(iterations=2, rl={"compile": False})))


class Apart(torch.nn.Module):
    """Its network is no submodule, so that a graph would hold the weights as constants."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.networks = [network]

    def forward(self, td: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.networks[0](td["x"]).mean()}


class Own(Apart):
    """Takes its gradients itself."""

    def backward(self, losses: dict[str, torch.Tensor]) -> None:
        losses["loss"].backward()


@pytest.mark.parametrize(("kind", "said"), [(Apart, "submodules"), (Own, "in backward")])
def test_a_loss_whose_gradients_would_be_lost_is_not_compiled(
    kind: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = torch.nn.Linear(2, 1)
    loss = CompiledLoss(kind(network), {"agent": list(network.parameters())})
    assert loss({"x": torch.ones(3, 2)}) is None  # type: ignore[arg-type]
    assert said in caplog.text
    assert network.weight.grad is None


class Scaled(torch.nn.Module):
    """Its loss has a slope that is a number of Python."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, td: Any) -> dict[str, torch.Tensor]:
        return {"loss_line": self.slope * self.weight * td["x"].mean()}


def slope_of(loss: CompiledLoss, module: Scaled) -> float:
    assert loss(TensorDict({"x": torch.ones(3)}, [3])) is not None
    assert module.weight.grad is not None
    return module.weight.grad.item()


@pytest.mark.slow
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_graph_is_that_of_its_own_module(is_ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of modules of plugrl and torch, nothing is looked at before each call.
    monkeypatch.setattr(Scaled, "__module__", "plugrl.testing" if is_ours else "elsewhere")
    modules = [Scaled(2.0), Scaled(5.0)]
    losses = [CompiledLoss(m, {"a": [m.weight]}, dynamic=False) for m in modules]
    found = [slope_of(loss, module) for loss, module in zip(losses, modules, strict=True)]
    assert found == [2.0, 5.0]
    # What lies otherwise in memory is not read as the first rows were.
    apart = TensorDict({"x": torch.tensor([1.0, 9.0, 1.0, 9.0, 1.0])[::2]}, [3])
    assert losses[0](apart) is not None
    assert modules[0].weight.grad is not None
    assert modules[0].weight.grad.item() == 2.0
    if not is_ours:
        # What others wrote may change what it likes.
        modules[0].slope = 3.0
        assert slope_of(losses[0], modules[0]) == 3.0


def test_how_a_run_began_decides_how_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    state = ppo(iterations=1, rl={"compile": "auto"}).state_dict()
    assert state["learners"]["agent"]["compiled"] is False
    # Longer than what auto compiles, now.
    monkeypatch.setattr(compiled_loss, "PAYBACK", Payback(cost=1.0, saving=1.0))
    resumed = ppo(iterations=2, state=state, rl={"compile": "auto"})
    assert not is_compiled(resumed)
    del state["learners"]["agent"]["compiled"]  # as 0.1 saved it
    assert not is_compiled(ppo(iterations=2, state=state, rl={"compile": "auto"}))


@pytest.mark.integration
@pytest.mark.parametrize(
    "sections",
    [
        {"rl": {"clip_value": True}, "ppo": {"entropy_eps": 0.01, "anneal_clip": True}},
        pytest.param(
            {"rl": {"use_shared_body": True, "minibatch_size": None}}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"rl": {"loss_critic_type": "smooth_l1", "max_grad_norm": None}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_compiled_numbers_are_those_of_before(sections: dict[str, Any]) -> None:
    compiled = ppo(**sections)
    plain = ppo(**{**sections, "rl": {**sections["rl"], "compile": False}})
    assert is_compiled(compiled)
    assert not is_compiled(plain)
    torch.testing.assert_close(weights(compiled), weights(plain), rtol=1e-4, atol=1e-5)
    names = [name for name in plain.run.metrics[-1] if name.startswith("train/")]
    for name in names:
        expected = pytest.approx(plain.run.metrics[-1][name], rel=1e-3, abs=1e-5)
        assert compiled.run.metrics[-1][name] == expected, name


@pytest.mark.integration
def test_a_resumed_run_equals_one_that_was_not_interrupted() -> None:
    whole, first = ppo(iterations=4), ppo(iterations=2)
    # In a process of its own, the graph would be made anew.
    torch._dynamo.reset()
    second = ppo(iterations=4, state=first.state_dict())
    assert is_compiled(second)
    assert torch.equal(weights(second), weights(whole))


@pytest.mark.integration
def test_what_cannot_be_compiled_goes_on_as_it_would_have(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # The weight of the penalty is a number that Python reads and steers.
    penalty = {"loss_type": "kl_penalty"}
    trainer = ppo(ppo=penalty)
    assert caplog.text.count("PpoLoss goes on uncompiled") == 1
    assert not is_compiled(trainer)
    assert torch.equal(weights(trainer), weights(ppo(ppo=penalty, rl={"compile": False})))
