"""Stable-Baselines3's side of the benchmark; it runs in an environment without plugrl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task


def main() -> None:
    given = task.arguments()
    clock = task.Clock(given)
    import numpy
    import stable_baselines3 as sb3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    clock.end("imports")

    class Turns(BaseCallback):
        def _on_step(self) -> bool:
            # Called before the updates of a step, so the first one of the next iteration.
            if self.n_calls > 1 and self.n_calls % task.ITERATION == 1:
                clock.iteration()
            return True

        def _on_training_end(self) -> None:
            clock.iteration()

    own = given.settings
    options: dict[str, Any] = {}
    if given.algorithm == "dqn":
        options["target_update_interval"] = task.TARGET_INTERVAL
        options |= {"exploration_fraction": task.FRACTION, "exploration_final_eps": task.FINAL_EPS}
    else:
        options["tau"] = task.TAU
    if given.algorithm == "td3":
        options["action_noise"] = NormalActionNoise(numpy.zeros(1), numpy.full(1, task.NOISE))
    model = getattr(sb3, given.algorithm.upper())(
        "MlpPolicy",
        make_vec_env(own.environment, n_envs=1, seed=given.seed),
        learning_rate=own.learning_rate,
        buffer_size=own.buffer,
        learning_starts=own.learning_starts,
        batch_size=own.batch,
        gamma=task.GAMMA,
        train_freq=own.train_freq,
        gradient_steps=own.updates,
        policy_kwargs={"net_arch": task.WIDTHS, "activation_fn": torch.nn.ReLU},
        seed=given.seed,
        device="cpu",
        **options,
    )
    clock.end("setup")
    model.learn(given.steps, callback=Turns())
    clock.end("learn")
    returns = [episode["r"] for episode in model.ep_info_buffer or []]
    clock.report(sum(returns) / max(1, len(returns)))


if __name__ == "__main__":
    main()
