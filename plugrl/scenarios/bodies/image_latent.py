"""``image_latent``: convolutions over a picture and over the places that were pointed at."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.parts import ACTIVATIONS, Activation, Body
from plugrl.core.tensordict.environment.layout import ACTION_MASK, Layout
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

#: Parts of an observation that are read as maps, or say only what may be done.
_MAPS = ("image", "messages", "last_message", ACTION_MASK)


@dataclass
class ImageLatentConfig:
    """Options of the body ``image_latent``."""

    channels: int = described(
        16,
        "channels of the first group; each later one has twice as many",
        at_least=1,
        at_most=10**6,
    )
    blocks_per_group: int = described(
        2, "convolutions before the sides are halved", at_least=1, at_most=1000
    )
    latent_blocks: int = described(
        2, "convolutions over the small picture and all messages", at_least=1, at_most=1000
    )
    latent_channels: int = described(
        16, "what is known of each place in the end", at_least=1, at_most=10**6
    )
    kernel_size: int = described(
        3, "side of the convolutions, an odd number", at_least=1, at_most=999
    )
    residual: bool = described(False, "add to each convolution what went in, where it fits")
    activation: Activation = described("relu", "what follows each convolution")

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ConfigError("kernel_size must be an odd number")


class ImageLatentBody(Body):
    """Makes a picture small, puts the messages where they point, and looks at both together.

    Features are all that is known of each place, and what is no map: the round, and whose turn
    it is.
    """

    Config: ClassVar[type] = ImageLatentConfig

    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Refused: where the picture is in an observation, its layout says alone.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "image_latent reads pictures that agents of a protocol talk about, not observations "
            f"of shape {list(shape)}; take scenario: image_classification, or body: mlp"
        )

    def build_for(self, spaces: AgentSpaces, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The network and its features.

        Raises:
            ConfigError: observations have no picture, or messages are no places in it.
        """
        layout = spaces.layout
        if layout is None or not {"image", "messages"} <= set(layout.fields):
            return self.build(shape)
        network = ImageLatent(layout, _halvings(layout), self.config)
        return network, network.features


def _halvings(layout: Layout) -> int:
    """How often the sides of a picture are halved until each message is a place."""
    _, height, width = layout.fields["image"]
    count = layout.fields["messages"][-1]
    for times in range(max(height, width).bit_length()):
        if (height >> times) * (width >> times) == count:
            return times
    raise ConfigError(
        f"image_latent reads messages that are places: {count} messages are none in a picture of "
        f"{height} x {width} however often it is halved; take body: mlp"
    )


class ImageLatent(nn.Module):
    """``[..., size]`` with the parts ``image`` and ``messages`` to ``[..., features]``."""

    def __init__(self, layout: Layout, halvings: int, config: ImageLatentConfig) -> None:
        super().__init__()
        self._layout = layout
        channels, height, width = layout.fields["image"]
        self._sides = (height >> halvings, width >> halvings)
        self._context = [name for name in layout.fields if name not in _MAPS]
        blocks: list[nn.Module] = []
        for group in range(max(halvings, 1)):
            wide = config.channels * 2**group
            for _ in range(config.blocks_per_group):
                blocks.append(_Block(channels, wide, config))
                channels = wide
            if halvings:
                blocks.append(nn.MaxPool2d(2))
        self.stem = nn.Sequential(*blocks)
        rounds, seen, _ = layout.fields["messages"]
        context = sum(math.prod(layout.fields[name]) for name in self._context)
        channels += (rounds + 1) * seen + context
        mixing: list[nn.Module] = []
        for _ in range(config.latent_blocks):
            mixing.append(_Block(channels, config.latent_channels, config))
            channels = config.latent_channels
        self.mixing = nn.Sequential(*mixing)
        self.features = channels * math.prod(self._sides) + context

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """See the class."""
        flat, view = observation.reshape(-1, observation.shape[-1]), self._layout.view
        number, sides = len(flat), self._sides
        told = [view(flat, name).reshape(number, -1) for name in self._context]
        context = torch.cat(told, -1) if told else flat[:, :0]
        maps = [
            self.stem(view(flat, "image")),
            view(flat, "messages").reshape(number, -1, *sides),
            view(flat, "last_message").reshape(number, -1, *sides),
            context[..., None, None].expand(-1, -1, *sides),
        ]
        latent = self.mixing(torch.cat(maps, 1))
        features = torch.cat([latent.reshape(number, -1), context], -1)
        return features.reshape(*observation.shape[:-1], -1)


class _Block(nn.Module):
    """A convolution that keeps the sides, and an activation."""

    def __init__(self, channels: int, wide: int, config: ImageLatentConfig) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, wide, config.kernel_size, padding="same")
        self.activation = ACTIVATIONS[config.activation]()
        self._residual = config.residual and channels == wide

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """``[N, channels, height, width]`` to ``[N, wide, height, width]``."""
        after: torch.Tensor = self.activation(self.convolution(maps))
        return maps + after if self._residual else after
