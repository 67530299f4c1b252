"""``Harness``: collects experiences and lets an algorithm make losses of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.run.loaded_state import restore_state
from plugrl.core.text.dialogue.contracts import validate_logs, validate_steps
from plugrl.core.text.dialogue.evaluation.metrics import tree_metrics

if TYPE_CHECKING:
    import torch

    from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
    from plugrl.core.text.dialogue.environment import Environment
    from plugrl.core.text.dialogue.tree import RolloutTree

logger = logging.getLogger(__name__)
#: Experiences in a row that may give nothing to learn from.
_EMPTY = 20


class Harness:
    """Between a trainer, an environment and an algorithm.

    Args:
        environment: grows the rollout trees.
        algorithm: makes steps and losses of them; it gets the environment's system if it has none.
        num_episodes_per_experience: trees of an experience.
        batch_size: steps of a batch.
        seed: of everything that is drawn.

    Attributes:
        trees: of the last experience.
        metrics: of the last experience: rewards, scores, success and diversity.

    Raises:
        ConfigError: the algorithm cannot learn from trees of that width, or lacks a baseline.
    """

    def __init__(
        self,
        environment: Environment,
        algorithm: HarnessAlgorithm,
        *,
        num_episodes_per_experience: int = 8,
        batch_size: int = 16,
        seed: int = 0,
    ) -> None:
        if num_episodes_per_experience < 1 or batch_size < 1:
            raise ConfigError("num_episodes_per_experience and batch_size must be at least 1")
        self.environment = environment
        self.algorithm = algorithm
        if algorithm._system is None:
            algorithm.system = environment.system
        environment.check(algorithm)
        self.num_episodes_per_experience = num_episodes_per_experience
        self.batch_size = batch_size
        self.seed = seed
        self.experiences = 0
        self.trees: Sequence[RolloutTree] = ()
        self.metrics: dict[str, float] = {}
        self._empty = 0

    def experience(self, seed: int | None = None) -> Iterator[Any]:
        """Batches of new rollouts, as many times each as the algorithm has epochs.

        Args:
            seed: decides rollouts and order; None: that of the harness and the number of
                experiences so far.

        Raises:
            RunError: no rollout succeeded, or many experiences in a row gave nothing to learn.
        """
        number = self.experiences if seed is None else seed
        root = np.random.SeedSequence([self.seed if seed is None else 0, number])
        self.experiences += 1
        trees_seed, order_seed = root.spawn(2)
        self.environment.system.sync_weights()
        seeds = self.environment.seeds(trees_seed, self.num_episodes_per_experience)
        self.trees = self.environment.rollouts(seeds)
        self.metrics = tree_metrics(self.trees, self.environment.threshold)
        self._check_rollouts()
        algorithm, steps = self.algorithm, []
        for tree in self.trees:
            steps += validate_steps(algorithm, algorithm.flatten(tree), "flatten")
        steps = validate_steps(algorithm, algorithm.prepare(steps), "prepare")
        self.metrics["experience/steps"] = float(len(steps))
        self._count_empty(steps)
        return self._batches(steps, np.random.default_rng(order_seed))

    def _batches(self, steps: Sequence[Any], order: np.random.Generator) -> Iterator[Any]:
        for _ in range(self.algorithm.epochs):
            shuffled = order.permutation(len(steps))
            for start in range(0, len(steps), self.batch_size):
                some = shuffled[start : start + self.batch_size]
                yield self.algorithm.collate_fn([steps[i] for i in some])

    def step(self, batch: Any) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of a batch, to be differentiated, and what the algorithm logs.

        Raises:
            ContractError: the algorithm gave something else.
        """
        answer: Any = self.algorithm.step(batch)
        name = f"{type(self.algorithm).__name__}.step"
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise ContractError(
                f"{name} returned {type(answer).__name__}; (loss, logs) is expected"
            )
        loss, logs = answer
        if getattr(loss, "shape", None) != () or not getattr(loss, "requires_grad", False):
            raise ContractError(
                f"{name} returned a loss that is no scalar tensor with a gradient; return "
                "(loss, logs) with loss.backward() possible"
            )
        return loss, validate_logs(self.algorithm, logs)

    def _check_rollouts(self) -> None:
        failures = [node.failure for tree in self.trees for node in tree.nodes()]
        if failures and all(failures):
            raise RunError(
                f"all {len(failures)} exchanges of an experience failed; the first: {failures[0]}"
            )

    def _count_empty(self, steps: Sequence[Any]) -> None:
        self._empty = 0 if steps else self._empty + 1
        if not self._empty:
            return
        rewards = [n.reward for tree in self.trees for n in tree.nodes() if n.valid]
        cause = (
            f"all {len(rewards)} rewards are {rewards[0]:g}"
            if rewards and min(rewards) == max(rewards)
            else f"{type(self.algorithm).__name__}.flatten gave no step of {len(rewards)} exchanges"
        )
        message = f"an experience gave nothing to learn from: {cause}"
        if self._empty == 1:
            logger.warning("%s", message)
        if self._empty >= _EMPTY:
            raise RunError(
                f"{message}, {_EMPTY} times in a row; check the scorer, or start from a tester "
                "that succeeds at times"
            )

    def state_dict(self) -> dict[str, Any]:
        """How many experiences there were, and the algorithm's own state."""
        return {
            "experiences": self.experiences,
            "empty": self._empty,
            "algorithm": self.algorithm.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.experiences = int(state["experiences"])
        self._empty = int(state["empty"])
        restore_state(self.algorithm, state["algorithm"], "harness algorithm", "the checkpoint")
