"""Fields that say what they name: which names a section holds, and their look-up before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import plugrl
from plugrl.core.config.names import agent_fault, model_fault, names_in, split_fault
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry
from plugrl.core.run.tracking.tracker import Tracker
from plugrl.core.text.evaluate.evaluator import EvaluationRunResult, Evaluator
from plugrl.core.text.rollout.worker import RolloutWorkerConfig
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker
from plugrl.testing import tiny


@dataclass
class Part:
    model: str = described("policy", "a model", names="model")
    part: Any = component("evaluator", help="has a section of its own")


@dataclass
class Section:
    one: str = described("a", "", names="column")
    none: str | None = described(None, "", names="model")
    several: list[str] | str = described([], "", names="split")
    by_key: dict[str, float] = described({}, "", names="metric")
    by_value: dict[str, str] = described({}, "", names="model")
    groups: list[list[str]] = described([], "", names="agent")
    chosen: str = described("label", "", names="optional column")
    free: str = described("anything", "")
    part: Part = described(Part, "")
    maybe: Part | None = described(None, "")
    parts: list[Part] = described([], "")
    by_name: dict[str, Part] = described({}, "")


WRITTEN = {
    "one": "b",
    "none": None,
    "several": ["x", "y"],
    "by_key": {"rollout/reward": 1.0, "a.b": 2.0},
    "by_value": {"gpt": "policy"},
    "groups": [["p", "q"], ["r"]],
    "chosen": "label",
    "free": "policy",
    "part": {"model": "m0", "part": {"type": "x", "model": "of another section"}},
    "maybe": {"model": "m1"},
    "parts": [{"model": "m2"}],
    "by_name": {"n": {"model": "m3"}},
}


def test_each_name_has_its_path_and_kind() -> None:
    assert {tuple(name) for name in names_in(Section, WRITTEN, "s")} == {
        ("s.one", "column", "b"),
        ("s.several[0]", "split", "x"),
        ("s.several[1]", "split", "y"),
        ("s.by_key.rollout/reward", "metric", "rollout/reward"),
        # No path can name a key with a dot.
        ("s.by_key", "metric", "a.b"),
        ("s.by_value.gpt", "model", "policy"),
        ("s.groups[0][0]", "agent", "p"),
        ("s.groups[0][1]", "agent", "q"),
        ("s.groups[1][0]", "agent", "r"),
        ("s.part.model", "model", "m0"),
        ("s.maybe.model", "model", "m1"),
        ("s.parts[0].model", "model", "m2"),
        ("s.by_name.n.model", "model", "m3"),
    }


def test_an_optional_column_is_one_that_somebody_chose() -> None:
    found = [tuple(name) for name in names_in(Section, {"chosen": "lable"}, "s")]
    assert found == [("s.chosen", "optional column", "lable")]


@pytest.mark.parametrize("section", [None, "text", ["a"], {"one": None}, {"parts": {"a": 1}}])
def test_what_is_no_section_names_nothing(section: Any) -> None:
    assert list(names_in(Section, section, "s")) == []


def test_a_kind_that_is_none_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="names is 'modle'; it is one of model, split, agent"):
        described("a", "", names="modle")  # type: ignore[arg-type]


def test_messages_name_the_close_one_and_what_there_is() -> None:
    assert model_fault(["policy", "judge"], "policy") is None
    assert model_fault(["policy", "judge"], "juge") == (
        "no model 'juge' in models; it has: policy, judge; did you mean judge?"
    )
    assert model_fault([], "a") == "no model 'a' in models; it has: none"
    assert split_fault("tset", ["train", "test"], "maze", "; or none") == (
        "scenario 'maze' has no split 'tset'; it has: test, train; did you mean test?"
    )
    assert split_fault("other", ["train"], None, "; or none") == (
        "scenario 'of the file' has no split 'other'; it has: train; or none"
    )
    assert agent_fault("lft", ["left", "right"]) == (
        "there is no agent 'lft'; there are: left, right; did you mean left?"
    )


@dataclass
class OwnEvaluatorConfig:
    hints: str = plugrl.described("label", "column with a hint", names="column")
    teacher: str = plugrl.described("policy", "entry of models", names="model")
    stage: str | None = plugrl.described(None, "split of the task", names="split")
    watched: str = plugrl.described("rollout/reward", "metric that it follows", names="metric")


class OwnEvaluator(Evaluator):
    Config: ClassVar[type] = OwnEvaluatorConfig
    metric_names: ClassVar[tuple[str, ...]] = ()

    def evaluate(self, data: Any, evaluation_target: Any) -> EvaluationRunResult:
        return EvaluationRunResult(float(data[self.config.hints]))


@dataclass
class OwnWorkerConfig(RolloutWorkerConfig):
    source: str = plugrl.described("label", "column with a source", names="column")


class OwnWorker(SingleTurnRolloutWorker):
    Config: ClassVar[type] = OwnWorkerConfig


@dataclass
class OwnTrackerConfig:
    best: str = plugrl.described("validation/mean_episode_return", "followed", names="metric")
    player: str | None = plugrl.described(None, "agent that is shown", names="agent")


class OwnTracker(Tracker):
    Config: ClassVar[type] = OwnTrackerConfig

    def log(self, step: int, metrics: Any) -> None: ...


@pytest.fixture(autouse=True)
def _own_components() -> None:
    registry = default_registry()
    registry.register("evaluator", "own_hints", OwnEvaluator)
    registry.register("rollout_worker", "own_source", OwnWorker)
    registry.register("tracker", "own_tracker", OwnTracker)


def faults(tree: dict[str, Any]) -> list[str]:
    try:
        prepare(tree)
    except ConfigError as error:
        return list(error.faults)
    return []


TASK = {"type": "arithmetic", "digits": 1, "validation": 2, "development": 2, "demonstrations": 2}


@pytest.mark.parametrize(
    ("section", "path", "says"),
    [
        ({}, "", ""),
        ({"hints": "lable"}, "rollout_worker.evaluator.hints", "did you mean label?"),
        ({"teacher": "polcy"}, "rollout_worker.evaluator.teacher", "did you mean policy?"),
        ({"stage": "trian"}, "rollout_worker.evaluator.stage", "did you mean train?"),
        (
            {"watched": "rollout/rewrd"},
            "rollout_worker.evaluator.watched",
            "did you mean rollout/reward?",
        ),
    ],
)
def test_fields_of_an_evaluator_of_the_user(
    tmp_path: Any, section: dict[str, str], path: str, says: str
) -> None:
    evaluator = {"type": "own_hints", **section}
    tree = tiny.config(
        "self_hosted_grpo", tmp_path, {"scenario": TASK, "rollout_worker": {"evaluator": evaluator}}
    )
    found = faults(tree)
    assert bool(found) == bool(path)
    # The column is looked up in what is trained on and in what is held out.
    assert all(each.startswith(f"{path} (") and each.endswith(says) for each in found)


def test_fields_of_a_worker_of_the_user(tmp_path: Any) -> None:
    worker = {"type": "own_source", "source": "lable"}
    found = faults(tiny.config("self_hosted_grpo", tmp_path, {"rollout_worker": worker}))
    assert found
    assert all(each.startswith("rollout_worker.source (") for each in found)
    assert all(each.endswith("did you mean label?") for each in found)


@pytest.mark.parametrize(
    ("section", "path", "says"),
    [
        ({}, "", ""),
        ({"player": "player_2"}, "", ""),
        ({"player": "plyer_2"}, "trackers[0].player", "did you mean player_2?"),
        (
            {"best": "validation/mean_episode_retrun"},
            "trackers[0].best",
            "did you mean validation/mean_episode_return?",
        ),
    ],
)
def test_fields_of_a_tracker_of_the_user(section: dict[str, str], path: str, says: str) -> None:
    tree = {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "pettingzoo", "environment": "tictactoe_v3", "num_envs": 2},
        "rl": {"frames_per_batch": 64},
        "trackers": [{"type": "own_tracker", **section}],
    }
    found = faults(tree)
    assert bool(found) == bool(path)
    assert all(each.startswith(f"{path} (") and each.endswith(says) for each in found)
