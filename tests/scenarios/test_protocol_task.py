"""What all tasks refuse in which small networks talk by a protocol."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.core.experiment import prepare


def faults(task: str, film: str) -> tuple[str, ...]:
    given: dict[str, Any] = {
        "trainer": "vanilla_ppo",
        "scenario": {"type": task, "num_envs": 2},
        "rl": {"frames_per_batch": 64, "num_iterations": 1},
        "validate": {"film": film},
        "settings": {"device": "cpu"},
    }
    try:
        prepare(given)
    except Exception as error:
        return tuple(getattr(error, "faults", (str(error),)))
    return ()


@pytest.mark.parametrize("task", ["graph_isomorphism", "image_classification"])
def test_conversations_are_not_filmed(task: str) -> None:
    (line,) = faults(task, "gif")
    assert line.startswith("validate.film (Python): ")
    assert line.endswith("; write validate.film: none")
    assert faults(task, "none") == ()
