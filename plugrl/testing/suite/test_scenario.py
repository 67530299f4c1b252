"""The contract of scenarios.

Run it with ``--plugrl-scenario NAME``, or subclass :class:`ScenarioContract` with an attribute
``plugrl_scenario``. A scenario gives its section as ``conformance["config"]``. Of a scenario with
problems its data sets are checked, of one with environments what these give.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from plugrl.core.scenario import Scenario, ScenarioInstance
from plugrl.core.tensordict.environment.vector_environment import VectorEnvironment
from plugrl.testing.contract import ComponentContract

STEPS = 12
#: Problems of each split that are looked at.
PROBLEMS = 200


class ScenarioContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_scenario``."""

    kind = "scenario"

    @pytest.fixture
    def instance(self, make: Callable[[], Scenario]) -> ScenarioInstance:
        return make().build(0)

    @contextmanager
    def environment(self, instance: ScenarioInstance, split: Any) -> Iterator[VectorEnvironment]:
        """The environments of a split; the test is skipped where the task has none."""
        if instance.make_environment is None:
            pytest.skip("the scenario has no environments")
        with closing(instance.environment(split)) as made:
            yield made

    def test_it_has_problems_or_environments(self, instance: ScenarioInstance) -> None:
        assert isinstance(instance, ScenarioInstance)
        assert instance.name
        assert any(map(len, instance.datasets.values())) or instance.make_environment, (
            "there is nothing to train on: neither data sets nor environments"
        )

    def test_equal_seeds_build_equal_tasks(self, make: Callable[[], Scenario]) -> None:
        built = []
        for noise in (1, 2):
            # Numbers that others draw must not matter.
            random.seed(noise)
            np.random.seed(noise)
            built.append(_problems(make().build(3)))
        assert built[0] == built[1]

    def test_building_draws_no_shared_random_numbers(self, make: Callable[[], Scenario]) -> None:
        random.seed(1)
        np.random.seed(1)
        before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        make().build(0)
        after = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        assert before == after, "use random.Random(seed) or numpy.random.default_rng(seed)"

    def test_problems_are_rows_with_names(self, instance: ScenarioInstance) -> None:
        for split, items in _problems(instance).items():
            assert isinstance(split, str)
            for item in items:
                assert isinstance(item, Mapping), f"a problem of {split} is no mapping"
                assert all(isinstance(name, str) for name in item)

    def test_held_out_problems_are_not_trained_on(self, instance: ScenarioInstance) -> None:
        problems = _problems(instance)
        train = [dict(item) for item in problems.get("train", [])]
        for split, items in problems.items():
            if split != "train":
                assert [item for item in items if dict(item) in train] == [], f"split {split}"

    def test_a_preview_has_the_splits(
        self, make: Callable[[], Scenario], instance: ScenarioInstance
    ) -> None:
        preview = make().preview(0)
        if preview is not None:
            assert {name for name, items in preview.items() if len(items)} == {
                name for name, items in instance.datasets.items() if len(items)
            }

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_environments_give_what_their_spaces_say(
        self, instance: ScenarioInstance, split: str
    ) -> None:
        with self.environment(instance, split) as made:
            _check_seen(made, made.reset(0))
            for step in _play(made):
                for agent, got in step.items():
                    _check_seen(made, {agent: got.observation})
                    for name in ("reward", "terminated", "truncated"):
                        assert getattr(got, name).shape == (made.num_envs,), f"{agent}: {name}"
                    assert np.isfinite(got.reward).all()

    def test_equal_seeds_give_equal_episodes(self, instance: ScenarioInstance) -> None:
        episodes = []
        for _ in range(2):
            with self.environment(instance, "train") as made:
                begin = {agent: seen.copy() for agent, seen in made.reset(5).items()}
                episodes.append((begin, [_numbers(step) for step in _play(made)]))
        np.testing.assert_equal(episodes[0], episodes[1])

    def test_a_saved_state_goes_on_as_it_would_have(self, instance: ScenarioInstance) -> None:
        with self.environment(instance, "train") as made:
            made.reset(5)
            for _ in _play(made):
                pass
            state = made.state_dict()
            if state is None:
                pytest.skip("its state cannot be saved, and it says so")
            expected = [_numbers(step) for step in _play(made)]
        with self.environment(instance, "train") as other:
            other.reset(6)
            other.load_state_dict(state)
            np.testing.assert_equal([_numbers(step) for step in _play(other)], expected)


def _problems(instance: ScenarioInstance) -> dict[str, list[Any]]:
    return {
        name: [items[i] for i in range(min(len(items), PROBLEMS))]
        for name, items in instance.datasets.items()
    }


def _play(made: VectorEnvironment) -> Iterator[Mapping[str, Any]]:
    """A few steps with random actions that depend on nothing."""
    for agent, spaces in made.spaces.items():
        spaces.action.seed(len(agent))
    for _ in range(STEPS):
        yield made.step(
            {
                agent: np.stack([spaces.action.sample() for _ in range(made.num_envs)])
                for agent, spaces in made.spaces.items()
            }
        )


def _numbers(step: Mapping[str, Any]) -> dict[str, Any]:
    return {agent: (got.observation.copy(), got.reward.copy()) for agent, got in step.items()}


def _check_seen(made: VectorEnvironment, seen: Mapping[str, np.ndarray]) -> None:
    for agent, observations in seen.items():
        space = made.spaces[agent].observation
        assert observations.shape == (made.num_envs, *(space.shape or ())), agent
        assert np.isfinite(observations).all(), agent


class TestScenario(ScenarioContract):
    """The contract for every ``--plugrl-scenario``."""

    __test__ = True
