"""plugrl's side of the benchmark: an ordinary configuration, given to ``plugrl.train``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task

GIVEN = task.arguments()
CLOCK = task.Clock(GIVEN)

import plugrl  # noqa: E402 - the time of importing it counts
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer  # noqa: E402


@plugrl.register_trainer("timed_ppo")
class TimedPpo(VanillaPpoTrainer):
    """Notes when ``train`` begins and ends, and when an iteration has ended, records included."""

    returns: float = 0.0

    def train(self) -> Any:
        CLOCK.end("setup")
        result = super().train()
        CLOCK.end("learn")
        return result

    def _end_iteration(self, iteration: int, metrics: dict[str, float]) -> None:
        super()._end_iteration(iteration, metrics)
        TimedPpo.returns = metrics.get("rollout/mean_episode_return", TimedPpo.returns)
        if iteration == 1 and GIVEN.implementation == "compiled":
            # Compiling belongs to the first iteration, which counts for no ratio.
            CLOCK.end("compile")
            CLOCK.left_out = GIVEN.settings.batch
        if iteration > 0:
            CLOCK.iteration()


def configuration(given: task.Given, implementation: str) -> dict[str, Any]:
    """The run, as a mapping; ``compiled`` is plugrl's implementation through torch.compile."""
    compiled = implementation == "compiled"
    return {
        "experiment_name": "ppo_cartpole",
        "seed": given.seed,
        "scenario": {
            "type": "gymnasium",
            "id": task.ENVIRONMENT,
            "num_envs": given.settings.environments,
        },
        "agents": {"_default": {"body": {"type": "mlp", "hidden": task.WIDTHS}}},
        "rl": {
            "num_iterations": given.iterations,
            "frames_per_batch": given.settings.batch,
            "num_epochs": task.EPOCHS,
            "minibatch_size": given.settings.minibatch,
            "lr": task.LEARNING_RATE,
            "adam_eps": task.ADAM_EPS,
            "anneal_lr": True,
            "max_grad_norm": task.MAX_NORM,
            "clip_value": True,
            "gamma": task.GAMMA,
            "lmbda": task.LAMBDA,
            "compile": compiled,
        },
        "ppo": {
            "implementation": "plugrl" if compiled else implementation,
            "clip_epsilon": task.CLIP,
            "critic_coef": task.CRITIC,
            "entropy_eps": task.ENTROPY,
        },
        # The other sides play no evaluation episodes either.
        "validate": {"enabled": False},
        "trainer": {"type": "timed_ppo"},
        "settings": {
            "runs_folder": str(given.folder / "runs"),
            "torch_threads": 1,
            "device": "cpu",
        },
    }


if __name__ == "__main__":
    CLOCK.end("imports")
    plugrl.train(configuration(GIVEN, GIVEN.implementation or "plugrl"))
    CLOCK.end("end")
    CLOCK.report(TimedPpo.returns)
