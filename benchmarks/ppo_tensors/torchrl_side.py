"""TorchRL's side: its collector, advantages and loss, compiled and in CUDA graphs of its own.

The environment is the same arithmetic as plugrl's, as an ``EnvBase`` whose batch is all copies.
What is compiled and captured is what TorchRL's own PPO implementations compile and capture: the
policy of the collector, the advantages, and the update of a minibatch.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import cart_poles


def main() -> None:
    given = cart_poles.arguments()
    clock = cart_poles.Clock(given)
    warnings.filterwarnings("ignore")
    import torch

    torch.manual_seed(given.seed)
    from tensordict import TensorDict
    from tensordict.nn import CudaGraphModule, TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import Binary, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from plugrl.scenarios.tensor.cart_pole import CartPole

    device = torch.device(given.device)
    on_gpu = device.type == "cuda"

    class Copies(EnvBase):  # type: ignore[misc]
        """All copies of CartPole; those that have ended are reset by TorchRL."""

        def __init__(self) -> None:
            super().__init__(device=device, batch_size=[given.copies])
            self._task = CartPole(given.copies)
            self._task.to(device)
            size, n = [given.copies], given.copies
            self.observation_spec = Composite(
                observation=Unbounded([n, 4], device=device), batch_size=size
            )
            self.action_spec = Categorical(2, shape=[n], device=device)
            self.reward_spec = Unbounded([n, 1], device=device)
            done = Binary(1, shape=[n, 1], dtype=torch.bool, device=device)
            self.done_spec = Composite(done=done, terminated=done, truncated=done, batch_size=size)
            self._state = self._task.initial(self._task.generator)["cart_pole"]
            self._steps = torch.zeros(n, 1, dtype=torch.int64, device=device)
            self.returns = torch.zeros(n, 1, device=device)

        def _set_seed(self, seed: int | None) -> None:
            self._task.generator.manual_seed(seed or 0)

        def _reset(self, tensordict: TensorDict | None = None, **_: Any) -> TensorDict:
            fresh = self._task.initial(self._task.generator)["cart_pole"]
            some = None if tensordict is None else tensordict.get("_reset", None)
            if some is None:
                some = torch.ones(given.copies, 1, dtype=torch.bool, device=device)
            self._state = torch.where(some, fresh, self._state)
            self._steps = torch.where(some, 0, self._steps)
            return self._told(torch.zeros_like(some), torch.zeros_like(some))

        def _step(self, tensordict: TensorDict) -> TensorDict:
            state, reward, terminated = self._task.advance(
                {"cart_pole": self._state}, tensordict["action"]
            )
            self._state = state["cart_pole"]
            self._steps = self._steps + 1
            told = self._told(terminated[:, None], self._steps >= 500)
            told["reward"] = reward.float()[:, None]
            return told

        def _told(self, terminated: torch.Tensor, truncated: torch.Tensor) -> TensorDict:
            return TensorDict(
                {
                    "observation": self._state.float(),
                    "terminated": terminated,
                    "truncated": truncated,
                    "done": terminated | truncated,
                },
                batch_size=[given.copies],
                device=device,
            )

    def network(outputs: int) -> Any:
        return MLP(4, outputs, num_cells=cart_poles.WIDTHS, activation_class=nn.Tanh, device=device)

    environment = Copies()
    environment.set_seed(given.seed)
    actor = ProbabilisticActor(
        TensorDictModule(network(2), ["observation"], ["logits"]),
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        distribution_kwargs={"validate_args": False},
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=cart_poles.CLIP,
        entropy_coeff=cart_poles.ENTROPY,
        critic_coeff=cart_poles.CRITIC,
        loss_critic_type="l2",
        normalize_advantage=True,
        functional=False,
    )
    advantages: Any = GAE(
        gamma=cart_poles.GAMMA, lmbda=cart_poles.LAMBDA, value_network=critic, vectorized=not on_gpu
    )
    parameters = [*actor.parameters(), *critic.parameters()]
    rate = (
        torch.tensor(cart_poles.LEARNING_RATE, device=device)
        if on_gpu
        else cart_poles.LEARNING_RATE
    )
    optimizer = torch.optim.Adam(parameters, rate, eps=1e-5, fused=True, capturable=on_gpu)

    def update(minibatch: TensorDict) -> TensorDict:
        optimizer.zero_grad(set_to_none=True)
        losses = loss(minibatch)
        total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        total.backward()
        nn.utils.clip_grad_norm_(parameters, cart_poles.MAX_NORM)
        optimizer.step()
        return losses.detach()

    more: dict[str, Any] = {}
    if on_gpu:
        update = torch.compile(update)
        update = CudaGraphModule(update, in_keys=[], out_keys=[], warmup=8)
        advantages = torch.compile(advantages)
        more = {"compile_policy": True, "cudagraph_policy": {"warmup": 8}}
    collector = Collector(
        environment,
        actor,
        frames_per_batch=given.batch,
        total_frames=given.batch * given.iterations,
        device=device,
        trust_policy=True,
        **more,
    )
    mean = 0.0
    for data in collector:
        if on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            data = advantages(data)
        rows = data.exclude("next").reshape(-1)
        for _ in range(cart_poles.EPOCHS):
            order = torch.randperm(given.batch, device=device)
            for minibatch in rows[order].split(given.minibatch):
                update(minibatch)
        # Episodes are as long as the time between two ends, on average.
        mean = given.batch / max(1, int(data["next", "done"].sum()))
        clock.iteration()
    collector.shutdown()
    clock.report(mean)


if __name__ == "__main__":
    main()
