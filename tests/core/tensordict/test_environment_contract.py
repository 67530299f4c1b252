"""An environment of a plugin that gives something else than it must is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plugrl.core.errors import ContractError
from plugrl.core.scenario import ScenarioInstance
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


def test_a_step_that_only_begins_anew_needs_no_last_observation_before_it() -> None:
    instance = ScenarioInstance(
        name="next", make_environment=lambda split: Counting([2, 3], next_step=True)
    )
    assert trained(instance).run.metrics[-1]["rollout/frames"] > 0
