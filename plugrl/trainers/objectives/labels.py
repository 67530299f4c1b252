"""What agents lose by guessing labels, and how often they are right."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn
from torch.nn import functional

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.agents.agents import Agent
from plugrl.core.tensordict.environment.labelled import Labelled
from plugrl.core.tensordict.environment.layout import Layout

#: Items that are evaluated at a time.
_AT_ONCE = 4096


class LabelObjective(nn.Module):
    """Cross-entropy of an agent's solo head on rows with ``observation`` and ``label``."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, rows: TensorDictBase) -> dict[str, torch.Tensor]:
        """``loss_label``, and the ``accuracy`` on the rows."""
        logits, labels = self.agent.label_logits(rows["observation"]), rows["label"]
        accuracy = (logits.detach().argmax(-1) == labels).float().mean()
        return {"loss_label": functional.cross_entropy(logits, labels), "accuracy": accuracy}


def check_sight(agent: Agent, items: Labelled | None = None) -> Layout:
    """The parts of what ``agent`` sees.

    Raises:
        ConfigError: there are none, or none of the arrays of ``items`` is among them.
    """
    layout = agent.spaces.layout
    if layout is None or (items is not None and not set(layout.fields) & set(items.arrays)):
        raise ConfigError(
            f"agent {agent.name!r} sees no items that have labels; take a scenario whose agents "
            "do, such as {type: image_classification}"
        )
    return layout


def sight_of(agent: Agent, items: Labelled) -> torch.Tensor:
    """What ``agent`` sees of items about which nothing was said yet, ``[M, size]``.

    Raises:
        ConfigError: it sees nothing of them.
    """
    layout = check_sight(agent, items)
    fields = {
        name: items.arrays[name]
        if name in items.arrays
        else np.broadcast_to(np.float32(0), (len(items), *shape))
        for name, shape in layout.fields.items()
    }
    return torch.from_numpy(layout.pack(fields))


@torch.no_grad()
def accuracies(agent: Agent, items: Labelled) -> dict[str, float]:
    """``accuracy`` and ``loss`` of an agent, and ``accuracy/GROUP`` of each group that has items.

    Args:
        agent: with a solo head.
        items: at least one.
    """
    device = next(agent.parameters()).device
    labels = torch.from_numpy(np.asarray(items.labels, np.int64))
    logits = torch.cat(
        [
            agent.label_logits(rows.to(device)).cpu()
            for rows in sight_of(agent, items).split(_AT_ONCE)
        ]
    )
    right = (logits.argmax(-1) == labels).numpy()
    metrics = {
        "accuracy": float(right.mean()),
        "loss": float(functional.cross_entropy(logits, labels)),
    }
    for number, name in enumerate(items.group_names):
        if items.groups is not None and (members := items.groups == number).any():
            metrics[f"accuracy/{name}"] = float(right[members].mean())
    return metrics
