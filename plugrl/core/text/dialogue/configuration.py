"""What the trainers of red-teaming are configured with, from code as from YAML."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.suggest import did_you_mean

OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad"]
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad")
Class = TypeVar("Class", bound=type)


def _strict(cls: Class) -> Class:
    """Let a configuration class refuse arguments that it does not have by name."""
    plain: Callable[..., None] = cls.__init__  # type: ignore[misc]

    @functools.wraps(plain)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        known = list(inspect.signature(plain).parameters)[1:]
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            close = did_you_mean(unknown[0], known, 1)
            raise ConfigError(
                f"{type(self).__name__} has no field {unknown[0]!r}; its fields are: "
                f"{', '.join(known)}{close}"
            )
        plain(self, *args, **kwargs)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


@_strict
@dataclass
class TrainingConfiguration:
    """What the trainer ``harness`` is told; a subclass may set any other attribute.

    Raises:
        ConfigError: an argument is unknown, or a value is outside its range.
    """

    lr: float = described(3e-3, "learning rate")
    batch_size: int = described(16, "steps of the algorithm in a batch, such as pairs")
    optimizer: OptimizerName = described("adamw", "which optimizer of torch.optim")
    gradient_accumulation_steps: int = described(1, "batches whose gradients an update adds up")
    training_steps: int = described(1024, "experiences, each a set of new rollouts")
    num_episodes_per_experience: int = described(8, "rollout trees of an experience")
    algorithm: Any = component("harness_algorithm", "dpo", help="from rollout trees to a loss")

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.optimizer not in OPTIMIZERS:
            close = did_you_mean(str(self.optimizer), OPTIMIZERS, 1)
            raise ConfigError(
                f"optimizer {self.optimizer!r} is unknown; it is one of "
                f"{', '.join(OPTIMIZERS)}{close}"
            )
        if not self.lr > 0:
            raise ConfigError(f"lr is {self.lr}; it must be above 0")
        if self.training_steps < 0:
            raise ConfigError(f"training_steps is {self.training_steps}; it must not be negative")
        for name in ("batch_size", "gradient_accumulation_steps", "num_episodes_per_experience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")


@_strict
@dataclass
class HFASTConfiguration(TrainingConfiguration):
    """What the trainer ``hf_ast`` is told; without arguments, sizes for language models.

    Raises:
        ConfigError: as :class:`TrainingConfiguration`.
    """

    lr: float = described(1e-5, "learning rate")
    batch_size: int = described(4, "steps of the algorithm in a batch, such as pairs")
    training_steps: int = described(1000, "experiences, each a set of new rollouts")
    num_episodes_per_experience: int = described(2, "rollout trees of an experience")
    weight_decay: float = described(0.0, "of the optimizer")
    max_grad_norm: float | None = described(1.0, "gradients are scaled down to it; null: never")
    schedule: Literal["constant", "linear", "cosine"] = described(
        "constant", "how the learning rate falls after the warm-up, to 0 at the end"
    )
    warmup_steps: int = described(0, "training steps over which the learning rate grows to lr")
    mixed_precision: Literal["no", "bf16", "fp16"] = described(
        "no", "precision of the forward pass; fp16 on a GPU alone"
    )
    eval_every: int = described(100, "training steps between development evaluations; 0: never")
    dev_split: str = described("development", "split of the scenario that is evaluated on")
    best_by: Literal["reward", "score", "success"] = described(
        "reward", "which number of a development evaluation is its score"
    )
    early_stopping_patience: int | None = described(
        None, "evaluations without a better score after which training ends; null: never"
    )
    early_stopping_min_delta: float = described(0.0, "by how much a score must be better")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm is {self.max_grad_norm}; it must be above 0, or null")
        for name in ("weight_decay", "warmup_steps", "eval_every", "early_stopping_min_delta"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.training_steps and self.warmup_steps >= self.training_steps:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps}; it must be below training_steps, "
                f"{self.training_steps}"
            )
        _check_choices(self, ("schedule", "mixed_precision", "best_by"))
        patience = self.early_stopping_patience
        if patience is not None and (patience < 1 or not self.eval_every):
            raise ConfigError(
                "early_stopping_patience must be at least 1, or null, and needs eval_every above 0"
            )


def _check_numbers(config: Any) -> None:
    """Refuse what is no number, or no finite one; YAML is checked before, code is not."""
    hints: dict[str, Any] = {}
    for cls in type(config).__mro__:
        # Fields that others add are theirs to check, and may be annotated in any way.
        if cls.__module__ == __name__:
            hints = get_type_hints(cls) | hints
    for name, hint in hints.items():
        sorts, value = (hint, *get_args(hint)), getattr(config, name)
        if not {int, float} & set(sorts) or (value is None and type(None) in sorts):
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name} is {value!r:.40}; a number is expected")
        if float not in sorts and not isinstance(value, int):
            raise ConfigError(f"{name} is {value!r}; a whole number is expected")
        if not math.isfinite(value):
            raise ConfigError(f"{name} is {value}; a finite number is expected")


def _check_choices(config: Any, names: tuple[str, ...]) -> None:
    """Refuse values that are none of the choices; YAML is checked before, code is not."""
    hints = get_type_hints(type(config))
    for name in names:
        value, choices = getattr(config, name), get_args(hints[name])
        if value not in choices:
            known = ", ".join(choices)
            raise ConfigError(f"{name} is {value!r}; it is one of {known}")
