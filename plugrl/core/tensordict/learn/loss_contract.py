"""What a loss module must be and give, checked in terms of the trainer that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from plugrl.core.errors import ContractError


def loss_module_and_gae(given: Any, trainer: str) -> tuple[torch.nn.Module, Any]:
    """What ``_get_loss_module_and_gae`` gave, if it is what it must be.

    Args:
        given: what it gave.
        trainer: the name of its class.

    Raises:
        ContractError: it is not a loss module and what estimates advantages, or the module makes
            its gradient itself.
    """
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2
    if not is_pair or not isinstance(given[0], torch.nn.Module):
        raise ContractError(
            f"{trainer}._get_loss_module_and_gae() gave {_kind(given[0] if is_pair else given)}"
            f"{' as loss module' if is_pair else ''}; return two: a torch.nn.Module, and "
            "what estimates advantages or None"
        )
    module, gae = given
    if gae is not None and not callable(gae):
        raise ContractError(
            f"{trainer}._get_loss_module_and_gae() gave {_kind(gae)} to estimate advantages; "
            "return something that is called with a batch, or None"
        )
    if callable(getattr(module, "backward", None)):
        raise ContractError(
            f"{trainer}._get_loss_module_and_gae() gave {type(module).__name__}, whose method "
            "backward nothing calls: the gradient is that of the sum of the losses; give them all "
            "as loss_... of forward(td), and write train(self) for a gradient of another kind"
        )
    _check_targets(module, trainer)
    return module, gae


def move_targets(module: torch.nn.Module) -> None:
    """Move the target networks of a loss module, where it has some, after an optimizer step."""
    update = getattr(module, "update_targets", None)
    if update is not None:
        update()


def targets_state(module: torch.nn.Module) -> dict[str, Any]:
    """How far what moves the target networks has come, such as the count of a ``HardUpdate``."""
    updater = _updater(module)
    return {} if updater is None else dict(updater.state_dict())


def load_targets_state(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Take back what :func:`targets_state` gave."""
    updater = _updater(module)
    if updater is not None and state:
        updater.load_state_dict(state)


def _updater(module: torch.nn.Module) -> Any:
    """The object whose method ``update_targets`` is, with a state that is not the module's."""
    owner = getattr(getattr(module, "update_targets", None), "__self__", None)
    has_state = hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
    return owner if has_state and owner is not module else None


def _check_targets(module: torch.nn.Module, trainer: str) -> None:
    # TorchRL's losses declare their target networks and leave it to others to move them.
    targets = [
        name.removeprefix("target_").removesuffix("_params")
        for name, _ in module.named_children()
        if name.startswith("target_") and name.endswith("_params")
    ]
    if targets and not callable(getattr(module, "update_targets", None)):
        raise ContractError(
            f"{trainer}._get_loss_module_and_gae() gave {type(module).__name__}, whose target "
            f"network of {' and '.join(targets)} nothing moves; before you return it, write "
            "loss.update_targets = SoftUpdate(loss, tau=0.005).step, with SoftUpdate of "
            "torchrl.objectives"
        )


def total_loss(losses: Mapping[str, torch.Tensor] | TensorDictBase) -> torch.Tensor:
    """The sum of what a loss module gave under names that begin with ``loss_``."""
    parts = [value for name, value in losses.items() if name.startswith("loss_")]
    if not parts:
        names = ", ".join(losses.keys()) or "nothing"
        raise ValueError(f"a loss module gives at least one loss_...; this one gave: {names}")
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def check_losses(losses: Any, module: torch.nn.Module) -> None:
    """Refuse what cannot be differentiated.

    Args:
        losses: what the loss module gave for a minibatch.
        module: the loss module.

    Raises:
        ContractError: it gave no mapping, no ``loss_...``, or one that is no scalar.
    """
    name = type(module).__name__
    if not isinstance(losses, (Mapping, TensorDictBase)):
        raise ContractError(
            f"loss module {name} gave {_kind(losses)}; return a mapping with loss_... scalars"
        )
    depends = False
    for key, value in losses.items():
        if not str(key).startswith("loss_"):
            _check_metric(name, key, value)
            continue
        is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not is_real or value.numel() != 1:
            raise ContractError(
                f"loss module {name} gave {_kind(value)} as {key}; return one real number of the "
                "networks as a tensor, such as a mean"
            )
        depends = depends or value.requires_grad
    if not depends:
        has = ", ".join(map(str, losses.keys())) or "nothing"
        raise ContractError(
            f"loss module {name} gave no loss_... that can be differentiated (it gave: {has}); "
            "return one that depends on the networks, without detach() or no_grad()"
        )


def _check_metric(name: str, key: Any, value: Any) -> None:
    is_number = isinstance(value, (int, float)) or (
        isinstance(value, torch.Tensor) and not value.is_complex()
    )
    if not is_number:
        raise ContractError(
            f"loss module {name} gave {_kind(value)} as {key}; metrics are numbers, and "
            "losses have names that begin with loss_"
        )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        return (
            f"a tensor of {str(value.dtype).removeprefix('torch.')} with shape {list(value.shape)}"
        )
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list)) else f"a {kind}"
