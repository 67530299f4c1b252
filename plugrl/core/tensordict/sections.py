"""The sections that trainers of small networks read, under the names that ``rl`` runs use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.config import AgentConfig
from plugrl.core.tensordict.learn.message_regression import MessageRegressionConfig


@dataclass
class RlConfig:
    """Collection and optimisation, the same for every algorithm."""

    num_iterations: int = described(100, "iterations: collect a batch, learn from it")
    frames_per_batch: int = described(
        2048, "steps of an iteration over all environments, with those that only begin an episode"
    )
    steps_per_env_per_iteration: int | None = described(
        None, "steps of each environment in an iteration; null: frames_per_batch / environments"
    )
    num_epochs: int = described(4, "passes over each batch")
    minibatch_size: int | None = described(64, "steps of one optimizer step; null: the whole batch")
    lr: float = described(3e-4, "learning rate of Adam")
    adam_eps: float = described(1e-5, "epsilon of Adam")
    anneal_lr: bool = described(False, "let the learning rate fall to 0 in a straight line")
    max_grad_norm: float | None = described(0.5, "largest gradient norm of a policy; null: any")
    loss_critic_type: Literal["l2", "smooth_l1", "l1"] = described("l2", "loss of the value head")
    compile: bool | Literal["auto"] = described(
        "auto", "losses and gradients through torch.compile; auto: in runs long enough to earn it"
    )
    clip_value: bool = described(
        False, "keep new values within the clip range of the ones that were collected (PPO)"
    )
    gamma: float = described(0.99, "discount factor")
    lmbda: float = described(0.95, "lambda of generalised advantage estimation")
    use_shared_body: bool = described(False, "one body for the policy head and the value head")
    normalize_observations: bool = described(False, "scale observations to mean 0, variance 1")
    normalize_rewards: bool = described(False, "divide rewards by the deviation of the return")
    num_normalization_steps: int = described(
        1000, "real steps over all environments from which the first statistics are taken"
    )
    num_test_iterations: int = described(0, "evaluation episodes after training")

    def __post_init__(self) -> None:
        for name in ("frames_per_batch", "num_epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        if self.minibatch_size is not None and self.minibatch_size < 1:
            raise ConfigError("minibatch_size must be at least 1, or null for the whole batch")
        for name in ("num_iterations", "num_test_iterations", "num_normalization_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative")
        steps = self.steps_per_env_per_iteration
        if steps is not None and steps < 1:
            raise ConfigError("steps_per_env_per_iteration must be at least 1, or null")
        for name in ("gamma", "lmbda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1")
        for name in ("lr", "adam_eps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ConfigError("max_grad_norm must be more than 0, or null for no limit")


@dataclass
class OnPolicyRlConfig(RlConfig):
    """``rl`` with the defaults that suit one step of the optimizer for each batch.

    For losses that suppose that the present policy took the steps.
    """

    num_epochs: int = described(1, "passes over each batch; only the first is with its own policy")
    minibatch_size: int | None = described(
        None, "steps of one optimizer step; null: the whole batch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_value:
            raise ConfigError(
                "clip_value needs the clip range of ppo, which this trainer has not; leave it out"
            )


@dataclass
class EpisodesConfig:
    """Evaluation episodes during training; their mean return decides which checkpoint is best."""

    enabled: bool = described(True, "evaluate at all")
    every: int = described(0, "iterations between evaluations; 0: only after the last one")
    before_train: bool = described(False, "evaluate before the first iteration too")
    episodes: int = described(10, "episodes of an evaluation")
    deterministic: bool = described(True, "take the likeliest action instead of sampling one")
    opponent: str | None = described(
        None,
        "who acts for the others while each trained agent plays its share of the episodes: random, "
        "or a hand-made policy as agents.NAME.scripted names it; null: their own policies",
    )
    film: Literal["none", "gif", "mp4"] = described(
        "none", "write a film of one more episode into samples/ at each evaluation"
    )

    def __post_init__(self) -> None:
        if self.every < 0:
            raise ConfigError("every must not be negative; 0: only after the last iteration")
        if self.episodes < 1:
            raise ConfigError("episodes must be at least 1")


#: Sections that every trainer of small networks reads.
TENSORDICT: dict[str, Any] = {
    "scenario": component("scenario", help="the task"),
    "agents": dict[str, AgentConfig],
    "rl": RlConfig,
    "validate": EpisodesConfig,
    "message_regression": MessageRegressionConfig,
}
