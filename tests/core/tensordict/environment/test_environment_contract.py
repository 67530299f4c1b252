"""An environment of a plugin that gives something else than it must is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plugrl.core.errors import ContractError
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from tests.core.tensordict.counting import Counting
from tests.core.tensordict.test_rl_trainer import trained


class Changed(Counting):
    """Counts, and gives what it must only after ``begun`` and ``stepped`` changed it."""

    def __init__(self, begun: Callable[[Any], Any], stepped: Callable[[Any], Any]) -> None:
        super().__init__([2, 3])
        self._changes = begun, stepped

    def reset(self, seed: int | None = None) -> Any:
        return self._changes[0](super().reset(seed))

    def step(self, actions: Any) -> Any:
        return self._changes[1](super().step(actions))


def same(given: Any) -> Any:
    return given


def of(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def change(steps: Any) -> Any:
        step = steps["agent"]
        return {"agent": replace(step, **{k: f(getattr(step, k)) for k, f in changes.items()})}

    return change


@pytest.mark.parametrize(
    ("begun", "stepped", "said"),
    [
        (lambda given: given["agent"], same, "reset() gave a ndarray; give a dictionary by agent"),
        (lambda given: {"walker": given["agent"]}, same,
         "reset() gave walker; give one entry for each of spaces: agent"),
        (lambda given: {"agent": given["agent"][:, 0]}, same,
         "reset() gave agent observations of shape [2]; give shape [2, 1]"),
        (same, lambda given: {}, "step() gave no agent; give one entry for each of spaces: agent"),
        (same, lambda given: {"agent": (1, 2)}, "step() gave agent a tuple; give AgentStep"),
        (same, of(observation=np.ravel),
         "step() gave agent observations of shape [2]; give shape [2, 1]"),
        (same, of(reward=lambda r: r[:, None]),
         "step() gave agent reward of shape [2, 1]; give shape [2]"),
        (same, of(terminated=lambda t: False),
         "step() gave agent terminated of shape []; give shape [2]"),
        (same, of(final_observation=lambda final: None),
         "step() ended an episode without final_observation; give the true last observations, "
         "or a next step that is not real"),
    ],
)  # fmt: skip
def test_what_an_environment_gave_is_told_with_what_it_must_give(begun, stepped, said) -> None:
    instance = ScenarioInstance(
        name="changed", make_environment=lambda split: Changed(begun, stepped)
    )
    with pytest.raises(ContractError) as fault:
        trained(instance)
    assert str(fault.value) == f"environment Changed: {said}"


def test_spaces_are_equal_whatever_scripts_the_task_has() -> None:
    from gymnasium import spaces

    seen, done = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    plain = AgentSpaces(seen, done)
    assert plain == AgentSpaces(seen, done, scripts={"still": lambda *_: None})
    assert plain != AgentSpaces(seen, spaces.Discrete(3))


def test_a_step_that_only_begins_anew_needs_no_last_observation_before_it() -> None:
    instance = ScenarioInstance(
        name="next", make_environment=lambda split: Counting([2, 3], next_step=True)
    )
    assert trained(instance).run.metrics[-1]["rollout/frames"] > 0


class Turning(Counting):
    """Counts, with a mask of actions, and says whose turn it is."""

    def __init__(self, acting: Any, mask: list[float]) -> None:
        super().__init__([2, 3])
        self._acting, self._mask = acting, mask
        layout = Layout({"count": (1,), "action_mask": (2,)})
        action = self.spaces["agent"].action
        self.spaces = {"agent": AgentSpaces(layout.space(), action, layout)}

    def _seen(self) -> np.ndarray:
        mask = np.tile(np.float32(self._mask), (2, 1))
        return np.concatenate([super()._seen(), mask], 1)

    def acting(self) -> Any:
        return self._acting


@pytest.mark.parametrize(
    ("acting", "mask", "said"),
    [
        ({}, [1, 1], "acting() gave no agent; give one entry for each of spaces: agent"),
        ({"agent": np.ones(2)}, [1, 1],
         "acting() gave agent float64 of shape [2]; give bool of shape [2]"),
        ({"agent": np.ones(3, bool)}, [1, 1],
         "acting() gave agent bool of shape [3]; give bool of shape [2]"),
        ({"agent": np.array([True, False])}, [0, 0],
         "an action_mask of agent leaves nothing to choose from; give at least one allowed value "
         "for each choice"),
        (None, [0, 0],
         "an action_mask of agent leaves nothing to choose from; give at least one allowed value "
         "for each choice"),
    ],
)  # fmt: skip
def test_wrong_turns_and_masks_name_what_is_wrong(acting: Any, mask: Any, said: str) -> None:
    instance = ScenarioInstance(
        name="turning", make_environment=lambda split: Turning(acting, mask)
    )
    with pytest.raises(ContractError) as fault:
        trained(instance)
    assert str(fault.value) == f"environment Turning: {said}"


def test_masks_do_not_matter_where_nobody_is_asked() -> None:
    nobody = {"agent": np.zeros(2, bool)}
    instance = ScenarioInstance(
        name="turning", make_environment=lambda split: Turning(nobody, [0, 0])
    )
    assert trained(instance).run.metrics[-1]["rollout/frames"] > 0
