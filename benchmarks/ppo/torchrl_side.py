"""TorchRL's side: its own collector, advantages, loss and replay buffer, without plugrl.

The environments are gymnasium's ``SyncVectorEnv``: TorchRL's own ``SerialEnv`` of as many
``GymEnv`` was slower, and its wrapper refuses CartPole's own vector environment. The update is the
quick one that a user of TorchRL can write: networks are not functional, advantages are estimated
once, minibatches are split from one permuted copy an epoch, and Adam is fused.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task


def main() -> None:
    given = task.arguments()
    clock = task.Clock(given)
    warnings.filterwarnings("ignore")
    import gymnasium
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    clock.end("imports")

    def network(outputs: int, gain: float) -> Any:
        made = MLP(4, outputs, num_cells=task.WIDTHS, activation_class=nn.Tanh)
        linear = [module for module in made if isinstance(module, nn.Linear)]
        for layer in linear:
            nn.init.orthogonal_(layer.weight, gain if layer is linear[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
        return made

    copies = [lambda: gymnasium.make(task.ENVIRONMENT)] * given.settings.environments
    vector = SyncVectorEnv(copies, autoreset_mode=AutoresetMode.SAME_STEP)
    environment = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
    environment.set_seed(given.seed)
    actor = ProbabilisticActor(
        TensorDictModule(network(2, 0.01), ["observation"], ["logits"]),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1, 1.0), in_keys=["observation"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=task.CLIP,
        clip_value=task.CLIP,
        entropy_coeff=task.ENTROPY,
        critic_coeff=task.CRITIC,
        loss_critic_type="l2",
        normalize_advantage=True,
        functional=False,
    )
    advantages = GAE(gamma=task.GAMMA, lmbda=task.LAMBDA, value_network=critic)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, task.LEARNING_RATE, eps=task.ADAM_EPS, fused=True)
    batch = given.settings.batch
    collector = Collector(environment, actor, frames_per_batch=batch, total_frames=given.steps)
    clock.end("setup")

    returns: list[float] = []
    for iteration, data in enumerate(collector):
        optimizer.param_groups[0]["lr"] = task.LEARNING_RATE * (1 - iteration / given.iterations)
        returns += data["next", "episode_reward"][data["next", "done"]].tolist()
        with torch.no_grad():
            advantages(data)
        rows = data.reshape(-1)
        for _ in range(task.EPOCHS):
            for minibatch in rows[torch.randperm(batch)].split(given.settings.minibatch):
                losses = loss(minibatch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(parameters, task.MAX_NORM)
                optimizer.step()
        clock.iteration()
    collector.shutdown()
    clock.end("learn")
    clock.report(sum(returns[-100:]) / len(returns[-100:]))


if __name__ == "__main__":
    main()
