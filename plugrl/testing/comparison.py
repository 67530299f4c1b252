"""What runs and components are compared by: metrics without times, and states by content."""

from __future__ import annotations

from typing import Any

from plugrl.core.experiment import TrainedRun


def comparable_metrics(run: TrainedRun) -> list[dict[str, Any]]:
    """The metrics of a run without times."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in run.metrics]


def flatten(state: Any, path: str = "") -> dict[str, Any]:
    """The leaves of a nested state by path."""
    if isinstance(state, dict):
        items = [flatten(value, f"{path}/{key}") for key, value in state.items()]
    elif isinstance(state, (list, tuple)):
        items = [flatten(value, f"{path}/{i}") for i, value in enumerate(state)]
    else:
        return {path: state}
    return {key: value for item in items for key, value in item.items()}


def assert_equal_states(left: Any, right: Any) -> None:
    """Compare two states without times; tensors and arrays by content."""
    import numpy as np
    import torch

    one, other = (
        {key: value for key, value in flatten(state).items() if "/time/" not in key}
        for state in (left, right)
    )
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[key]), f"{key} differs"
        elif isinstance(value, np.ndarray):
            assert np.array_equal(value, other[key]), f"{key} differs"
        else:
            assert value == other[key], f"{key} differs"
