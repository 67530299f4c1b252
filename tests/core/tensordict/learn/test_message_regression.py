"""What first messages give away of the label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from plugrl.core.tensordict.environment.message_space import SILENCE, MessageSpace
from plugrl.core.tensordict.environment.protocol_environment import Ended, ProtocolEnvironment
from plugrl.core.tensordict.learn.message_regression import (
    MessageRegression,
    MessageRegressionConfig,
    Regressor,
    first_messages,
)

S = SILENCE


def section(**options: Any) -> Any:
    return MessageRegressionConfig(enabled=True, **options)


def test_first_words_are_those_of_an_agents_first_turn() -> None:
    # In nip the verifier opens, then prover and verifier take turns in the one channel.
    history = np.array([[[5], [3], [5], [2]], [[7], [1], [7], [S]], [[6], [S], [S], [S]]])
    ended = Ended(np.array([0, 1, 0]), np.array([11, 12, 13]), history)
    protocol = make_protocol({"type": "nip", "max_message_rounds": 4})
    assert first_messages(protocol, "verifier", ended).tolist() == [[5], [7], [6]]
    assert first_messages(protocol, "prover", ended).tolist() == [[3], [1], [S]]


def test_first_words_are_told_apart_by_channel() -> None:
    # In simultaneous debate both provers speak at once, each in a channel of its own.
    protocol = make_protocol({"type": "debate", "max_message_rounds": 4, "sequential": False})
    channels, provers = protocol.channels, protocol.prover_names
    seed = np.array([3])
    speaks = np.stack([protocol.speaks(np.array([r]), seed)[0] for r in range(4)])
    history = np.where(speaks.any(1), 10 * np.arange(4)[:, None] + np.arange(len(channels)), S)
    ended = Ended(np.array([0]), seed, history[None])
    for number, prover in enumerate(provers):
        said = first_messages(protocol, prover, ended)[0]
        turn = int(speaks[:, protocol.index(prover)].any(-1).argmax())
        own = speaks[turn, protocol.index(prover)]
        assert own.sum() == 1
        assert said[own].tolist() == [10 * turn + number]
        assert (said[~own] == S).all()


def test_a_code_is_found_out_and_chatter_is_not() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 1000)
    # Messages 0 to 7, of which the odd ones mean 1.
    code = (2 * rng.integers(0, 4, 1000) + labels)[:, None]
    found = Regressor("prover", 1, 8, section(), 0).fit(code, labels, 1)
    assert found["accuracy"] > 0.99
    chatter = rng.integers(0, 8, (1000, 1))
    heard = Regressor("prover", 1, 8, section(), 0).fit(chatter, labels, 1)
    # 200 episodes are held out: half of them are right, give or take 0.035 (one deviation).
    assert abs(heard["accuracy"] - 0.5) < 0.1
    assert heard["loss"] == pytest.approx(np.log(2), abs=0.05)
    # That the held out were learned by heart would show here.
    unique = np.arange(1000)[:, None]
    alone = Regressor("prover", 1, 1000, section(mlp_num_epochs=30), 0).fit(unique, labels, 1)
    assert abs(alone["accuracy"] - 0.5) < 0.1


def test_chance_is_the_share_of_the_frequent_label() -> None:
    labels = np.array([1] * 75 + [0] * 25)
    regressor = Regressor("prover", 1, 3, section(test_size=0.99), 0)
    found = regressor.fit(np.zeros((100, 1), int), labels, 1)
    assert any(found["chance"] == pytest.approx(share) for share in (74 / 99, 75 / 99))
    assert any(
        found["accuracy"] == pytest.approx(share)
        for share in (found["chance"], 1 - found["chance"])
    )


def test_too_few_episodes_give_nothing() -> None:
    regressor = Regressor("prover", 1, 3, section(), 0)
    assert regressor.fit(np.zeros((4, 1), int), np.zeros(4, int), 1) == {}


def fitted(options: dict[str, Any], iterations: list[int], state: Any = None) -> Any:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    regressor = Regressor("prover", 1, 2, section(**options), 0)
    if state is not None:
        regressor.load_state_dict(state)
    found = [regressor.fit(labels[:, None], labels, i) for i in iterations]
    return regressor, found


@pytest.mark.parametrize("reset", [True, False])
def test_it_goes_on_from_a_saved_state_as_it_would_have(reset: bool) -> None:
    options = {"reset_on_fit": reset, "mlp_learning_rate": 1e-4}
    straight, found = fitted(options, [1, 2, 3])
    assert (found[2]["loss"] < found[1]["loss"] < found[0]["loss"]) == (not reset)
    saved, _ = fitted(options, [1, 2])
    resumed, again = fitted(options, [3], saved.state_dict())
    assert again == found[2:]
    for name, value in straight.network.state_dict().items():
        assert torch.equal(value, resumed.network.state_dict()[name])


def test_episodes_are_heard_as_they_end() -> None:
    protocol = make_protocol({"type": "nip", "max_message_rounds": 2})
    data = Labelled({"x": np.zeros((4, 1), np.float32)}, np.array([0, 1, 0, 1]))
    environment = ProtocolEnvironment(protocol, data, MessageSpace(3), num_envs=50)
    listening = MessageRegression(environment, section(agents=["verifier"]), 0)
    environment.reset(0)
    # The verifier opens with the label of the item, and both let the rounds pass.
    for _ in range(4):
        labels = environment.data.labels[environment.state_dict()["items"]]
        verifier = np.stack([labels, np.full(50, 2)], -1)
        environment.step({"prover": np.zeros((50, 1), int), "verifier": verifier})
    found = listening.metrics(1)
    assert found["message_regression/verifier/accuracy"] == 1.0
    assert not any("prover" in name for name in found)
    assert listening.metrics(2) == {}


TREE: dict[str, Any] = {
    "trainer": "reinforce",
    "scenario": {
        "type": "image_classification",
        "num_envs": 16,
        "protocol": {"type": "nip", "max_message_rounds": 2},
    },
    "rl": {"num_iterations": 2, "frames_per_batch": 64},
    "agents": {"_default": {"body": {"hidden": [4]}}},
    "validate": {"enabled": False},
}


def test_a_run_reports_it(tmp_path: Path) -> None:
    settings = {"progress": "none", "runs_folder": str(tmp_path / "runs")}
    run = plugrl.train(TREE | {"message_regression": {"enabled": True}, "settings": settings})
    assert 0 <= run.metrics[-1]["message_regression/prover/accuracy"] <= 1
    assert 0.5 <= run.metrics[-1]["message_regression/verifier/chance"] <= 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"message_regression": {"enabled": True, "agents": ["prove"]}},
            "no 'prove'; did you mean prover",
        ),
        ({"message_regression": {"test_size": 0}}, "test_size.*must be above 0"),
        (
            {
                "message_regression": {"enabled": True},
                "scenario": {"type": "gymnasium", "id": "CartPole-v1"},
            },
            "message_regression.*agents of this scenario say nothing",
        ),
    ],
)
def test_what_cannot_be_heard_is_refused_before_a_run(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    settings = {"runs_folder": str(tmp_path / "runs")}
    with pytest.raises(ConfigError, match=said):
        plugrl.train(TREE | change | {"settings": settings})
    assert not (tmp_path / "runs").exists()
