"""Parameters spread over the ranks of a device mesh, by ``fully_shard`` of PyTorch (FSDP2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from plugrl.plugins.transformers.training.compiling import layers_of
from plugrl.plugins.transformers.training.spread import spread_like

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plugrl.plugins.transformers.training.forward import Forward
    from plugrl.plugins.transformers.training.micro_batches import MicroBatch

#: Over which ranks parameters are split: all; those of a node, with copies on other nodes; none.
Shard = Literal["full", "hybrid", "none"]


def make_mesh(device: str, workers: int, shard: Shard, node_workers: int) -> DeviceMesh:
    """The mesh of all ranks: parameters are split over its last dimension and copied over others.

    Args:
        device: ``cpu`` or ``cuda``.
        workers: the number of ranks.
        shard: over which of them parameters are split.
        node_workers: ranks of a node, for ``hybrid``.
    """
    if shard == "full":
        return init_device_mesh(device, (workers,), mesh_dim_names=("shard",))
    size = node_workers if shard == "hybrid" else 1
    return init_device_mesh(device, (workers // size, size), mesh_dim_names=("replicate", "shard"))


class Passes(torch.nn.Module):
    """What FSDP wraps: a forward pass from tokens to log-probabilities, with all its weights.

    Embedding and projection to the vocabulary may share a weight, so that both are gathered here.

    Args:
        model: a causal language model.
        forward: computes log-probabilities, entropies and values of it.
    """

    def __init__(self, model: PreTrainedModel, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self.value_head = forward.value_head
        self._forward = forward

    def forward(
        self, part: MicroBatch, needs: Sequence[str]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities of the tokens, [B, T], and what ``needs`` names."""
        if needs:
            return self._forward.with_needs(part, needs)
        return self._forward.log_probs(part), {}


def shard(passes: Passes, mesh: DeviceMesh, *, masters: bool, kept: bool) -> list[FSDPModule]:
    """Split the parameters of a model over ``mesh``, layer by layer; the root comes last.

    Gradients are summed over ranks, not averaged: loss weights hold the denominator of all ranks.

    Args:
        passes: whole, on any device.
        mesh: as :func:`make_mesh` gives it.
        masters: hold trained parameters in float32, of which each pass computes with a copy in
            the model's data type.
        kept: gathered weights stay until a part is resharded; else they are gathered for each
            pass, forward and backward.
    """
    dtype = passes.model.dtype
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    if masters:
        for parameter in passes.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    for layer in layers_of(passes.model):
        fully_shard(layer, mesh=mesh, reshard_after_forward=not kept, mp_policy=policy)
    if passes.value_head is not None:
        # In float32, as without ranks.
        fully_shard(passes.value_head, mesh=mesh, reshard_after_forward=not kept)
    fully_shard(passes, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    parts: list[FSDPModule] = [each for each in passes.modules() if isinstance(each, FSDPModule)]
    for part in parts:
        part.set_gradient_divide_factor(1.0)
        # gloo has no other reduction.
        part.set_force_sum_reduction_for_comms(True)
        part.set_reshard_after_backward(not kept, recurse=False)
    for module in passes.modules():
        # Layers are compiled inside of what FSDP does around them. Of a module with this mark a
        # compiler takes every number for one that changes, such as the width of a head, and cuts
        # the graph where attention asks for it.
        module._is_fsdp_managed_module = False  # type: ignore[assignment]
    return parts


class LocalShards:
    """This rank's parts of the trained parameters, as an optimizer takes them.

    They share memory with what FSDP holds.

    Args:
        parameters: that were split, by name.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._sharded = {name: cast(DTensor, value) for name, value in parameters.items()}
        self._numbered = list(self._sharded.values())
        self.parts = {
            name: torch.nn.Parameter(value.detach().to_local(), requires_grad=value.requires_grad)
            for name, value in self._sharded.items()
        }

    def take_gradients(self) -> None:
        """Move the gradients that FSDP has reduced to the parts."""
        for name, value in self._sharded.items():
            gradient, part = cast("DTensor | None", value.grad), self.parts[name]
            taken = gradient is not None and part.requires_grad
            part.grad = gradient.to_local() if taken else None
            value.grad = None

    def whole(self, number: int) -> DTensor:
        """Parameter ``number``, as the optimizer counts them."""
        return self._numbered[number].detach()  # type: ignore[return-value]

    def spread(self, number: int, part: torch.Tensor) -> DTensor:
        """What this rank has of a tensor that is spread as parameter ``number`` is."""
        like = self._numbered[number]
        return DTensor.from_local(
            part,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def part(self, number: int, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor that has the shape of parameter ``number``."""
        return cast(DTensor, spread_like(self._numbered[number], whole)).to_local()
