"""What networks take of what environments show: worked by hand, and as gymnasium flattens it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.observations import encoder_for

ONE_HOT = [
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([3]),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([4, 2, 3], start=[5, -1, 0]),
]


@pytest.mark.parametrize("space", ONE_HOT, ids=str)
def test_numbers_are_ones_among_zeros_in_numpy_and_torch(space: Any) -> None:
    space.seed(0)
    drawn = [space.sample() for _ in range(40)]
    expected = np.array([spaces.flatten(space, each) for each in drawn], np.float32)
    encoder, observation = encoder_for(space), np.array(drawn)
    assert not encoder.is_plain
    assert encoder.shape == expected.shape[1:]
    found = encoder.numpy(observation)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(encoder.torch(torch.as_tensor(observation)), expected)
    # Other leading dimensions of a batch.
    pairs = torch.as_tensor(observation).reshape(20, 2, *observation.shape[1:])
    assert encoder.torch(pairs).tolist() == expected.reshape(20, 2, -1).tolist()


@pytest.mark.parametrize(
    ("space", "shown", "taken", "is_plain"),
    [
        (spaces.Box(-9, 9, (2,), np.float64), [[1.5, -3.0]], [[1.5, -3.0]], True),
        (spaces.Box(0, 255, (2,), np.uint8), [[0, 255]], [[0.0, 255.0]], True),
        (spaces.Box(0, 255, (1, 2), np.uint8), [[[51, 255]]], [[[0.2, 1.0]]], False),
        (spaces.Box(0, 255, (1, 2), np.int16), [[[51, 255]]], [[[51.0, 255.0]]], True),
        (spaces.MultiBinary(2), [[1, 0]], [[1.0, 0.0]], True),
    ],
    ids=str,
)
def test_other_numbers_stay_and_images_of_bytes_are_parts_of_1(
    space: Any, shown: Any, taken: Any, is_plain: bool
) -> None:
    encoder, observation = encoder_for(space), np.array(shown, space.dtype)
    assert encoder.is_plain == is_plain
    assert encoder.shape == space.shape
    for found in (encoder.numpy(observation), encoder.torch(torch.as_tensor(observation))):
        assert str(found.dtype).endswith("float32")
        np.testing.assert_allclose(found, taken, rtol=1e-6)


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Box(0, 1, (0,)), spaces.MultiDiscrete([[2, 2]])], ids=str
)
def test_what_no_network_takes_is_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match="are not supported; wrap the environment"):
        encoder_for(space)
