"""The attention of the engine, which the modules of ``transformers`` call for every layer.

It is registered with ``transformers.AttentionInterface``; scale, window and soft cap come from the
layer. A *prefill* gets whole prompts side by side in one row without padding, and writes their keys
and values into the slots of the rows that begin with them. A *step* gets one token of each row,
appends it to the row's slot and attends over the slot.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from plugrl.core.run.process.compiler import missing_compiler

logger = logging.getLogger(__name__)

NAME = "plugrl_slots"
#: Arguments of an attention function that change its result in ways that are not computed here.
_FOREIGN = ("s_aux", "position_bias")


@dataclass(frozen=True, eq=False)
class Fill:
    """A prefill: which prompts stand in the packed row, and where their states go.

    Attributes:
        rows: [B, T], the place of each token of each prompt in the packed row, and any place where
            a shorter prompt has no token.
        places: [N], where each packed token stands in the flattened ``rows``.
        source: [M], places in the packed row whose keys and values are kept.
        slots: [M], the row of the slots that each goes to.
        columns: [M], where in the row.
        seen: gets the layers that called, in order; None: it is not asked for.
    """

    rows: torch.Tensor
    places: torch.Tensor
    source: torch.Tensor
    slots: torch.Tensor
    columns: torch.Tensor
    seen: list[tuple[torch.nn.Module, torch.Tensor, torch.Tensor]] | None = field(default=None)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    slot_fill: Fill | None = None,
    slot_positions: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a prefill (``slot_fill``) or of a step (``slot_positions``).

    Args:
        module: the layer, with ``slot_keys`` and ``slot_values``, [rows, heads, capacity, D] each.
        query, key, value: [1, heads, N, D] of a prefill, [B, heads, 1, D] of a step.
        attention_mask: None; the engine has no padding.
        dropout: no dropout is applied.
        scaling: of the scores; None: 1 / sqrt(D).
        sliding_window: keys that a query sees, itself included; None: all before it.
        softcap: scores are at most this, by a tanh; None: as they are.
        slot_fill: says where prompts lie and where their states go.
        slot_positions: [B], how many tokens each row has before this one.

    Returns:
        [1, N, heads, D] or [B, 1, heads, D], and no weights.

    Raises:
        NotImplementedError: the layer wants something that is not computed here.
    """
    foreign = [name for name in _FOREIGN if kwargs.get(name) is not None]
    if foreign or attention_mask is not None:
        raise NotImplementedError(f"attention with {', '.join(foreign) or 'a mask'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    window, cap = int(sliding_window or 0), float(softcap or 0.0)
    keys: Any = getattr(module, "slot_keys", None)
    values: Any = getattr(module, "slot_values", None)
    if slot_positions is not None:
        step = append_and_attend(
            query[:, :, 0], key[:, :, 0], value[:, :, 0], keys, values, slot_positions,
            scale, window, cap,
        )  # fmt: skip
        return step[:, None], None
    if slot_fill is None:
        raise NotImplementedError("a model that does not hand its arguments on to its layers")
    if slot_fill.seen is not None:
        slot_fill.seen.append((module, key, value))
    elif len(slot_fill.source):
        at = (slot_fill.slots, slice(None), slot_fill.columns)
        keys[at] = key[0].transpose(0, 1).index_select(0, slot_fill.source)
        values[at] = value[0].transpose(0, 1).index_select(0, slot_fill.source)
    rows = (unpack(tensor, slot_fill.rows) for tensor in (query, key, value))
    seen = _causal(*rows, scale, window, cap)
    return seen.transpose(1, 2).flatten(0, 1).index_select(0, slot_fill.places)[None], None


def unpack(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The sequences of a packed row, [1, heads, N, D], as rows, [B, heads, T, D].

    ``rows`` ([B, T]) holds the place of each of their tokens in the packed row.
    """
    picked = tensor[0].transpose(0, 1).index_select(0, rows.flatten())
    return picked.unflatten(0, rows.shape).transpose(1, 2)


def _causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """Causal attention of rows that are padded on the right, where no real token sees padding."""
    length = query.shape[2]
    mask = None
    if softcap or 0 < window < length:
        places = torch.arange(length, device=query.device)
        distance = places[:, None] - places
        mask = (distance >= 0) & (distance < (window or length))
    return _attend(query, key, value, mask, scale, softcap)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    grouped = query.shape[1] != key.shape[1]
    if not softcap:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale,
            enable_gqa=grouped,
        )  # fmt: skip
    assert mask is not None
    # No kernel of torch has a soft cap. Queries that share a key stand side by side.
    shared = query.unflatten(1, (key.shape[1], -1))
    scores = shared @ key.transpose(-1, -2)[:, :, None] * scale
    scores = softcap * torch.tanh(scores / softcap)
    mask = mask[:, :, None] if mask.dim() == 4 else mask
    weights = scores.float().masked_fill(~mask, -torch.inf).softmax(-1).to(value.dtype)
    return (weights @ value[:, :, None]).flatten(1, 2)


@torch.library.custom_op("plugrl::append_and_attend", mutates_args=("keys", "values"))
def append_and_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """Append one token to the slot of each row, and attend over the slot.

    An operation of torch's own, so that ``torch.compile`` takes it as it is.

    Args:
        query: [B, heads, D].
        key: [B, key heads, D].
        value: [B, key heads, E].
        keys: [rows, key heads, capacity, D], of at least B rows.
        values: [rows, key heads, capacity, E].
        positions: [B], tokens that the slots hold already.
        scale: of the scores.
        window: keys that a query sees, itself included; 0: all.
        softcap: scores are at most this, by a tanh; 0: as they are.

    Returns:
        [B, heads, E].
    """
    kernel = _kernel() if query.is_cuda else None
    if kernel is not None:
        result: torch.Tensor = kernel(
            query, key, value, keys, values, positions, scale, window, softcap
        )
        return result
    return plain_append_and_attend(
        query, key, value, keys, values, positions, scale, window, softcap
    )


@append_and_attend.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


@functools.cache
def _kernel() -> Callable[..., torch.Tensor] | None:
    reason = missing_compiler("cuda")
    if reason is not None:
        logger.warning("decode steps attend without their own kernel, which is slower: %s", reason)
        return None
    from plugrl.plugins.transformers.engine import kernels

    return kernels.append_and_attend


def plain_append_and_attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> torch.Tensor:
    """:func:`append_and_attend` in operations of torch, as far as the longest row goes."""
    count = len(positions)
    rows = torch.arange(count, device=positions.device)
    keys[rows, :, positions] = key
    values[rows, :, positions] = value
    # On an accelerator the host does not know the longest row, and must not wait for it.
    width = keys.shape[2] if positions.is_cuda else int(positions.max()) + 1
    distance = positions[:, None] - torch.arange(width, device=positions.device)
    mask = distance >= 0
    if window:
        mask &= distance < window
    seen = _attend(
        query[:, :, None], keys[:count, :, :width], values[:count, :, :width],
        mask[:, None, None], scale, softcap,
    )  # fmt: skip
    return seen[:, :, 0].contiguous()
