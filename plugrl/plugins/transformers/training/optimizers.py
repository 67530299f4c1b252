"""The optimizers of the train service ``local``, all with AdamW's learning rate and decay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch

from plugrl.core.run.process.compiler import missing_compiler
from plugrl.core.text.learn.optimizer import load_optimizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OptimizerName = Literal["adamw", "adamw_8bit", "muon"]
#: Numbers of a parameter from which on torchao quantises its moments, and of one scale.
_QUANTISED_FROM, _BLOCK = 4096, 256
#: The tensors of a quantised moment, and that of AdamW's two which has a sign.
_QUANTISED, _SIGNED = ("codes", "scale", "qmap"), "exp_avg"


def optimizer_fault(name: OptimizerName, device: str | None = None) -> str | None:
    """Why there is no such optimizer here, with the remedy; None if it may work.

    Args:
        name: of the optimizer.
        device: that it runs on; None: not known yet.
    """
    if name != "adamw_8bit":
        return None
    if find_spec("torchao") is None:
        return (
            "adamw_8bit needs the package torchao, which is not installed: "
            'pip install "plugrl[torchao]"'
        )
    reason = None if device is None else missing_compiler(device)
    return reason and f"adamw_8bit is compiled: {reason}, or set adamw"


def embedding_names(
    model: PreTrainedModel, parameters: Mapping[str, torch.nn.Parameter]
) -> set[str]:
    """Names of the parameters with a row for each token: the embedding and the output projection.

    Args:
        model: has them.
        parameters: of the model, or some of them, by name.
    """
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    weights = {id(table.weight) for table in tables if table is not None}
    return {name for name, weight in parameters.items() if id(weight) in weights}


def make_optimizer(
    name: OptimizerName,
    parameters: Mapping[str, torch.nn.Parameter],
    embeddings: Collection[str],
    *,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """The optimizer that a configuration calls ``name``.

    Args:
        name: ``adamw``; ``adamw_8bit``, whose moments take two bytes a parameter (torchao); or
            ``muon``, which orthogonalises the updates of matrices within the model and leaves other
            parameters to AdamW.
        parameters: by name.
        embeddings: as :func:`embedding_names` gives them.
        learning_rate: of AdamW. Muon's updates are scaled to the size of AdamW's.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: decoupled from the gradient.
    """
    adam: dict[str, Any] = {
        "lr": learning_rate,
        "betas": betas,
        "eps": eps,
        "weight_decay": weight_decay,
    }
    if name == "adamw_8bit":
        from torchao.optim import AdamW8bit

        made: torch.optim.Optimizer = AdamW8bit(list(parameters.values()), **adam)
        return made
    if name == "muon":
        matrices = {n for n, p in parameters.items() if _is_for_muon(n, p, embeddings)}
        others = [p for n, p in parameters.items() if n not in matrices]
        return MuonAndAdamW([p for n, p in parameters.items() if n in matrices], others, adam)
    return torch.optim.AdamW(list(parameters.values()), **adam, fused=True)


def _is_for_muon(name: str, parameter: torch.Tensor, embeddings: Collection[str]) -> bool:
    return parameter.dim() == 2 and name not in embeddings


def moment_bytes(
    name: OptimizerName,
    parameters: Mapping[str, torch.nn.Parameter],
    embeddings: Collection[str],
    number: int,
) -> int:
    """Bytes of what an optimizer of :func:`make_optimizer` keeps of parameters between steps.

    Args:
        name: of the optimizer.
        parameters: by name; they need no memory.
        embeddings: as :func:`embedding_names` gives them.
        number: bytes of a number of the parameters, as the optimizer changes them.
    """
    total = 0
    for own, parameter in parameters.items():
        count = parameter.numel()
        if name == "adamw_8bit" and count >= _QUANTISED_FROM and count % _BLOCK == 0:
            # Two moments: codes, a scale for each block, and what each of the 256 codes means.
            total += 2 * (count + 4 * (count // _BLOCK) + 4 * 256)
        elif name == "muon" and _is_for_muon(own, parameter, embeddings):
            total += number * count
        else:
            total += 2 * number * count
    return total


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon of ``torch.optim`` for some parameters and AdamW for others, as one optimizer.

    Args:
        matrices: for Muon.
        others: for AdamW.
        adam: options of AdamW.
    """

    def __init__(
        self,
        matrices: list[torch.nn.Parameter],
        others: list[torch.nn.Parameter],
        adam: Mapping[str, Any],
    ) -> None:
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(
                    matrices,
                    lr=adam["lr"],
                    weight_decay=adam["weight_decay"],
                    # As large as updates of AdamW are, so that one learning rate suits both.
                    adjust_lr_fn="match_rms_adamw",
                )
            )
        if others:
            self._parts.append(torch.optim.AdamW(others, **adam, fused=True))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        """Let the parts work on the groups and the state of the whole."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change all parameters that have a gradient."""
        if closure is not None:
            raise NotImplementedError("a closure")
        for part in self._parts:
            part.step()


def moments(optimizer: torch.optim.Optimizer) -> dict[Any, dict[str, Any]]:
    """The state of each parameter by its number; quantised tensors as what they are made of."""
    return {
        number: {name: _plain(value) for name, value in state.items()}
        for number, state in optimizer.state_dict()["state"].items()
    }


def load_moments(optimizer: torch.optim.Optimizer, saved: Mapping[Any, Mapping[str, Any]]) -> None:
    """Take back what :func:`moments` gave."""
    plain = {
        number: {name: value for name, value in state.items() if not isinstance(value, Mapping)}
        for number, state in saved.items()
    }
    load_optimizer(optimizer, plain)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, state in saved.items():
        parameter = parameters[int(number)]
        for name, value in state.items():
            if isinstance(value, Mapping):
                optimizer.state[parameter][name] = _quantised(value, name, parameter)


def _plain(value: Any) -> Any:
    if not hasattr(value, _QUANTISED[0]):
        return value
    return {name: getattr(value, name) for name in _QUANTISED}


def _quantised(
    parts: Mapping[str, torch.Tensor], name: str, parameter: torch.nn.Parameter
) -> torch.Tensor:
    from torchao.optim.subclass_8bit import OptimState8bit

    held = [parts[part].to(parameter.device, copy=True) for part in _QUANTISED]
    made: torch.Tensor = OptimState8bit(*held, name == _SIGNED, parameter.dtype)
    return made
