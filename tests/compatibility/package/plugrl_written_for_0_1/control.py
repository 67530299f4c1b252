"""A trainer of small networks with a loss and a body of its own."""

from dataclasses import dataclass

import torch

import plugrl


@dataclass
class WideConfig:
    width: int = plugrl.described(24, "units of the layer")


class Wide(plugrl.Body):
    Config = WideConfig

    def build(self, shape):
        layer = torch.nn.Linear(shape[0], self.config.width)
        return torch.nn.Sequential(layer, torch.nn.Tanh()), self.config.width


@dataclass
class RegressionConfig:
    temperature: float = plugrl.described(1.0, "advantages are divided by it")


class WeightedRegression(torch.nn.Module):
    def __init__(self, agent, temperature):
        super().__init__()
        self.agent, self.temperature = agent, temperature

    def forward(self, rows):
        parameters = self.agent.policy(rows["observation"])
        log_prob = self.agent.distribution.log_prob(parameters, rows["action"])
        value = self.agent.value(rows["observation"])
        weight = (rows["advantage"].squeeze(-1) / self.temperature).exp().clamp(max=10.0)
        target = rows["value_target"].squeeze(-1)
        return {
            "loss_policy": -(weight * log_prob).mean(),
            "loss_value": (value - target).square().mean(),
            "weight": weight.mean(),
        }


class Regression(plugrl.TensorDictRlTrainer):
    sections = {**plugrl.TensorDictRlTrainer.sections, "regression": RegressionConfig}

    def _get_loss_module_and_gae(self):
        rl = self.hyper_params.rl
        module = WeightedRegression(self.agent, self.hyper_params.regression.temperature)
        return module, plugrl.GeneralisedAdvantage(self.agent, rl.gamma, rl.lmbda)
