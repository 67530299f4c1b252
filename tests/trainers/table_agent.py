"""An agent whose outputs are its parameters, and the same one for TorchRL's loss modules."""

import torch
from gymnasium.spaces import Discrete
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, ValueOperator

from plugrl.core.tensordict.agents.distributions.choice import distribution_for


class TableAgent(nn.Module):
    """Logits and values by state; observations are the numbers of states, ``[rows, 1]``."""

    def __init__(self, logits, values, start=0):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits, dtype=torch.float32))
        self.values = nn.Parameter(torch.as_tensor(values, dtype=torch.float32))
        self.distribution = distribution_for(Discrete(self.logits.shape[1], start=start))

    def policy(self, observation):
        return self.logits[observation.squeeze(-1).long()]

    def value(self, observation):
        return self.values[observation.squeeze(-1).long()]

    def policy_and_value(self, observation):
        return self.policy(observation), self.value(observation)

    def operators(self):
        """Actor and critic for TorchRL, on the same parameters."""
        return (
            ProbabilisticActor(
                TensorDictModule(_Part(self, "policy"), ["observation"], ["logits"]),
                in_keys=["logits"],
                distribution_class=torch.distributions.Categorical,
                return_log_prob=True,
            ),
            ValueOperator(_Part(self, "value"), in_keys=["observation"]),
        )


class _Part(nn.Module):
    def __init__(self, agent, name):
        super().__init__()
        self.agent, self.name = agent, name

    def forward(self, observation):
        answer = getattr(self.agent, self.name)(observation)
        return answer if self.name == "policy" else answer.unsqueeze(-1)


def random_agent(seed=0, states=6, actions=3):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(states, actions, generator=generator)
    return TableAgent(logits, torch.randn(states, generator=generator))


def random_rows(agent, count=64, seed=1, spread=0.5):
    """Rows as a learner gives them, taken by a policy that differs by ``spread``."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    state = torch.randint(len(agent.values), (count, 1), generator=generator)
    old = agent.logits.detach()[state[:, 0]] + spread * normal(count, agent.logits.shape[1])
    action = torch.multinomial(old.softmax(-1), 1, generator=generator)
    value = agent.values.detach()[state[:, 0]] + spread * normal(count)
    return TensorDict(
        {
            "observation": state,
            "action": action[:, 0],
            "action_log_prob": old.log_softmax(-1).gather(-1, action)[:, 0],
            "advantage": normal(count, 1) * 2 + 1,
            "value_target": normal(count, 1) * 2,
            "state_value": value[:, None],
        },
        batch_size=[count],
    )


def gradients(agent, losses):
    """Of the sum of the losses, in logits and values."""
    total = sum(value for name, value in losses.items() if name.startswith("loss_"))
    return torch.autograd.grad(total, [agent.logits, agent.values], allow_unused=True)
