"""Sequences side by side without padding: one row of tokens, attention within each sequence.

Everything but attention works on each token alone, so that a row of all real tokens costs nothing
for padding. On CUDA devices attention is a kernel that is told where sequences begin, where it
takes the model. Elsewhere it gets the sequences back as rows: padded on the right, a causal mask
alone keeps them apart. The boundaries are exact because no key of another sequence is ever there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from plugrl.plugins.transformers.engine.attention import unpack
from plugrl.plugins.transformers.engine.body import agree
from plugrl.plugins.transformers.training import varlen

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "plugrl_packed"
#: Kinds of layers whose mask is causal, perhaps within a window.
_LAYERS = frozenset({"full_attention", "sliding_attention"})
#: Arguments of an attention function that change its result in ways that are not computed here.
_FOREIGN = ("softcap", "s_aux", "position_bias")
_TRIAL = ((5, 1, 4), (2, 6, 3, 1, 5, 4, 2), (3,))


@dataclass(frozen=True)
class Boundaries:
    """Where the sequences of a packed row lie.

    ``rows`` ([B, T]) holds the place of each token of each sequence in the packed row, and some
    place where a sequence is padded; sequences may share places. ``places`` ([N]) holds for each
    packed token where it stands in the flattened [B, T].
    """

    rows: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(
        cls, needed: torch.Tensor, shared: torch.Tensor, leaders: torch.Tensor
    ) -> tuple[Boundaries | None, torch.Tensor, torch.Tensor]:
        """Pack the ``needed`` tokens ([B, T]) of some rows.

        Args:
            needed: which tokens are needed; those of a row stand side by side.
            shared: which of them stand in the same column of the row's leader too.
            leaders: [B], the number of the row that each shares tokens with.

        Returns:
            The boundaries, or None when the sequences are rows of one length that share nothing;
            which tokens are packed, [B, T]; and the place of each needed token, [B, T].
        """
        own, number = _own_places(needed, shared, leaders)
        lengths = needed.sum(1)
        lengths = lengths[lengths > 0]
        width = int(lengths.max())
        if width == int(lengths.min()) and not bool(shared.any()):
            return None, own, number
        columns = torch.arange(width, device=lengths.device)
        real = columns < lengths[:, None]
        starts = lengths.cumsum(0) - lengths
        rows = number[needed][torch.where(real, starts[:, None] + columns, 0)]
        return cls(rows, real.flatten().nonzero().flatten()[own[needed]]), own, number


def _own_places(
    needed: torch.Tensor, shared: torch.Tensor, leaders: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens are packed, [B, T], and the place of each needed one, [B, T]."""
    own = needed & ~shared
    number = (own.flatten().cumsum(0) - 1).view(own.shape)
    return own, torch.where(shared, number[leaders], number)


@dataclass(frozen=True)
class Packing:
    """Tokens side by side: a row of N packed ones ([1, N]), or rows of one length ([B, T]).

    ``bounds`` tells where the sequences of a packed row lie; it is None for rows. ``places``
    ([P]) holds for each picked token its place in the flattened ``tokens``.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    bounds: Boundaries | varlen.Sequences | None
    places: torch.Tensor

    @classmethod
    def of(
        cls,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        needed: torch.Tensor,
        picked: torch.Tensor,
        leaders: torch.Tensor,
        *,
        by_lengths: bool = False,
    ) -> Packing:
        """Pack the ``needed`` tokens of rows, [B, T]; prompts that rows share are there once.

        ``leaders`` ([B]) names for each row the first one that begins with the same prompt.
        ``by_lengths``: attention is the kernel that :func:`enable_varlen` has tried.
        """
        # A prompt that an earlier row has too is read there; its last token predicts the first
        # picked one of either.
        columns = torch.arange(picked.shape[1], device=picked.device)
        prompt = columns <= picked.int().argmax(1, keepdim=True)
        follows = leaders != torch.arange(len(leaders), device=leaders.device)
        shared = needed & prompt & follows[:, None]
        if by_lengths:
            if not varlen.worth_sharing(shared, needed):
                shared = torch.zeros_like(shared)
            own, number = _own_places(needed, shared, leaders)
            sequences, padding = varlen.Sequences.of(needed, own, number)
            packed = (
                torch.nn.functional.pad(values[own], (0, padding))[None]
                for values in (input_ids, position_ids)
            )
            return cls(*packed, sequences, number[picked])
        bounds, own, number = Boundaries.of(needed, shared, leaders)
        shape = (1 if bounds is not None else int(needed.any(1).sum()), -1)
        tokens, positions = input_ids[own].view(shape), position_ids[own].view(shape)
        return cls(tokens, positions, bounds, number[picked])

    def inputs(self) -> dict[str, Any]:
        """What a model that :func:`enable` changed is called with."""
        given = {"input_ids": self.tokens, "position_ids": self.positions}
        return given if self.bounds is None else {**given, "packed_bounds": self.bounds}


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed_bounds: Boundaries | varlen.Sequences | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of sequences that are rows, or packed within ``packed_bounds``.

    Args:
        module: the layer.
        query, key, value: [1, heads, N, D] when packed, else [B, heads, T, D].
        attention_mask: None; padding stands on the right.
        dropout: no dropout is applied.
        scaling: of the scores; None: 1 / sqrt(D).
        sliding_window: keys that a query sees, itself included.
        packed_bounds: where the sequences of the one packed row lie; a model hands it on from its
            own arguments.

    Raises:
        NotImplementedError: the layer wants something that is not computed here.
    """
    foreign = [name for name in _FOREIGN if kwargs.get(name) is not None]
    if foreign or attention_mask is not None:
        raise NotImplementedError(f"attention with {', '.join(foreign) or 'a mask'}")
    if isinstance(packed_bounds, varlen.Sequences):
        seen = varlen.attend(query, key, value, packed_bounds, scaling, sliding_window)
        return seen, None
    if packed_bounds is not None:
        query, key, value = (unpack(tensor, packed_bounds.rows) for tensor in (query, key, value))
    mask = _window(query, sliding_window)
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    ).transpose(1, 2)
    if packed_bounds is not None:
        output = output.flatten(0, 1).index_select(0, packed_bounds.places)[None]
    return output, None


def _window(query: torch.Tensor, size: int | None) -> torch.Tensor | None:
    """Which keys a query sees, [T, T], when it does not see all before it."""
    length = query.shape[2]
    if size is None or size >= length:
        return None
    places = torch.arange(length, device=query.device)
    distance = places[:, None] - places
    return (distance >= 0) & (distance < size)


def enable(model: PreTrainedModel) -> bool:
    """Let ``model`` take packed rows, with ``packed_bounds``, if it can; found by trying.

    A model that cannot is left as it was.
    """
    from transformers import AttentionInterface

    config: Any = model.config.get_text_config(decoder=True)
    if not set(getattr(config, "layer_types", None) or ()) <= _LAYERS:
        return False
    before = model.config._attn_implementation
    expected = [_hidden(model, row[None])[0] for row in _trial_rows(model)]
    AttentionInterface.register(NAME, attention)
    try:
        model.set_attn_implementation(NAME)
        if _agrees(model, torch.cat(expected), by_lengths=False):
            return True
    except Exception:
        # Whatever a model's code does with what it does not know: it cannot be packed.
        pass
    model.set_attn_implementation(before)
    return False


def enable_varlen(model: PreTrainedModel) -> bool:
    """Whether attention of a model that takes packed rows can be :mod:`varlen`'s, by trying."""
    config: Any = model.config.get_text_config(decoder=True)
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    if not varlen.available(model.device, model.dtype, width):
        return False
    expected = torch.cat([_hidden(model, row[None])[0] for row in _trial_rows(model)])
    try:
        return _agrees(model, expected, by_lengths=True)
    except Exception:
        # A kernel that refuses the model, or this device, for a reason of its own.
        return False


def _trial_rows(model: PreTrainedModel) -> list[torch.Tensor]:
    most = model.config.get_text_config(decoder=True).vocab_size
    return [torch.tensor(row, device=model.device) % most for row in _TRIAL]


def _agrees(model: PreTrainedModel, expected: torch.Tensor, *, by_lengths: bool) -> bool:
    """Whether packed rows have the hidden states of the same rows alone, [N, H]."""
    rows = _trial_rows(model)
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    needed = torch.nn.utils.rnn.pad_sequence(
        [torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True
    )
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    alone = torch.arange(len(rows), device=ids.device)
    packing = Packing.of(ids, positions, needed, needed, alone, by_lengths=by_lengths)
    inputs = packing.inputs()
    got = _hidden(model, inputs.pop("input_ids"), **inputs)[0][packing.places]
    return agree(got, expected, model.dtype)


@torch.no_grad()
def _hidden(model: PreTrainedModel, tokens: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    hidden: torch.Tensor = model.base_model(tokens, use_cache=False, **kwargs).last_hidden_state
    return hidden
