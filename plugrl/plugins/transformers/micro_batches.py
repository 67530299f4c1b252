"""Parts of a batch for one forward and backward pass each, within a budget of rows or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from plugrl.core.text.batch import Batch


@dataclass(frozen=True)
class MicroBatch:
    """Some rows of a batch, on the device.

    ``rows`` are their numbers in the batch; ``leaders`` ([b]) names for each row the first one
    here that begins with the same prompt, itself if it is the first.
    """

    rows: torch.Tensor
    batch: Batch
    leaders: torch.Tensor


def micro_batches(
    batch: Batch, *, size: int, tokens: int | None, packs: bool, device: str
) -> Iterator[MicroBatch]:
    """Split ``batch``; the longest rows come first, so that memory is tried at once.

    Rows that begin with the same prompt stay together where they are packed.

    Args:
        batch: rows on the CPU.
        size: rows of a part, when ``tokens`` is None.
        tokens: tokens of a part; a row that has more forms a part of its own.
        packs: whether rows are packed and prompts shared; else they are padded to the longest.
        device: where the parts go.
    """
    lengths = batch.values["attention_mask"].sum(1).tolist()
    prompts = _prompts(batch) if packs else list(range(len(lengths)))
    order = _order(lengths, prompts)
    for rows in _parts(order, lengths, prompts, size, tokens, packs):
        part = batch.select(rows)
        values = {name: value.to(device) for name, value in part.values.items()}
        first: dict[object, int] = {}
        leaders = [first.setdefault(prompts[row], place) for place, row in enumerate(rows)]
        yield MicroBatch(
            torch.tensor(rows),
            Batch(values, part.metadata),
            torch.tensor(leaders, device=device),
        )


def _prompts(batch: Batch) -> list[object]:
    """What the first prediction of each row is made from, to be compared.

    A row that predicts nothing is like no other.
    """
    ids, mask = batch.values["input_ids"].numpy(), batch.values["attention_mask"].numpy()
    # Token t is predicted from the real tokens up to t - 1; nothing predicts the first one.
    real = batch.values["attention_mask"][:, :-1] != 0
    predicted = (batch.values["loss_mask"][:, 1:] != 0) & real
    ends = (predicted.int().argmax(1) + 1).tolist()
    return [
        (ids[row, :end].tobytes(), mask[row, :end].tobytes()) if some else row
        for row, (end, some) in enumerate(zip(ends, predicted.any(1).tolist(), strict=True))
    ]


def _order(lengths: Sequence[int], prompts: Sequence[object]) -> list[int]:
    longest: dict[object, int] = {}
    number: dict[object, int] = {}
    for length, prompt in zip(lengths, prompts, strict=True):
        longest[prompt] = max(length, longest.get(prompt, 0))
        number.setdefault(prompt, len(number))
    return sorted(
        range(len(lengths)),
        key=lambda row: (-longest[prompts[row]], number[prompts[row]], -lengths[row]),
    )


def _parts(
    order: Sequence[int],
    lengths: Sequence[int],
    prompts: Sequence[object],
    size: int,
    tokens: int | None,
    packs: bool,
) -> Iterator[list[int]]:
    if tokens is None:
        yield from (list(order[start : start + size]) for start in range(0, len(order), size))
        return
    part: list[int] = []
    held = 0
    for row in order:
        # Without packing, rows are padded to the longest, which is the first.
        cost = lengths[row] if packs or not part else lengths[part[0]]
        if part and held + cost > tokens:
            yield part
            part, held, cost = [], 0, lengths[row]
        part.append(row)
        held += cost
    if part:
        yield part
