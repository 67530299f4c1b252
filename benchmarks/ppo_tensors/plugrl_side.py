"""plugrl's side: an ordinary configuration, given to ``plugrl.train``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cart_poles

GIVEN = cart_poles.arguments()
CLOCK = cart_poles.Clock(GIVEN)

import plugrl  # noqa: E402 - the time of importing it counts
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer  # noqa: E402


@plugrl.register_trainer("timed_ppo")
class TimedPpo(VanillaPpoTrainer):
    """Notes when an iteration has ended, records included."""

    returns: float = 0.0

    def _end_iteration(self, iteration: int, metrics: dict[str, float]) -> None:
        super()._end_iteration(iteration, metrics)
        TimedPpo.returns = metrics.get("rollout/mean_episode_return", TimedPpo.returns)
        if iteration > 0:
            CLOCK.iteration()


def configuration(runs_folder: str) -> dict[str, Any]:
    """The run, as a mapping."""
    return {
        "experiment_name": "ppo_gpu",
        "seed": GIVEN.seed,
        "scenario": {"type": "tensor", "environment": "CartPole-v1", "num_envs": GIVEN.copies},
        "agents": {"_default": {"body": {"type": "mlp", "hidden": cart_poles.WIDTHS}}},
        "rl": {
            "num_iterations": GIVEN.iterations,
            "frames_per_batch": GIVEN.batch,
            "num_epochs": cart_poles.EPOCHS,
            "minibatch_size": GIVEN.minibatch,
            "lr": cart_poles.LEARNING_RATE,
            "max_grad_norm": cart_poles.MAX_NORM,
            "gamma": cart_poles.GAMMA,
            "lmbda": cart_poles.LAMBDA,
            "compile": GIVEN.device != "cpu",
        },
        "ppo": {
            "clip_epsilon": cart_poles.CLIP,
            "critic_coef": cart_poles.CRITIC,
            "entropy_eps": cart_poles.ENTROPY,
        },
        # The other side plays no evaluation episodes either.
        "validate": {"enabled": False},
        "trainer": {"type": "timed_ppo"},
        "settings": {"runs_folder": runs_folder, "device": GIVEN.device, "progress": "none"},
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        plugrl.train(configuration(folder))
    CLOCK.report(TimedPpo.returns)
