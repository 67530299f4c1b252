"""What the base of all trainers takes, and what it says of arguments that others take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import plugrl


class OwnLoop(plugrl.Trainer):
    """Its loop alone is its own."""

    def train(self) -> None:
        return None


class OwnParts(plugrl.Trainer):
    """Hands its base what that of another framework takes."""

    def __init__(self, config: Any, environment: Any, algorithm: Any) -> None:
        super().__init__(config, environment, algorithm)  # type: ignore[call-arg]

    def train(self) -> None:
        return None


_WRITE = "with an environment and an algorithm, write plugrl.HarnessTrainer"
_DERIVE = "with an environment and an algorithm, derive {} from plugrl.HarnessTrainer"


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: plugrl.Trainer(config={}, environment=1, algorithm=2),
            f"Trainer takes a configuration alone, and was given environment, algorithm; {_WRITE}",
        ),
        (
            lambda: plugrl.Trainer({}, 1, 2),
            f"Trainer takes a configuration alone, and was given 2 arguments more; {_WRITE}",
        ),
        (
            lambda: OwnLoop(config={}, environment=1, algorithm=2),
            "OwnLoop takes a configuration alone, and was given environment, algorithm; "
            + _DERIVE.format("OwnLoop"),
        ),
        (
            lambda: OwnParts({}, 1, 2),
            "OwnParts takes a configuration alone, and was given 2 arguments more; "
            + _DERIVE.format("OwnParts"),
        ),
        (
            lambda: OwnLoop({}, steps=3),
            "OwnLoop takes a configuration alone, and was given steps",
        ),
    ],
)
def test_arguments_of_other_frameworks_say_what_takes_them(
    build: Callable[[], Any], says: str
) -> None:
    with pytest.raises(TypeError) as caught:
        build()
    assert str(caught.value) == says


def test_a_configuration_is_enough() -> None:
    assert OwnLoop({}).config is not None
    assert OwnLoop(config=None).config is not None
    with pytest.raises(TypeError, match="abstract"):
        plugrl.Trainer({})  # type: ignore[abstract]
