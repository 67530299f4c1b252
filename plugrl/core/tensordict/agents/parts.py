"""What agents are made of: bodies, heads, and how their weights begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from plugrl.core.component import Component
from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.seeding import seed_of

if TYPE_CHECKING:
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


class Body(Component, ABC):
    """The part of an agent between what it sees and its heads; subclass it for another network."""

    @abstractmethod
    def build(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The network, and how many features it gives.

        The network maps ``[..., *shape]`` to ``[..., features]``, for any number of leading
        dimensions. Its weights are drawn anew afterwards where the agent says so.

        Raises:
            ConfigError: observations of this shape do not fit.
        """

    def build_for(self, spaces: AgentSpaces, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """The network as :meth:`build` gives it, for an agent with these spaces.

        Override it for a body that reads the named parts of an observation, ``spaces.layout``.

        Raises:
            ConfigError: observations do not fit.
        """
        return self.build(shape)

    def head(self, part: str, spaces: AgentSpaces, features: int, outputs: int) -> nn.Module | None:
        """A head of its own above the body; None: an ordinary one, as the agent's settings say.

        Args:
            part: ``policy_head``, ``value_head`` or ``solo_head``.
            spaces: of the agent.
            features: what the network gives.
            outputs: what the head must give.

        Returns:
            Maps ``[..., features]`` to ``[..., outputs]``; its weights stay as they are drawn.
        """
        return None


@dataclass
class HeadConfig:
    """Layers between a body and the numbers that are asked for."""

    hidden: list[int] = described([], "widths of hidden layers", at_least=1)
    activation: Activation = described("tanh", "what follows each hidden layer")
    gain: float = described(
        1.0, "gain of the last layer where it begins orthogonal", above=0, at_most=1000
    )


@dataclass
class PolicyHeadConfig(HeadConfig):
    """The head that gives the parameters of a distribution over actions."""

    gain: float = described(
        0.01, "gain of the last layer where it begins orthogonal", above=0, at_most=1000
    )
    log_std_init: float | None = described(
        None,
        "logarithm of the deviations of real-numbered actions at first, with use_sde of the "
        "weights of the noise; null: 0, or -3 where actions are squashed",
        at_least=-20,
        at_most=5,
    )
    use_sde: bool = described(
        False, "generalised state-dependent exploration: noise is a function of the features"
    )
    sde_sample_freq: int | None = described(
        None,
        "use_sde: steps after which noise is drawn anew within a rollout; null: once for each",
        at_least=1,
        at_most=10**9,
    )
    use_expln: bool = described(
        False, "use_sde: deviations above 1 grow more slowly than by the exponential"
    )

    def __post_init__(self) -> None:
        for name in ("sde_sample_freq", "use_expln"):
            if getattr(self, name) and not self.use_sde:
                raise ConfigError(f"{name} has no effect without use_sde; leave it out")


def layers(features: int, widths: Sequence[int], activation: str) -> list[nn.Module]:
    """Linear layers of these widths, each followed by an activation."""
    modules: list[nn.Module] = []
    for width in widths:
        modules += [nn.Linear(features, width), ACTIVATIONS[activation]()]
        features = width
    return modules


class Flatten(nn.Module):
    """Makes the last ``dimensions`` of a tensor one."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., *shape]`` to ``[..., product of shape]``."""
        return x.reshape(*x.shape[: x.ndim - self.dimensions], -1)


class Head(nn.Module):
    """Hidden layers, a last linear one, and numbers that no observation changes.

    Args:
        features: what a body gives.
        outputs: the numbers asked for.
        free: how many of them, the last ones, are weights alone.
        free_init: where these begin.
        hidden: widths of hidden layers.
        activation: what follows each of them.
    """

    def __init__(
        self,
        features: int,
        outputs: int,
        *,
        free: int = 0,
        free_init: float = 0.0,
        hidden: Sequence[int],
        activation: str,
    ) -> None:
        super().__init__()
        last = hidden[-1] if hidden else features
        linear = nn.Linear(last, outputs - free)
        self.layers = nn.Sequential(*layers(features, hidden, activation), linear)
        self.free = nn.Parameter(torch.full((free,), free_init)) if free else None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[..., features]`` to ``[..., outputs]``."""
        numbers: torch.Tensor = self.layers(features)
        if self.free is None:
            return numbers
        free = self.free.expand(*numbers.shape[:-1], -1)
        return torch.cat([numbers, free], -1)


@contextmanager
def seeded(*names: Any) -> Iterator[None]:
    """Draw from a generator that ``names`` decide, and leave torch's own as it was."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which seeds the generators of GPUs too.
        torch.default_generator.manual_seed(seed_of(*names))
        yield


def initialise(module: nn.Module, gain: float, last_gain: float | None = None) -> None:
    """Draw orthogonal weights, with biases of 0, for linear and convolutional layers.

    Args:
        module: whose layers are drawn.
        gain: of all layers.
        last_gain: of the last one, if another.
    """
    drawn = [m for m in module.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d))]
    for layer in drawn:
        last = layer is drawn[-1] and last_gain is not None
        nn.init.orthogonal_(layer.weight, last_gain if last else gain)  # type: ignore[arg-type]
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@dataclass(frozen=True)
class Link:
    """A linear layer and the activation after it, as NumPy computes it; None: nothing follows."""

    linear: nn.Linear
    activation: Any


def chain_of(*modules: nn.Module) -> list[Link] | None:
    """Modules in a row as linear layers with tanh or ReLU; None: they are something else."""
    links: list[Link] = []
    for module in _leaves(modules):
        if type(module) is nn.Linear and module.bias is not None:
            links.append(Link(module, None))
        elif type(module) in _UFUNCS and links and links[-1].activation is None:
            links[-1] = Link(links[-1].linear, _UFUNCS[type(module)])
        elif type(module) is not nn.Identity and not (type(module) is Flatten and not links):
            return None
    return links


_UFUNCS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def _leaves(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _leaves(list(module))
        else:
            yield module
