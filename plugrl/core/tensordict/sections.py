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

    num_iterations: int = described(
        100, "iterations: collect a batch, learn from it", at_least=0, at_most=10**9
    )
    frames_per_batch: int = described(
        2048,
        "steps of an iteration over all environments, with those that only begin an episode",
        at_least=1,
        at_most=10**9,
    )
    steps_per_env_per_iteration: int | None = described(
        None,
        "steps of each environment in an iteration; null: frames_per_batch / environments",
        at_least=1,
        at_most=10**9,
    )
    num_epochs: int = described(4, "passes over each batch", at_least=1, at_most=10**5)
    minibatch_size: int | None = described(
        64, "steps of one optimizer step; null: the whole batch", at_least=1, at_most=10**9
    )
    optimizer: Literal["adam", "rmsprop"] = described(
        "adam", "Adam, or RMSprop whose mean of squares decays by 0.99, as A3C and A2C had it"
    )
    lr: float = described(3e-4, "learning rate", above=0, at_most=10)
    adam_eps: float = described(1e-5, "epsilon of Adam or RMSprop", above=0, at_most=1)
    anneal_lr: bool = described(False, "let the learning rate fall to 0 in a straight line")
    max_grad_norm: float | None = described(
        0.5, "largest gradient norm of a policy; null: any", above=0, at_most=1e9
    )
    loss_critic_type: Literal["l2", "smooth_l1", "l1"] = described("l2", "loss of the value head")
    compile: bool | Literal["auto"] = described(
        "auto", "losses and gradients through torch.compile; auto: in runs long enough to earn it"
    )
    clip_value: bool = described(
        False, "keep new values within the clip range of the ones that were collected (PPO)"
    )
    gamma: float = described(0.99, "discount factor", at_least=0, at_most=1)
    lmbda: float = described(
        0.95, "lambda of generalised advantage estimation", at_least=0, at_most=1
    )
    use_shared_body: bool = described(False, "one body for the policy head and the value head")
    normalize_observations: bool = described(False, "scale observations to mean 0, variance 1")
    normalize_rewards: bool = described(False, "divide rewards by the deviation of the return")
    num_normalization_steps: int = described(
        1000,
        "real steps over all environments from which the first statistics are taken",
        at_least=0,
        at_most=10**9,
    )
    num_test_iterations: int = described(
        0, "evaluation episodes after training", at_least=0, at_most=10**9
    )


@dataclass
class OnPolicyRlConfig(RlConfig):
    """``rl`` with the defaults that suit one step of the optimizer for each batch.

    For losses that suppose that the present policy took the steps.
    """

    num_epochs: int = described(
        1,
        "passes over each batch; only the first is with its own policy",
        at_least=1,
        at_most=10**5,
    )
    minibatch_size: int | None = described(
        None, "steps of one optimizer step; null: the whole batch", at_least=1, at_most=10**9
    )

    def __post_init__(self) -> None:
        if self.clip_value:
            raise ConfigError(
                "clip_value needs the clip range of ppo, and this trainer has none; leave it out"
            )


@dataclass
class EpisodesConfig:
    """Evaluation episodes during training; their mean return decides which checkpoint is best."""

    enabled: bool = described(True, "evaluate at all")
    every: int = described(
        0, "iterations between evaluations; 0: only after the last one", at_least=0, at_most=10**9
    )
    before_train: bool = described(False, "evaluate before the first iteration too")
    episodes: int = described(10, "episodes of an evaluation", at_least=1, at_most=10**6)
    deterministic: bool = described(True, "take the likeliest action instead of sampling one")
    opponent: str | None = described(
        None,
        "who acts for the others while each trained agent plays its share of the episodes: random, "
        "or a hand-made policy as agents.NAME.scripted names it; null: their own policies",
        file="code",
    )
    film: Literal["none", "gif", "mp4"] = described(
        "none", "write a film of one more episode into samples/ at each evaluation"
    )


#: Sections that every trainer of small networks reads.
TENSORDICT: dict[str, Any] = {
    "scenario": component("scenario", help="the task"),
    "agents": dict[str, AgentConfig],
    "rl": RlConfig,
    "validate": EpisodesConfig,
    "message_regression": MessageRegressionConfig,
}
