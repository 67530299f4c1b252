"""Memory and communication of each device, computed from a configuration alone.

The formulas stand in ``docs/distributed-training.md``, and the tests compare them with what two
ranks held and sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from plugrl.plugins.transformers.model_shape import ModelShape
from plugrl.plugins.transformers.outline import options_of
from plugrl.plugins.transformers.training.memory import enough_tokens

#: Bytes of a number of a gradient that is reduced over devices.
_REDUCED = 4
#: Bytes of whole weights that stay on a rank during a step where nothing is set.
_ROOM = 8 * 2**30
#: Gradients of a layer's states that are there at the same time, as a share of the states.
_UNDER_WAY = 0.4
#: What the optimizers are called.
_OPTIMIZERS = {"adamw": "AdamW", "adamw_8bit": "AdamW in 8 bits", "muon": "Muon and AdamW"}


def stays_gathered(nbytes: int, reshard_after_forward: bool | Literal["auto"]) -> bool:
    """Whether whole weights of ``nbytes`` are gathered once a step, in place of twice a pass."""
    return nbytes <= _ROOM if reshard_after_forward == "auto" else not reshard_after_forward


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of one device.

    Attributes:
        weights: that it keeps: its part of the trained ones, and of the frozen ones.
        gradients: its part of them.
        moments: its part of what the optimizer keeps.
        gathered: whole weights and gradients that are there at the same time at most.
        activations: of one micro-batch, an estimate.
        received: over the network in an optimizer step of one micro-batch; weights that stay
            gathered come in the first one alone.
        synced: of the weights that go to the engines after a step.
    """

    weights: int
    gradients: int
    moments: int
    gathered: int
    activations: int
    received: int
    synced: int

    @property
    def memory(self) -> int:
        """All that is there at the same time."""
        return self.weights + self.gradients + self.moments + self.gathered + self.activations

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        devices: int,
        *,
        split: int,
        tokens: int,
        computed_again: bool,
        head_tokens: int,
        reshard_after_forward: bool | Literal["auto"] = "auto",
    ) -> DevicePlan:
        """The plan of one of ``devices``.

        Args:
            shape: of the model.
            devices: how many there are.
            split: over how many of them weights, gradients and optimizer are split.
            tokens: of a micro-batch.
            computed_again: whether layers are computed again in the backward pass.
            head_tokens: of which logits are there at the same time.
            reshard_after_forward: the option of the service.
        """
        adapter = shape.trained < shape.parameters
        frozen = shape.parameters if adapter else 0
        kept = stays_gathered(shape.parameters * shape.bytes, reshard_after_forward)
        # All weights, or two layers: the one that is computed, and the next, which is fetched
        # meanwhile. One device has copies of its own too.
        gathered = (shape.parameters if kept else 2 * shape.layer + shape.root) * shape.bytes
        if not adapter:
            # Gradients of a layer: as computed, and in float32 to be reduced.
            gathered += (shape.layer + shape.root) * (shape.bytes + _REDUCED)
        states = shape.states(tokens)
        gradients = int(states * _UNDER_WAY)
        logits = shape.logits(min(tokens, head_tokens))
        # Logits are gone when the backward pass comes to the layers.
        if computed_again:
            activations = tokens * shape.bytes * shape.hidden * shape.layers
            activations += max(states + gradients, logits)
        else:
            activations = states * shape.layers + max(gradients, logits)
        other = (split - 1) / split
        copies = devices // split
        fetched = shape.layers * shape.layer * (1 if kept else 2) + shape.root
        received = other * (fetched * shape.bytes + shape.trained * _REDUCED)
        received += 2 * (copies - 1) / copies * shape.trained * _REDUCED / split
        return cls(
            weights=(shape.trained * shape.kept + frozen * shape.bytes) // split,
            gradients=shape.trained * shape.kept // split,
            moments=shape.moments // split,
            gathered=gathered,
            activations=activations,
            received=int(received),
            synced=shape.parameters * shape.bytes,
        )


def device_rows(model: Any, devices: int, machines: int = 1) -> list[tuple[str, str]]:
    """The plan of a trained model as (what, how much); empty: its source says too little.

    Args:
        model: an entry of ``models``, with its train service.
        devices: how many train it.
        machines: which have them, as many each.
    """
    from plugrl.core.run.process.memory import format_gib

    shape, train = ModelShape.of(model), model.train
    if shape is None:
        return []
    copies = {"hybrid": machines, "none": devices}.get(train.get("shard") or "full", 1)
    tokens = train.micro_batch_tokens
    if not tokens and train.micro_batch_size:
        length = int(options_of(model.source).get("max_position_embeddings") or 1024)
        tokens = min(train.micro_batch_size * length, 2**20)
    elif not tokens:
        tokens = enough_tokens(shape, train, compiled=False)
    plan = DevicePlan.of(
        shape,
        devices,
        split=devices // copies,
        tokens=tokens,
        computed_again=train.gradient_checkpointing,
        head_tokens=train.head_chunk_tokens,
        reshard_after_forward=train.get("reshard_after_forward", "auto"),
    )
    optimizer = _OPTIMIZERS[train.get("optimizer") or "adamw"]
    return [
        ("parameters", f"{shape.parameters:,} ({shape.trained:,} trained)"),
        (
            "split over devices",
            f"{devices // copies}, in {copies} {'copy' if copies == 1 else 'copies'}",
        ),
        ("weights a device", format_gib(plan.weights)),
        ("gradients a device", format_gib(plan.gradients)),
        (f"moments of {optimizer} a device", format_gib(plan.moments)),
        ("gathered weights and gradients a device, at most", format_gib(plan.gathered)),
        (f"activations of {tokens:,} tokens, about", format_gib(plan.activations)),
        ("memory a device, about", format_gib(plan.memory)),
        ("received a device and pass, at most", format_gib(plan.received)),
        ("weights to the engines a sync", format_gib(plan.synced)),
    ]
