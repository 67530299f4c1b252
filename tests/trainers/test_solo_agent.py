"""Agents that learn labels alone: what learns, from what, and who goes on with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.loaded_run import find_checkpoint, open_checkpoint
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.scenarios.image_classification.scenario import ImageClassificationScenario
from plugrl.trainers.solo_agent import (
    LabelLoss,
    SoloAgentTrainer,
    accuracies,
    labelled_observation,
    split_of,
)

FEW: dict[str, Any] = {"num_envs": 2, "max_train_size": 32}
PROTOCOL = {"type": "nip", "max_message_rounds": 2}


def made(scenario: dict[str, Any] = FEW, seed: int = 0, **sections: Any) -> SoloAgentTrainer:
    instance = ImageClassificationScenario(scenario).build(seed)
    return SoloAgentTrainer({}, instance, hyper_params={"seed": seed, **sections})


def weights(trainer: SoloAgentTrainer) -> dict[str, torch.Tensor]:
    """All weights, by agent and name."""
    return {
        f"{name}/{key}": value.clone()
        for name, agent in trainer.agents.items()
        for key, value in agent.state_dict().items()
    }


def trained(**sections: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Weights before and after training."""
    begun = made(**{**sections, "solo_agent": {"num_epochs": 0}})
    begun.train()
    trainer = made(**sections)
    trainer.train()
    return weights(begun), weights(trainer)


@pytest.mark.parametrize("body", ["mlp", "image_latent"])
def test_every_weight_of_bodies_and_heads_learns(body: str) -> None:
    before, after = trained(
        agents={"_default": {"body": {"type": body}}}, solo_agent={"num_epochs": 2}
    )
    assert {name.split("/")[1].split(".")[0] for name in after} == {"body", "solo_head"}
    assert {name.split("/")[0] for name in after} == {"prover", "verifier"}
    # Of 32 items a ReLU may see none, but a layer as a whole always sees some.
    assert [name for name in after if torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize(
    "body", ["mlp", pytest.param("image_latent", marks=pytest.mark.integration)]
)
def test_32_pictures_are_learned_by_heart(body: str) -> None:
    trainer = made(
        agents={"_default": {"body": {"type": body}}},
        solo_agent={"num_epochs": 15, "batch_size": 8, "learning_rate": 0.01, "test_size": 0.0},
    )
    metrics = trainer.train().metrics
    assert metrics["train/prover/accuracy"] > 0.95
    assert metrics["train/verifier/accuracy"] > 0.95
    assert "validation/accuracy" not in metrics
    scored = accuracies(trainer.agents["prover"], trainer.scenario_instance.labelled("train"))
    assert scored["accuracy"] > 0.95


def test_bodies_rest_where_their_factor_is_0_unless_that_is_overridden() -> None:
    agents = {"prover": {"body_lr_factor": {"actor": 0.0}}}
    before, after = trained(agents=agents, solo_agent={"num_epochs": 1})
    kept = {name.partition(".")[0] for name in after if torch.equal(before[name], after[name])}
    assert kept == {"prover/body"}
    _, after = trained(agents=agents, solo_agent={"num_epochs": 1, "body_lr_factor_override": True})
    assert [name for name in after if torch.equal(before[name], after[name])] == []


def test_an_agent_at_random_is_passed_over() -> None:
    trainer = made(agents={"prover": {"is_random": True}}, solo_agent={"num_epochs": 1})
    metrics = trainer.train().metrics
    assert metrics["validation/accuracy"] == metrics["validation/verifier/accuracy"]
    assert not any("prover" in name for name in metrics)


def test_items_are_held_out_by_the_seed_alone() -> None:
    train, held_out = split_of(50, 0.3, 7)
    assert len(held_out) == 15
    assert sorted([*train, *held_out]) == list(range(50))
    assert [list(part) for part in split_of(50, 0.3, 7)] == [list(train), list(held_out)]
    assert list(split_of(50, 0.3, 8)[1]) != list(held_out)


def test_other_draws_do_not_change_a_run() -> None:
    first = made(solo_agent={"num_epochs": 2})
    first.train()
    np.random.seed(5)
    torch.manual_seed(5)
    second = made(solo_agent={"num_epochs": 2})
    second.train()
    assert all(torch.equal(w, weights(second)[name]) for name, w in weights(first).items())


class Table(torch.nn.Module):
    """An agent whose logits are what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        layout = Layout({"logits": (2,), "said": (3,)})
        self.spaces = AgentSpaces(layout.space(), layout.space(), layout)
        self.name = "table"

    def label_logits(self, observation: torch.Tensor) -> torch.Tensor:
        return observation[..., :2] * self.scale


ITEMS = Labelled(
    {"logits": np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])},
    np.array([0, 1, 1, 0]),
    np.array([0, 0, 1, 1]),
    ("near", "far", "absent"),
)
#: -log of the probability of the label: of 1/2, of 1/(1+e^2), of 1/(1+e^-1) and 1/(1+e^-3).
LOSS = (math.log(2) + math.log1p(math.e**2) + math.log1p(math.e**-1) + math.log1p(math.e**-3)) / 4


def test_loss_and_accuracy_by_hand() -> None:
    agent: Any = Table()
    rows = {
        "observation": labelled_observation(agent, ITEMS),
        "label": torch.from_numpy(ITEMS.labels),
    }
    given = LabelLoss(agent)(rows)  # type: ignore[arg-type]
    assert given["loss_label"].item() == pytest.approx(LOSS)
    # Of equal logits the first is taken.
    assert given["accuracy"].item() == 0.75
    expected = {"accuracy": 0.75, "loss": LOSS, "accuracy/near": 0.5, "accuracy/far": 1.0}
    assert accuracies(agent, ITEMS) == pytest.approx(expected)


def test_what_was_not_said_is_0() -> None:
    seen = labelled_observation(Table(), ITEMS)  # type: ignore[arg-type]
    assert seen.tolist() == [[*row, 0.0, 0.0, 0.0] for row in ITEMS.arrays["logits"].tolist()]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.array([0, 1])}, "2 labels, but 4 of logits"),
        ({"groups": None}, "names without groups"),
        ({"labels": np.array([0, 1, -1, 0])}, "negative label"),
        ({"groups": np.array([0, 0, 3, 1])}, "beyond its 3 names"),
    ],
)
def test_data_that_do_not_fit_together_are_refused(change: dict[str, Any], said: str) -> None:
    fields = {name: getattr(ITEMS, name) for name in ("arrays", "labels", "groups", "group_names")}
    with pytest.raises(ContractError, match=said):
        Labelled(**{**fields, **change})


def test_a_task_without_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match="'maze' has no labels to learn from"):
        ScenarioInstance(name="maze").labelled("train")
    tree = {"trainer": "solo_agent", "scenario": {"type": "gymnasium", "id": "CartPole-v1"}}
    with pytest.raises(ConfigError, match=r"trainer.*'agent' sees no items that have labels"):
        plugrl.train(tree)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run ``alone`` of three epochs."""
    folder = tmp_path_factory.mktemp("solo") / "runs"
    plugrl.train(_tree(folder, experiment_name="alone"))
    return folder


def _tree(folder: Path, **sections: Any) -> dict[str, Any]:
    tree = {
        "trainer": "solo_agent",
        "scenario": {"type": "image_classification", **FEW, "protocol": PROTOCOL},
        "solo_agent": {"num_epochs": 3, "batch_size": 8},
        "agents": {"_default": {"body": {"hidden": [8]}}},
        "settings": {"progress": "none", "checkpoint_every": 1, "runs_folder": str(folder)},
    }
    return tree | sections


def _saved(run: Any, step: str = "newest") -> dict[str, dict[str, torch.Tensor]]:
    state = checkpoint.load(find_checkpoint(run.folder, step))["trainer"]
    policies = state.get("child", state)["policies"]
    return {name: policy["weights"] for name, policy in policies.items()}


def test_bodies_of_its_runs_can_be_loaded(runs: Path) -> None:
    alone = _saved(plugrl.load_run("alone", runs))
    instance = ImageClassificationScenario({**FEW, "protocol": PROTOCOL}).build(0)
    section = {"body": {"hidden": [8]}, "load_from": "alone"}
    for shared, parts in ((True, ["body"]), (False, ["policy_body", "value_body"])):
        built = build_agents(
            instance.test_environment.spaces,
            {"_default": {**section, "load_parts": parts}},
            shared_body=shared,
            seed=9,
            runs_folder=str(runs),
        )
        for name, agent in built.policies.items():
            for part in parts:
                for key, value in agent.parts[part].state_dict().items():
                    assert torch.equal(value, alone[name][f"body.{key}"])


def test_the_next_phase_begins_with_its_bodies(tmp_path: Path) -> None:
    phases = [
        {"name": "alone", "trainer": {"type": "solo_agent"}},
        {
            "name": "together",
            "trainer": {"type": "vanilla_ppo"},
            "rl": {"num_iterations": 1, "frames_per_batch": 32},
        },
    ]
    tree = _tree(tmp_path, trainer={"type": "sequence", "phases": phases})
    tree["settings"] |= {"keep_checkpoints": None}
    run = plugrl.train(tree | {"validate": {"every": 1}, "experiment_name": "both"})
    # Epochs 0 to 3, then iteration 0, before anything was learned there.
    alone, together = _saved(run, "3"), _saved(run, "4")
    scores = [
        checkpoint.read_manifest(find_checkpoint(run.folder, str(s)))["score"] for s in range(6)
    ]
    assert [score is not None for score in scores] == [False] * 5 + [True]
    for name in ("prover", "verifier"):
        for part in ("policy_body", "value_body"):
            assert torch.equal(together[name][f"{part}.0.weight"], alone[name]["body.0.weight"])


def test_a_phase_whose_policies_have_other_names_is_refused(tmp_path: Path) -> None:
    agents = {"prover": {"policy": "merlin"}, "verifier": {"policy": "arthur"}}
    rl = {"num_iterations": 1, "frames_per_batch": 32}
    phases = [
        {"name": "alone", "trainer": {"type": "solo_agent"}},
        {"name": "other", "trainer": {"type": "vanilla_ppo"}, "agents": agents, "rl": rl},
    ]
    tree = _tree(tmp_path, trainer={"type": "sequence", "phases": phases})
    with pytest.raises(RunError, match="trained prover, verifier, and this one has merlin, arth"):
        plugrl.train(tree | {"validate": {"enabled": False}})


def test_a_saved_state_is_evaluated_on_the_tests(runs: Path) -> None:
    run = plugrl.load_run("alone", runs)
    with open_checkpoint("alone", "validation", runs_folder=runs, alone=False) as saved:
        scored = saved.trainer.evaluate()
    assert scored["validation/accuracy"] == run.metrics[-1]["test/accuracy"]
    assert scored["validation/prover/loss"] == run.metrics[-1]["test/prover/loss"]
