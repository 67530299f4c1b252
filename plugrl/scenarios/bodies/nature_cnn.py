"""``nature_cnn``: three convolutions and a layer over images, as in Mnih et al. (2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import Body

#: The smallest image whose last convolution has a place to look at.
SMALLEST = 36


@dataclass
class NatureCnnConfig:
    """Options of the body ``nature_cnn``."""

    features: int = described(
        512, "width of the layer above the convolutions", at_least=1, at_most=10**6
    )
    channels: Literal["auto", "first", "last"] = described(
        "auto", "where an image has its channels; auto: on its shorter outer side"
    )


class NatureCnnBody(Body):
    """The network that learned Atari games, with ReLU after each layer."""

    Config: ClassVar[type] = NatureCnnConfig

    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The network and its features.

        Raises:
            ConfigError: observations are no images, or too small ones.
        """
        last = self.config.channels == "last"
        if self.config.channels == "auto" and len(shape) == 3:
            last = shape[2] < shape[0]
        sides = shape[:2] if last else shape[1:]
        if len(shape) != 3 or min(sides) < SMALLEST:
            raise ConfigError(
                f"nature_cnn reads images of at least {SMALLEST} x {SMALLEST} with channels, not "
                f"observations of shape {list(shape)}; take body: mlp"
            )
        features = int(self.config.features)
        return Convolutions(shape[2] if last else shape[0], sides, features, last), features


class Convolutions(nn.Module):
    """``[..., channels, height, width]``, or channels last, to ``[..., features]``."""

    def __init__(self, channels: int, sides: tuple[int, ...], features: int, last: bool) -> None:
        super().__init__()
        self._last = last
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        height, width = sides
        places = _places(height) * _places(width)
        self.top = nn.Sequential(nn.Linear(64 * places, features), nn.ReLU())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        leading = images.shape[:-3]
        flat = images.reshape(-1, *images.shape[-3:])
        if self._last:
            flat = flat.movedim(-1, 1)
        features: torch.Tensor = self.top(self.layers(flat))
        return features.reshape(*leading, -1)


def _places(side: int) -> int:
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        side = (side - kernel) // stride + 1
    return side
