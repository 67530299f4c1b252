"""``mlp``: layers that are connected in full."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from plugrl.core.config.schemas.schema import described
from plugrl.core.tensordict.agents.parts import Activation, Body, Flatten, layers


@dataclass
class MlpConfig:
    """Options of the body ``mlp``."""

    hidden: list[int] = described([64, 64], "widths of the layers; empty: none", at_least=1)
    activation: Activation = described("tanh", "what follows each layer")


class MlpBody(Body):
    """Linear layers, each with an activation, over an observation made flat."""

    Config: ClassVar[type] = MlpConfig

    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The layers and the width of the last one."""
        features = math.prod(shape)
        first = [] if len(shape) == 1 else [Flatten(len(shape))]
        hidden = list(self.config.hidden)
        network = nn.Sequential(*first, *layers(features, hidden, self.config.activation))
        return network, hidden[-1] if hidden else features
