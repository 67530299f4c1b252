"""Attention over sequences of many lengths side by side, by the kernel that torch has for CUDA.

Queries are the packed tokens as they stand. Keys are the same tokens, or, where sequences share
prompts, gathered: each sequence's prompt before its own tokens. The kernel lines the last query of
a sequence up with its last key, so that a query sees the prompt and what is before it.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

import torch

#: Packed tokens are a multiple of this many, the last of them counting nowhere: sizes that matrix
#: products and kernels like, and fewer of them.
_MULTIPLE = 256
#: The shortest length that the kernel is told as the longest, which is a power of two: what it is
#: told may be more than what there is, and a compiled layer meets few numbers.
_SHORTEST = _MULTIPLE
#: Heads of this size at most; a kernel works in vectors of eight numbers.
_WIDEST, _VECTOR = 256, 8
#: Prompts are shared where that saves so much of the tokens: gathering keys has its price, most of
#: all backward.
_WORTH_SHARING = 1 / 8


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of a packed row of N tokens lie.

    Attributes:
        queries: [S + 1], int32, where the tokens of each sequence begin, and N.
        keys: [S + 1], int32, where its keys begin among all, and their number K.
        source: [K], the place of each key in the packed row; None: keys are the tokens.
        longest: keys of a sequence, or more.
        expands: whether keys are repeated for the queries that share them.
        names_groups: whether the kernel wants to be told of queries that share keys.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    source: torch.Tensor | None
    longest: int
    expands: bool
    names_groups: bool

    @classmethod
    def of(
        cls, needed: torch.Tensor, own: torch.Tensor, number: torch.Tensor
    ) -> tuple[Sequences, int]:
        """The sequences of some rows, and how many tokens without meaning end the packed row.

        Those form a last sequence, so that what they compute is a number, which has no gradient.

        Args:
            needed: [B, T], which tokens are needed.
            own: [B, T], which of them are packed.
            number: [B, T], the place of each needed token in the packed row.
        """
        counts = own.sum(1)
        # A row whose tokens all stand in another one asks nothing.
        asks = counts > 0
        lengths = needed.sum(1)[asks]
        counts = counts[asks]
        packed = int(counts.sum())
        padding = _MULTIPLE - packed % _MULTIPLE
        queries = _starts(counts, padding)
        tail = torch.arange(packed, packed + padding, device=number.device)
        source = torch.cat([number[needed & asks[:, None]], tail])
        shared = len(source) > packed + padding
        keys = _starts(lengths, padding) if shared else queries
        return cls(
            queries,
            keys,
            source if shared else None,
            max(_SHORTEST, 1 << (int(lengths.max()) - 1).bit_length()),
            expands=not _groups(needed.device.type),
            names_groups=_names_groups(),
        ), padding


def _starts(lengths: torch.Tensor, padding: int) -> torch.Tensor:
    whole = torch.nn.functional.pad(lengths, (1, 1))
    whole[-1] = padding
    return whole.cumsum(0, dtype=torch.int32)


def worth_sharing(shared: torch.Tensor, needed: torch.Tensor) -> bool:
    """Whether prompts that rows share are computed once, as they are on the CPU always."""
    return int(shared.sum()) >= _WORTH_SHARING * int(needed.sum())


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: Sequences,
    scale: float | None,
    window: int | None,
) -> torch.Tensor:
    """Causal attention within the sequences of one packed row.

    Args:
        query: [1, heads, N, D].
        key, value: [1, key heads, N, D].
        sequences: where they lie.
        scale: of the scores; None: 1 / sqrt(D).
        window: keys that a query sees, itself included; None: all before it.

    Returns:
        [1, N, heads, D].
    """
    # The compiler of torch is imported with it, which takes a second of every start.
    from torch.nn.attention.varlen import varlen_attn

    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    if sequences.source is not None:
        rows[1:] = [tensor.index_select(0, sequences.source) for tensor in rows[1:]]
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and sequences.expands:
        rows[1:] = [tensor.repeat_interleave(groups, 1) for tensor in rows[1:]]
    grouped = rows[1].shape[1] != query.shape[1]
    options = {"enable_gqa": True} if sequences.names_groups and grouped else {}
    seen: torch.Tensor = varlen_attn(
        *rows,
        sequences.queries,
        sequences.keys,
        sequences.longest,
        sequences.longest,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    return seen[None]


def available(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernel takes heads of ``width`` numbers of this type on this device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    # torch 2.11 and later have a kernel that is told of windows.
    if "window_size" not in _options():
        return False
    # Ampere and later.
    fits = torch.cuda.get_device_capability(device) >= (8, 0)
    return fits and dtype in (torch.float16, torch.bfloat16) and _fits(width)


@functools.cache
def _options() -> frozenset[str]:
    """The arguments of the kernel of this torch; none: it has no such kernel."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def _names_groups() -> bool:
    """Whether it wants to be told of queries that share keys; that of torch 2.11 does not."""
    return "enable_gqa" in _options()


def _fits(width: int) -> bool:
    return width <= _WIDEST and width % _VECTOR == 0


@functools.cache
def _groups(device: str) -> bool:
    """Whether queries may share keys, forward and backward, found by trying."""
    draw = torch.Generator().manual_seed(0)
    length, width = 5, 16
    sizes = ((length, 4, width), (length, 2, width), (length, 2, width))
    given = [torch.randn(size, generator=draw).to(device, torch.bfloat16) for size in sizes]
    bounds = torch.tensor([0, length], dtype=torch.int32, device=device)
    found = []
    try:
        for expands in (False, True):
            sequences = Sequences(bounds, bounds, None, _SHORTEST, expands, _names_groups())
            with torch.enable_grad():
                leaves = [tensor.clone().requires_grad_() for tensor in given]
                query, key, value = (leaf.transpose(0, 1)[None] for leaf in leaves)
                seen = attend(query, key, value, sequences, None, None)
                found.append(torch.autograd.grad(seen.float().square().sum(), leaves))
    except (RuntimeError, ValueError):
        return False
    return all(
        torch.allclose(one, two, rtol=0.05, atol=0.05) for one, two in zip(*found, strict=True)
    )
