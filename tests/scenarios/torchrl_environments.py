"""Environments of TorchRL for tests."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import MarlGroupMapType

from plugrl.scenarios.pettingzoo.two_cartpoles import TwoCartPoles


class Rows(EnvBase):
    """Three environments at once that count; row i ends at i + 2, the last one by truncation.

    The reward is the action; observations are 10 times the row plus the count.
    """

    def __init__(self, crash_at=None, spoil=None):
        super().__init__(batch_size=[3])
        self.observation_spec = Composite(
            observation=Unbounded((3, 1), dtype=torch.float64), shape=[3]
        )
        self.action_spec = Bounded(-2.0, 2.0, (3, 1))
        self.reward_spec = Unbounded((3, 1))
        flags = {
            key: Categorical(2, dtype=torch.bool, shape=(3, 1))
            for key in ("done", "terminated", "truncated")
        }
        self.full_done_spec = Composite(flags, shape=[3])
        self.limit = torch.tensor([[2], [3], [4]])
        self.count = torch.zeros(3, 1, dtype=torch.long)
        self.crash_at, self.spoil, self.calls = crash_at, spoil, 0

    def _told(self, **more):
        row = torch.tensor([[0.0], [10.0], [20.0]], dtype=torch.float64)
        over = self.count >= self.limit
        last = torch.tensor([[False], [False], [True]])
        return TensorDict(
            {
                "observation": row + self.count,
                "terminated": over & ~last,
                "truncated": over & last,
                "done": over,
                **more,
            },
            batch_size=[3],
        )

    def _reset(self, tensordict=None, **kwargs):
        which = None if tensordict is None else tensordict.get("_reset", None)
        if which is None:
            self.count = torch.zeros(3, 1, dtype=torch.long)
        else:
            self.count = torch.where(which, 0, self.count)
        return self._told()

    def _step(self, tensordict):
        self.calls += 1
        if self.calls == self.crash_at:
            raise RuntimeError("the simulator is gone")
        self.count = self.count + 1
        reward = tensordict["action"].clone()
        if self.spoil == "reward":
            reward[1] = float("nan")
        told = self._told(reward=reward)
        if self.spoil == "observation":
            told["observation"][2] = float("inf")
        return told

    def _set_seed(self, seed):
        pass


class Choices(EnvBase):
    """One step; the observation is what was chosen, and tells which kind of action arrived."""

    def __init__(self, kind="onehot"):
        super().__init__()
        self.observation_spec = Composite(observation=OneHot(4))
        self.action_spec = {
            "onehot": lambda: OneHot(4),
            "categorical": lambda: Categorical(4, shape=(1,)),
            "masked": lambda: Categorical(4, mask=torch.tensor([True, False, True, True])),
        }[kind]()
        self.reward_spec = Unbounded((1,))
        self.given = []

    def _reset(self, tensordict=None, **kwargs):
        first = torch.tensor([0, 0, 0, 1], dtype=torch.int64)
        return TensorDict({"observation": first, "done": torch.zeros(1, dtype=torch.bool)})

    def _step(self, tensordict):
        self.given.append(tensordict["action"].tolist())
        return TensorDict(
            {
                "observation": torch.tensor([0, 1, 0, 0]),
                "reward": torch.ones(1),
                "done": torch.zeros(1, dtype=torch.bool),
            }
        )

    def _set_seed(self, seed):
        pass


def two_cartpoles(together=False, **options):
    """Two poles through TorchRL's own wrapper: a group for each agent, or one for both."""
    kind = MarlGroupMapType.ALL_IN_ONE_GROUP
    group = {"group_map": kind} if together else {}
    return PettingZooWrapper(TwoCartPoles(**options), done_on_any=False, use_mask=True, **group)
