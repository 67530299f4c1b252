"""Optimizers: options of AdamW and its schedule, others by name, and what of them is saved."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

#: Optimizers of ``torch.optim`` by their names in configurations.
OPTIMIZERS = {
    "adam": "Adam",
    "adamw": "AdamW",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
}
OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"]


@dataclass
class ScheduleConfig:
    """Learning rate over optimizer steps: a linear ramp, then constant or a decay."""

    warmup_steps: int = described(
        0, "optimizer steps of the linear ramp from 0", at_least=0, at_most=10**9
    )
    decay: Literal["constant", "linear", "cosine"] = described("constant", "shape after the ramp")
    total_steps: int | None = described(
        None, "optimizer step at which the decay ends", at_least=1, at_most=10**9
    )
    final_factor: float = described(
        0.0, "share of the learning rate at the end of the decay", at_least=0, at_most=1
    )

    def __post_init__(self) -> None:
        if self.decay != "constant" and not self.total_steps:
            raise ConfigError(f"decay {self.decay} needs total_steps")
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ConfigError("total_steps must be larger than warmup_steps")

    @staticmethod
    def factor(config: Any, step: int) -> float:
        """Share of the learning rate at optimizer step ``step``, counted from 0."""
        if step < config.warmup_steps:
            return float((step + 1) / (config.warmup_steps + 1))
        if config.decay == "constant":
            return 1.0
        done = min((step - config.warmup_steps) / (config.total_steps - config.warmup_steps), 1.0)
        shape = 1 - done if config.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return float(config.final_factor + (1 - config.final_factor) * shape)


@dataclass
class OptimizerConfig:
    """AdamW and its learning rate."""

    learning_rate: float = described(1e-6, "AdamW's learning rate", at_least=0, at_most=10)
    betas: list[float] = described([0.9, 0.999], "AdamW's betas", at_least=0, below=1)
    eps: float = described(1e-8, "AdamW's epsilon", above=0, at_most=1)
    weight_decay: float = described(0.01, "AdamW's weight decay", at_least=0, at_most=100)
    grad_clip_norm: float = described(1.0, "largest norm of the gradient", above=0, at_most=1e9)
    schedule: ScheduleConfig = described(ScheduleConfig, "learning rate over optimizer steps")

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("betas must be two numbers from 0 to below 1")


@dataclass(frozen=True, slots=True)
class AdamParams:
    """The numbers of one optimizer step of AdamW."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    grad_clip_norm: float

    @classmethod
    def at(cls, config: Any, step: int) -> AdamParams:
        """The numbers of optimizer step ``step``, counted from 0, by an ``OptimizerConfig``."""
        first, second = config.betas
        return cls(
            learning_rate=config.learning_rate * ScheduleConfig.factor(config.schedule, step),
            betas=(first, second),
            eps=config.eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip_norm,
        )


def make_optimizer(
    name: str, parameters: Sequence[torch.nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer of ``torch.optim`` that a configuration calls ``name``."""
    import torch

    optimizer: torch.optim.Optimizer = getattr(torch.optim, OPTIMIZERS[name])(parameters, **options)
    return optimizer


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Moments and options, such as learning rates that a schedule has changed."""
    state = optimizer.state_dict()
    groups = state["param_groups"]
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    return {"state": state["state"], "options": options}


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    moments: Mapping[Any, Mapping[str, Any]],
    options: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Take back what :func:`optimizer_state` gave.

    Args:
        optimizer: of the same parameters.
        moments: its ``state``, by the numbers of parameters, which may be texts.
        options: of its parameter groups; None: they stay as they are.
    """
    groups = optimizer.state_dict()["param_groups"]
    saved = [{}] * len(groups) if options is None else options
    optimizer.load_state_dict(
        {
            # Deep, because torch keeps the given moments and would change them in place.
            "state": {int(k): copy.deepcopy(dict(v)) for k, v in moments.items()},
            "param_groups": [{**own, **given} for own, given in zip(groups, saved, strict=True)],
        }
    )


def gradients(parameters: Sequence[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Copies of the gradients that are there, by the numbers of their parameters."""
    found = enumerate(parameter.grad for parameter in parameters)
    return {str(number): grad.clone() for number, grad in found if grad is not None}


def load_gradients(
    parameters: Sequence[torch.nn.Parameter], saved: Mapping[str, torch.Tensor]
) -> None:
    """Take back what :func:`gradients` gave."""
    for number, parameter in enumerate(parameters):
        grad = saved.get(str(number))
        parameter.grad = None if grad is None else grad.clone().to(parameter.device)
