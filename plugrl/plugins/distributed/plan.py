"""Memory and communication of each device, computed from a configuration alone.

The formulas stand in ``docs/distributed-training.md``, and the tests compare them with what two
ranks held and sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from plugrl.plugins.transformers.outline import options_of, parameter_count, trained_by_adapter

#: Bytes of a number of a gradient, and of the two moments of AdamW together.
_GRADIENT, _MOMENTS = 4, 8
#: Bytes of the numbers that the vocabulary projection of a token holds: logits in float32, their
#: log-probabilities, and the gradient of either.
_LOGIT = 16


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model.

    Attributes:
        layers: how many there are.
        layer: parameters of one.
        root: parameters outside of them: embedding, last norm, projection to the vocabulary.
        trained: parameters that are trained: all, or those of an adapter.
        hidden, inner, heads, vocabulary: numbers of a hidden state, of the state within a
            feed-forward layer, of all queries, keys and values of a token, and of its logits.
        bytes: of a number as it is computed with.
    """

    layers: int
    layer: int
    root: int
    trained: int
    hidden: int
    inner: int
    heads: int
    vocabulary: int
    bytes: int

    @property
    def parameters(self) -> int:
        """Of the whole model, without an adapter."""
        return self.layers * self.layer + self.root

    @classmethod
    def of(cls, model: Any) -> ModelShape | None:
        """The shape of a model's section; None: its source says too little.

        Args:
            model: an entry of ``models``.
        """
        options = options_of(model.source)
        layers = options.get("num_hidden_layers") or options.get("n_layer")
        name = "num_hidden_layers" if options.get("num_hidden_layers") else "n_layer"
        counts = [parameter_count({**options, name: number}) for number in (1, 2)]
        if not isinstance(layers, int) or None in counts:
            return None
        one, two = (int(count) for count in counts if count is not None)
        layer, hidden = two - one, int(options.get("hidden_size") or options.get("n_embd") or 0)
        queries = int(options.get("num_attention_heads") or options.get("n_head") or 1)
        width = int(options.get("head_dim") or hidden // queries)
        keys = int(options.get("num_key_value_heads") or queries)
        adapter = model.get("adapter")
        whole = layers * layer + one - layer
        return cls(
            layers=layers,
            layer=layer,
            root=one - layer,
            trained=whole if adapter is None else trained_by_adapter(options, adapter, layers),
            hidden=hidden,
            inner=int(options.get("intermediate_size") or 4 * hidden),
            heads=(queries + 2 * keys) * width,
            vocabulary=int(options.get("vocab_size") or 0),
            bytes=4 if model.source.dtype == "float32" else 2,
        )


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of one device.

    Attributes:
        weights: that it keeps: its part of the trained ones in float32, and of the frozen ones.
        gradients: its part of them, in float32.
        moments: its part of the two of AdamW.
        gathered: whole weights and gradients that are there at the same time at most.
        activations: of one micro-batch, an estimate.
        received: over the network in an optimizer step of one micro-batch.
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
        masters: bool,
    ) -> DevicePlan:
        """The plan of one of ``devices``.

        Args:
            shape: of the model.
            devices: how many there are.
            split: over how many of them weights, gradients and optimizer are split.
            tokens: of a micro-batch.
            computed_again: whether layers are computed again in the backward pass.
            head_tokens: of which logits are there at the same time.
            masters: whether trained weights are kept in float32.
        """
        kept = 4 if masters else shape.bytes
        adapter = shape.trained < shape.parameters
        frozen = shape.parameters if adapter else 0
        gradient = shape.trained * _GRADIENT // split
        # Two layers: the one that is computed, and the next, which is fetched meanwhile. Where all
        # is trained, their gradients: as computed, and in float32 to be reduced.
        layer_bytes = shape.bytes * 2 + (0 if adapter else shape.bytes + _GRADIENT)
        root_bytes = shape.bytes + (0 if adapter else shape.bytes + _GRADIENT)
        gathered = shape.layer * layer_bytes + shape.root * root_bytes if devices > 1 else 0
        per_token = shape.bytes * (6 * shape.hidden + 2 * shape.heads + 4 * shape.inner)
        kept_token = shape.bytes * shape.hidden * shape.layers
        activations = tokens * (
            kept_token + per_token if computed_again else per_token * shape.layers
        )
        activations += min(tokens, head_tokens) * shape.vocabulary * _LOGIT
        other = (split - 1) / split
        copies = devices // split
        fetched = 2 * shape.layers * shape.layer + shape.root
        received = other * (fetched * shape.bytes + shape.trained * _GRADIENT)
        received += 2 * (copies - 1) / copies * gradient
        return cls(
            weights=(shape.trained * kept + frozen * shape.bytes) // split,
            gradients=gradient,
            moments=shape.trained * _MOMENTS // split,
            gathered=gathered,
            activations=activations,
            received=int(received),
            synced=shape.parameters * shape.bytes,
        )


def device_rows(model: Any, devices: int) -> list[tuple[str, str]]:
    """The plan of a trained model as (what, how much); empty: its source says too little.

    Args:
        model: an entry of ``models``, with its train service.
        devices: how many train it.
    """
    from plugrl.core.run.process.memory import format_gib

    shape, train = ModelShape.of(model), model.train
    if shape is None:
        return []
    shard = train.get("shard") or "full"
    length = int(options_of(model.source).get("max_position_embeddings") or 1024)
    tokens = train.micro_batch_tokens or min(train.micro_batch_size * length, 2**20)
    plan = DevicePlan.of(
        shape,
        devices,
        split=1 if shard == "none" else devices,
        tokens=tokens,
        computed_again=train.gradient_checkpointing,
        head_tokens=train.head_chunk_tokens,
        masters=shape.bytes < 4 and train.master_weights in (True, "auto"),
    )
    return [
        ("parameters", f"{shape.parameters:,} ({shape.trained:,} trained)"),
        ("weights a device", format_gib(plan.weights)),
        ("gradients a device", format_gib(plan.gradients)),
        ("moments of AdamW a device", format_gib(plan.moments)),
        ("gathered layers a device, at most", format_gib(plan.gathered)),
        (f"activations of {tokens:,} tokens, about", format_gib(plan.activations)),
        ("memory a device, about", format_gib(plan.memory)),
        ("received a device and pass", format_gib(plan.received)),
        ("weights to the engines a sync", format_gib(plan.synced)),
    ]
