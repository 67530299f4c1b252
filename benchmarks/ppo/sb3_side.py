"""Stable-Baselines3's side of the benchmark; it runs in an environment without plugrl."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import task


def main() -> None:
    given = task.arguments()
    clock = task.Clock(given)
    import torch

    torch.set_num_threads(1)
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    clock.end("imports")

    class Turns(BaseCallback):
        iterations = 0

        def _on_rollout_start(self) -> None:
            # The end of an iteration calls nothing; the next one's begin does.
            if self.iterations:
                clock.iteration()
            self.iterations += 1

        def _on_training_end(self) -> None:
            clock.iteration()

        def _on_step(self) -> bool:
            return True

    model = PPO(
        "MlpPolicy",
        make_vec_env(task.ENVIRONMENT, n_envs=given.settings.environments, seed=given.seed),
        learning_rate=lambda left: left * task.LEARNING_RATE,
        n_steps=task.STEPS,
        batch_size=given.settings.minibatch,
        n_epochs=task.EPOCHS,
        gamma=task.GAMMA,
        gae_lambda=task.LAMBDA,
        clip_range=task.CLIP,
        clip_range_vf=task.CLIP,
        ent_coef=task.ENTROPY,
        vf_coef=task.CRITIC,
        max_grad_norm=task.MAX_NORM,
        policy_kwargs={"net_arch": {"pi": task.WIDTHS, "vf": task.WIDTHS}},
        seed=given.seed,
        device="cpu",
    )
    clock.end("setup")
    model.learn(given.steps, callback=Turns())
    clock.end("learn")
    returns = [episode["r"] for episode in model.ep_info_buffer or []]
    clock.report(sum(returns) / len(returns))


if __name__ == "__main__":
    main()
