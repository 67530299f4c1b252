"""Memory and communication of each device, computed from a configuration alone.

The formulas stand in ``docs/distributed-training.md``, and the tests compare them with what two
ranks held and sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.core.config.plan import MICRO_BATCH_ROWS
from plugrl.plugins.transformers.outline import adapter_matrices, options_of, outlined
from plugrl.plugins.transformers.training.optimizers import moment_bytes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: Bytes of a number of a gradient that is reduced over devices.
_REDUCED = 4
#: Bytes of the numbers that the vocabulary projection of a token holds: logits in float32, their
#: log-probabilities, and the gradient of either.
_LOGIT = 16
#: Gradients of a layer's states that are there at the same time, as a share of the states.
_UNDER_WAY = 0.4
#: What the optimizers are called.
_OPTIMIZERS = {"adamw": "AdamW", "adamw_8bit": "AdamW in 8 bits", "muon": "Muon and AdamW"}


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
        kept: bytes of a number of a trained parameter, as the optimizer changes it.
        moments: bytes of what the optimizer keeps of all that is trained.
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
    kept: int
    moments: int

    @property
    def parameters(self) -> int:
        """Of the whole model, without an adapter."""
        return self.layers * self.layer + self.root

    def states(self, tokens: int) -> int:
        """Bytes that one layer keeps of tokens for the backward pass, an estimate."""
        numbers = 6 * self.hidden + 2 * self.heads + 4 * self.inner
        return tokens * self.bytes * numbers

    def logits(self, tokens: int) -> int:
        """Bytes of the projection to the vocabulary, of tokens that are there at the same time."""
        return tokens * self.vocabulary * _LOGIT

    @classmethod
    def of(cls, model: Any) -> ModelShape | None:
        """The shape of a model's section; None: its source says too little.

        Args:
            model: an entry of ``models``, with its train service.
        """
        return cls.of_sections(model.source, model.get("adapter"), model.train)

    @classmethod
    def of_sections(cls, source: Any, adapter: Any, train: Any) -> ModelShape | None:
        """As :meth:`of`, from the parts of the entry.

        Args:
            source: the section ``source`` of the model.
            adapter: its section ``adapter``; None: all is trained.
            train: the section of its train service.
        """
        options = options_of(source)
        layers = options.get("num_hidden_layers") or options.get("n_layer")
        try:
            few = [outlined(options, number) for number in (1, 2)]
        except Exception:
            # Another finding says what is wrong with the source.
            return None
        if not isinstance(layers, int):
            return None
        number = 4 if source.dtype == "float32" else 2
        # Adapters are in float32, and so are copies of what is computed in less.
        copied = adapter is not None or train.master_weights in (True, "auto")
        kept = 4 if copied else number
        optimizer = train.get("optimizer") or "adamw"
        trained = [_trained(each, adapter) for each in few]
        moments = [moment_bytes(optimizer, *each, kept) for each in trained]
        counts = [sum(each.numel() for each in own.values()) for own, _ in trained]
        sizes = [sum(each.numel() for each in own.parameters()) for own in few]
        hidden = int(options.get("hidden_size") or options.get("n_embd") or 0)
        queries = int(options.get("num_attention_heads") or options.get("n_head") or 1)
        width = int(options.get("head_dim") or hidden // queries)
        keys = int(options.get("num_key_value_heads") or queries)
        return cls(
            layers=layers,
            layer=sizes[1] - sizes[0],
            root=2 * sizes[0] - sizes[1],
            trained=_of_layers(layers, counts),
            hidden=hidden,
            inner=int(options.get("intermediate_size") or 4 * hidden),
            heads=(queries + 2 * keys) * width,
            vocabulary=int(options.get("vocab_size") or 0),
            bytes=number,
            kept=kept,
            moments=_of_layers(layers, moments),
        )


def _of_layers(layers: int, few: list[int]) -> int:
    """A number of a model of so many layers, from those of models of one and of two."""
    return few[0] + (layers - 1) * (few[1] - few[0])


def _trained(
    model: PreTrainedModel, adapter: Any
) -> tuple[Mapping[str, torch.nn.Parameter], set[str]]:
    """What is trained, by name, and which of it holds a row for each token."""
    if adapter is not None:
        return {str(n): each for n, each in enumerate(adapter_matrices(model, adapter))}, set()
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    rows = {id(table.weight) for table in tables if table is not None}
    own = dict(model.named_parameters())
    return own, {name for name, each in own.items() if id(each) in rows}


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of one device.

    Attributes:
        weights: that it keeps: its part of the trained ones, and of the frozen ones.
        gradients: its part of them.
        moments: its part of what the optimizer keeps.
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
    ) -> DevicePlan:
        """The plan of one of ``devices``.

        Args:
            shape: of the model.
            devices: how many there are.
            split: over how many of them weights, gradients and optimizer are split.
            tokens: of a micro-batch.
            computed_again: whether layers are computed again in the backward pass.
            head_tokens: of which logits are there at the same time.
        """
        adapter = shape.trained < shape.parameters
        frozen = shape.parameters if adapter else 0
        # Two layers: the one that is computed, and the next, which is fetched meanwhile. Where all
        # is trained, their gradients: as computed, and in float32 to be reduced.
        layer_bytes = shape.bytes * 2 + (0 if adapter else shape.bytes + _REDUCED)
        root_bytes = shape.bytes + (0 if adapter else shape.bytes + _REDUCED)
        gathered = shape.layer * layer_bytes + shape.root * root_bytes if devices > 1 else 0
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
        fetched = 2 * shape.layers * shape.layer + shape.root
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
    length = int(options_of(model.source).get("max_position_embeddings") or 1024)
    rows = train.micro_batch_size or MICRO_BATCH_ROWS
    tokens = train.micro_batch_tokens or min(rows * length, 2**20)
    plan = DevicePlan.of(
        shape,
        devices,
        split=devices // copies,
        tokens=tokens,
        computed_again=train.gradient_checkpointing,
        head_tokens=train.head_chunk_tokens,
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
        ("gathered layers a device, at most", format_gib(plan.gathered)),
        (f"activations of {tokens:,} tokens, about", format_gib(plan.activations)),
        ("memory a device, about", format_gib(plan.memory)),
        ("received a device and pass", format_gib(plan.received)),
        ("weights to the engines a sync", format_gib(plan.synced)),
    ]
