"""Optimizers by name, and what of them and of gradients is saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: By their names in configurations.
_CLASSES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}


def make_optimizer(
    name: str, parameters: Sequence[torch.nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer of ``torch.optim`` that a configuration calls ``name``."""
    made: Any = _CLASSES[name]
    optimizer: torch.optim.Optimizer = made(parameters, **options)
    return optimizer


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Moments and options, such as learning rates that a schedule has changed."""
    state = optimizer.state_dict()
    groups = state["param_groups"]
    options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    return {"state": state["state"], "options": options}


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Take back what :func:`optimizer_state` gave."""
    groups = optimizer.state_dict()["param_groups"]
    pairs = zip(groups, saved["options"], strict=True)
    optimizer.load_state_dict(
        {
            # Deep, because torch keeps the given moments and would change them in place.
            "state": {int(k): copy.deepcopy(dict(v)) for k, v in saved["state"].items()},
            "param_groups": [{**own, **given} for own, given in pairs],
        }
    )


def gradients(parameters: Sequence[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Copies of the gradients that are there, by the numbers of their parameters."""
    found = enumerate(parameter.grad for parameter in parameters)
    return {str(number): grad.clone() for number, grad in found if grad is not None}


def load_gradients(
    parameters: Sequence[torch.nn.Parameter], saved: Mapping[str, torch.Tensor]
) -> None:
    """Take back what :func:`gradients` gave."""
    for number, parameter in enumerate(parameters):
        grad = saved.get(str(number))
        parameter.grad = None if grad is None else grad.clone().to(parameter.device)
