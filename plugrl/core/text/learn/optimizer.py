"""Options of AdamW, which train services have in common: a schedule, and one step's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class ScheduleConfig:
    """Learning rate over optimizer steps: a linear ramp, then constant or a decay."""

    warmup_steps: int = described(0, "optimizer steps of the linear ramp from 0")
    decay: Literal["constant", "linear", "cosine"] = described("constant", "shape after the ramp")
    total_steps: int | None = described(None, "optimizer step at which the decay ends")
    final_factor: float = described(0.0, "share of the learning rate at the end of the decay")

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError("warmup_steps must not be negative")
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

    learning_rate: float = described(1e-6, "AdamW's learning rate")
    betas: list[float] = described([0.9, 0.999], "AdamW's betas")
    eps: float = described(1e-8, "AdamW's epsilon")
    weight_decay: float = described(0.01, "AdamW's weight decay")
    grad_clip_norm: float = described(1.0, "largest norm of the gradient")
    schedule: ScheduleConfig = described(ScheduleConfig, "learning rate over optimizer steps")

    def __post_init__(self) -> None:
        if self.learning_rate < 0 or not math.isfinite(self.learning_rate):
            raise ConfigError("learning_rate must be a finite number that is not negative")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("betas must be two numbers from 0 to below 1")
        if self.grad_clip_norm <= 0:
            raise ConfigError("grad_clip_norm must be above 0")


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
        """Those of optimizer step ``step``, counted from 0, as an ``OptimizerConfig`` has them."""
        first, second = config.betas
        return cls(
            learning_rate=config.learning_rate * ScheduleConfig.factor(config.schedule, step),
            betas=(first, second),
            eps=config.eps,
            weight_decay=config.weight_decay,
            grad_clip_norm=config.grad_clip_norm,
        )
