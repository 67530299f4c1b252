"""spg learns what those who learn alone cannot, and reads what it says that it reads."""

from typing import Any

import pytest
import torch
import yaml

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.scenario import ScenarioInstance
from plugrl.trainers.spg import SpgLoss, SpgTrainer
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer
from tests.trainers.games import COMMITMENT, MatrixGame, SequentialGame

LEADER = [["first"], ["second"]]
CARTPOLES = {
    "type": "pettingzoo",
    "environment": "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles",
    "num_envs": 2,
}


def made(
    spg: dict[str, Any] | None,
    *,
    game: type[MatrixGame] = MatrixGame,
    payoffs: Any = COMMITMENT,
    agents: dict[str, Any] | None = None,
    seed: int = 0,
    **rl: Any,
) -> Any:
    instance = ScenarioInstance(
        name="game", make_environment=lambda split: game(*payoffs, num_envs=128)
    )
    trainer, sections = (VanillaPpoTrainer, {}) if spg is None else (SpgTrainer, {"spg": spg})
    settings = {"frames_per_batch": 256, "num_epochs": 1, "minibatch_size": None, "lr": 0.01}
    return trainer(
        scenario_instance=instance,
        hyper_params={
            "rl": {"num_iterations": 3, "gamma": 1.0, **settings, **rl},
            "agents": {"_default": {"body": {"type": "mlp", "hidden": [8]}}, **(agents or {})},
            "validate": {"enabled": False},
            "seed": seed,
            **sections,
        },
    )


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{key}": value.clone()
        for name, agent in trainer.agents.items()
        for key, value in agent.state_dict().items()
    }


def seconds(trainer: Any) -> list[float]:
    """How likely each agent is to choose its second action."""
    seen = torch.ones(1, 1)
    return [a.policy(seen).softmax(-1)[0, 1].item() for a in trainer.agents.values()]


@pytest.mark.integration
@pytest.mark.parametrize(
    "game", [pytest.param(MatrixGame, marks=pytest.mark.integration), SequentialGame]
)
def test_a_leader_commits_itself_where_that_pays(game: type[MatrixGame]) -> None:
    found = {}
    for name, spg in {
        "alone": {"variant": "spg", "stackelberg_sequence": [["first", "second"]]},
        "spg": {"variant": "spg", "stackelberg_sequence": LEADER},
        "lola": {"variant": "lola", "stackelberg_sequence": LEADER, "lookahead": 1.0},
    }.items():
        trainer = made({"entropy_eps": 0.3, **spg}, game=game, num_iterations=20, lr=0.015)
        trainer.train()
        found[name] = seconds(trainer)
    # The row that is better against every column, and the column that is best against it.
    assert max(found["alone"]) < 0.1
    # Likely enough to make the other column the better one, which pays more.
    for name, row, column in (("spg", 0.4, 0.9), ("lola", 0.25, 0.8)):
        assert found[name][0] > row
        assert found[name][1] > column


@pytest.mark.parametrize("game", [MatrixGame, SequentialGame])
def test_nobody_to_respond_makes_it_ppo(game: type[MatrixGame]) -> None:
    alone = {"variant": "pspg", "stackelberg_sequence": [["first", "second"]]}
    trainers = [made(each, game=game) for each in (alone, None)]
    for trainer in trainers:
        trainer.train()
    for name, value in weights(trainers[0]).items():
        assert torch.allclose(value, weights(trainers[1])[name], atol=1e-5), name


@pytest.mark.parametrize("variant", ["spg", "pspg", "lola", "pola", "sos", "psos"])
def test_every_variant_shapes(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, init = [], SpgLoss.__init__

    def noted(self: Any, agent: Any, *, clip_epsilon: float | None = None, **rest: Any) -> None:
        bounds.append(clip_epsilon)
        init(self, agent, clip_epsilon=clip_epsilon, **rest)

    monkeypatch.setattr(SpgLoss, "__init__", noted)
    spg = {"variant": variant, "stackelberg_sequence": LEADER, "lookahead": 1.0}
    trainer = made(spg, game=SequentialGame, num_epochs=2, minibatch_size=64)
    trainer.train()
    metrics = trainer.run.metrics[-1]
    assert metrics["train/first/shaping_norm"] > 1e-4
    assert metrics["train/second/shaping_norm"] == 0
    assert ("train/shaping_part" in metrics) == (variant in ("sos", "psos"))
    # The proximal ones bound the ratio, as PPO does.
    assert set(bounds) == {None if variant in ("spg", "lola", "sos") else 0.2}


def test_with_no_order_players_that_look_ahead_shape_each_other() -> None:
    trainer = made({"variant": "lola", "lookahead": 1.0})
    trainer.train()
    metrics = trainer.run.metrics[-1]
    assert min(metrics[f"train/{n}/shaping_norm"] for n in ("first", "second")) > 1e-4
    with pytest.raises(ConfigError, match="stackelberg_sequence is missing: spg needs to know"):
        made({"variant": "spg"}).train()


def test_the_additional_term_counts_where_it_is_asked_for() -> None:
    lola = {"variant": "lola", "stackelberg_sequence": LEADER, "lookahead": 1.0}
    found = []
    for term in (True, False):
        trainer = made({**lola, "additional_lola_term": term})
        trainer.train()
        found.append(weights(trainer)["first/policy_head.layers.0.weight"])
    assert not torch.equal(*found)


@pytest.mark.parametrize("ihvp", ["exact", "nystrom", "conjugate_gradient", "neumann"])
def test_every_inverse_is_taken(ihvp: str) -> None:
    spg = {"variant": "spg", "stackelberg_sequence": LEADER, "ihvp_variant": ihvp}
    trainer = made(spg, num_iterations=2)
    trainer.train()
    assert trainer.run.metrics[-1]["train/first/shaping_norm"] > 1e-4


@pytest.mark.parametrize(
    "resting",
    [
        {"is_random": True},
        {"agent_lr_factor": {"actor": 0.0, "critic": 1.0}},
        {"update_schedule": {"type": "contiguous_periodic", "period": 3, "start": 0, "stop": 1}},
    ],
    ids=["random", "frozen", "paused"],
)
def test_who_does_not_learn_is_not_expected_to_respond(resting: dict[str, Any]) -> None:
    spg = {"variant": "spg", "stackelberg_sequence": LEADER}
    trainer = made(spg, agents={"second": resting})
    trainer.train()
    last = trainer.run.metrics[-1]
    assert (
        last["train/first/shaping_norm" if "train/first/kl" in last else "train/shaping_norm"] == 0
    )


def test_agents_that_share_a_policy_are_one_player() -> None:
    agents = {"second": {"policy": "first"}}
    both = {"variant": "lola", "stackelberg_sequence": [["first", "second"]]}
    trainer = made(both, agents=agents)
    trainer.train()
    assert list(trainer.agents) == ["first"]
    assert trainer.run.metrics[-1]["train/shaping_norm"] == 0
    with pytest.raises(ConfigError, match="agents of the policy first in several groups"):
        made({**both, "stackelberg_sequence": LEADER}, agents=agents).train()


@pytest.mark.parametrize(
    ("spg", "message"),
    [
        ({"variant": "spg"}, "is missing: spg needs to know who leads"),
        ({"stackelberg_sequence": [["left"], ["left"]]}, "names left more than once"),
        ({"stackelberg_sequence": [["left"], []]}, "has an empty group"),
        ({"stackelberg_sequence": [["left", "rigt"]]}, "names rigt, .* did you mean right?"),
    ],
)
def test_an_order_that_cannot_be_is_a_fault(spg: Any, message: str, tmp_path: Any) -> None:
    tree = {"trainer": "spg", "scenario": CARTPOLES, "rl": {"frames_per_batch": 64}, "spg": spg}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=rf"spg\.stackelberg_sequence .*{message}"):
        prepare(str(tmp_path / "run.yaml"))


def test_compile_is_not_taken_for_what_it_does_not_do() -> None:
    tree = {"trainer": "spg", "scenario": CARTPOLES, "rl": {"frames_per_batch": 64}}
    tree["spg"] = {"variant": "lola"}
    tree["rl"]["compile"] = True
    with pytest.raises(ConfigError, match=r"rl\.compile .*has no effect on spg; remove it"):
        prepare(tree)


def test_an_agent_that_learns_must_have_its_place() -> None:
    with pytest.raises(ConfigError, match="lacks second, which learns; add it to a group"):
        made({"stackelberg_sequence": [["first"]]}).train()
