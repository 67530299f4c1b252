"""``ModelShape``: the sizes of a model from its configuration, and the bytes that its parts take.

The formulas stand in ``docs/distributed-training.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugrl.plugins.transformers.outline import adapter_matrices, meta_model, options_of
from plugrl.plugins.transformers.training.optimizers import embedding_names, moment_bytes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

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
        """Parameters of the whole model, without an adapter."""
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
            few = [meta_model(options, number) for number in (1, 2)]
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
    own = dict(model.named_parameters())
    return own, embedding_names(model, own)
