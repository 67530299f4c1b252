"""Triton kernels of a decode step: append a token to each row's slot, attend over its own length.

The keys of a row are split among programs, so that a few long rows fill an accelerator too, as in
flash decoding (Dao et al., 2023); a second kernel joins the parts. No program reads a key that is
not there: rows of any lengths stand side by side without padding.
"""

# ruff: noqa: ANN001, ANN202 (what Triton compiles has types of its own)
from __future__ import annotations

import torch
import triton
import triton.language as tl

#: Programs that fill the largest accelerators; more parts than that gain nothing.
_PROGRAMS = 528
#: Keys that a program goes through at once, and parts of a row at most. Small programs of one warp
#: fill an accelerator best: a short row is one round trip to memory, and many fit on a processor.
_BLOCK = 32
_MOST_PARTS = 32
#: The widest head whose sums one warp holds in registers.
_WARP_WIDTH = 128
#: Rows of a matrix product on tensor cores, at least.
_LEAST_GROUP = 16


@triton.jit
def _cap(scores, softcap):  # type: ignore[no-untyped-def]
    # tanh(x) = 2 * sigmoid(2 * x) - 1
    return softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)


@triton.jit
def _part(  # type: ignore[no-untyped-def]
    queries, new_keys, new_values, keys, values, positions, out, sums, highest,
    stride_q, stride_k, stride_v, row_k, head_k, row_v, head_v, scale, softcap, window,
    KEYS: tl.constexpr, GROUP: tl.constexpr, GROUP_2: tl.constexpr,
    D: tl.constexpr, D_2: tl.constexpr, E: tl.constexpr, E_2: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One part of the keys of one row and key head, for all queries that share them."""
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    count = tl.load(positions + row).to(tl.int32)
    group, place = tl.arange(0, GROUP_2), tl.arange(0, BLOCK)
    d, e = tl.arange(0, D_2), tl.arange(0, E_2)
    grouped, in_d, in_e = group < GROUP, d < D, e < E
    query = tl.load(
        queries + row * stride_q + (head * GROUP + group[:, None]) * D + d[None, :],
        mask=grouped[:, None] & in_d[None, :], other=0.0,
    )  # fmt: skip
    own_keys = keys + row * row_k + head.to(tl.int64) * head_k
    own_values = values + row * row_v + head.to(tl.int64) * head_v
    top = tl.full([GROUP_2], -float("inf"), tl.float32)
    total = tl.zeros([GROUP_2], tl.float32)
    sum_of = tl.zeros([GROUP_2, E_2], tl.float32)
    if part == 0:
        # The new token is kept, and seen before it can be read back.
        key = tl.load(new_keys + row * stride_k + head * D + d, mask=in_d, other=0.0)
        value = tl.load(new_values + row * stride_v + head * E + e, mask=in_e, other=0.0)
        tl.store(own_keys + count.to(tl.int64) * D + d, key, mask=in_d)
        tl.store(own_values + count.to(tl.int64) * E + e, value, mask=in_e)
        score = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
        if CAPPED:
            score = _cap(score, softcap)
        top = score
        total = tl.full([GROUP_2], 1.0, tl.float32)
        sum_of += value.to(tl.float32)[None, :]
    first = tl.maximum(count + 1 - window, 0)
    # Whole blocks, so that no part begins within one.
    blocks = tl.cdiv(tl.cdiv(count - first, BLOCK), PARTS)
    begin = first + part * blocks * BLOCK
    end = tl.minimum(begin + blocks * BLOCK, count)
    for start in range(begin, end, BLOCK):
        at = start + place
        there = at < end
        key = tl.load(
            own_keys + at.to(tl.int64)[None, :] * D + d[:, None],
            mask=there[None, :] & in_d[:, None], other=0.0,
        )  # fmt: skip
        if EXACT:
            score = tl.dot(query, key, input_precision="ieee") * scale
        else:
            score = tl.dot(query, key) * scale
        if CAPPED:
            score = _cap(score, softcap)
        score = tl.where(there[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        less = tl.exp(top - higher)
        value = tl.load(
            own_values + at.to(tl.int64)[:, None] * E + e[None, :],
            mask=there[:, None] & in_e[None, :], other=0.0,
        )  # fmt: skip
        if EXACT:
            added = tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        else:
            added = tl.dot(weight.to(value.dtype), value)
        sum_of = sum_of * less[:, None] + added
        total = total * less + tl.sum(weight, 1)
        top = higher
    index = (row * KEYS + head) * GROUP + group
    if PARTS == 1:
        tl.store(
            out + index[:, None] * E + e[None, :],
            (sum_of / total[:, None]).to(out.dtype.element_ty),
            mask=grouped[:, None] & in_e[None, :],
        )
    else:
        index = index * PARTS + part
        tl.store(
            out + index[:, None] * E + e[None, :], sum_of, mask=grouped[:, None] & in_e[None, :]
        )
        tl.store(sums + index, total, mask=grouped)
        tl.store(highest + index, top, mask=grouped)


@triton.jit
def _join(  # type: ignore[no-untyped-def]
    parts, sums, highest, out,
    E: tl.constexpr, E_2: tl.constexpr, PARTS: tl.constexpr, PARTS_2: tl.constexpr,
):  # fmt: skip
    """Join the parts of one row and query head."""
    index = tl.program_id(0).to(tl.int64)
    part, e = tl.arange(0, PARTS_2), tl.arange(0, E_2)
    there, in_e = part < PARTS, e < E
    tops = tl.load(highest + index * PARTS + part, mask=there, other=-float("inf"))
    # The first part holds the new token, so that one is finite.
    weight = tl.exp(tops - tl.max(tops, 0))
    total = tl.load(sums + index * PARTS + part, mask=there, other=0.0)
    values = tl.load(
        parts + (index * PARTS + part[:, None]) * E + e[None, :],
        mask=there[:, None] & in_e[None, :], other=0.0,
    )  # fmt: skip
    mixed = tl.sum(values * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out + index * E + e, mixed.to(out.dtype.element_ty), mask=in_e)


def parts_of(rows: int, key_heads: int, capacity: int) -> int:
    """Into how many parts the keys of a row are split."""
    wanted = _PROGRAMS // (rows * key_heads)
    return max(1, min(wanted, _MOST_PARTS, capacity // (2 * _BLOCK)))


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
    parts: int = 0,
) -> torch.Tensor:
    """As :func:`plugrl.plugins.transformers.engine.attention.append_and_attend`.

    ``parts`` are those of each row's keys; 0 chooses.
    """
    rows, heads, d = query.shape
    key_heads, e = key.shape[1], value.shape[2]
    parts = parts or parts_of(rows, key_heads, keys.shape[2])
    group, capped = heads // key_heads, softcap > 0
    query, key, value = (_with_whole_rows(tensor) for tensor in (query, key, value))
    out = query.new_empty(rows, heads, e)
    part_sums, sums, highest = out, out, out
    if parts > 1:
        part_sums = query.new_empty(rows, heads, parts, e, dtype=torch.float32)
        sums = query.new_empty(rows, heads, parts, dtype=torch.float32)
        highest = torch.empty_like(sums)
    _part[(rows, key_heads, parts)](
        query, key, value, keys, values, positions, part_sums, sums, highest,
        query.stride(0), key.stride(0), value.stride(0),
        keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
        scale, softcap if capped else 1.0, window if window > 0 else 2**30,
        KEYS=key_heads, GROUP=group, GROUP_2=max(_LEAST_GROUP, triton.next_power_of_2(group)),
        D=d, D_2=max(16, triton.next_power_of_2(d)), E=e, E_2=max(16, triton.next_power_of_2(e)),
        PARTS=parts, BLOCK=_BLOCK, CAPPED=capped, EXACT=query.dtype == torch.float32,
        num_warps=1 if max(d, e) <= _WARP_WIDTH else 4, num_stages=_stages(keys, values),
    )  # fmt: skip
    if parts > 1:
        _join[(rows * heads,)](
            part_sums, sums, highest, out,
            E=e, E_2=max(16, triton.next_power_of_2(e)),
            PARTS=parts, PARTS_2=triton.next_power_of_2(parts),
        )  # fmt: skip
    return out


def _stages(keys: torch.Tensor, values: torch.Tensor) -> int:
    """How many blocks of keys and values are loaded ahead, as shared memory allows."""
    if not keys.is_cuda:
        return 1
    block = _BLOCK * (keys.shape[3] + values.shape[3]) * keys.element_size()
    found = torch.cuda.get_device_properties(keys.device)
    room = int(getattr(found, "shared_memory_per_block_optin", 101_376))
    # Some is left for what the compiler needs besides.
    return max(1, min(3, (room - 8192) // block))


def _with_whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Heads of a row side by side, [B, H, D]; rows may stand apart."""
    packed = tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
    return tensor if packed else tensor.contiguous()
