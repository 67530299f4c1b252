"""Parts of a batch for one forward and backward pass each, within a budget of rows or tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.minibatches import unit_numbers


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

    Rows of one unit are never split. Rows that begin with the same prompt stay together where they
    are packed.

    Args:
        batch: rows on the CPU.
        size: rows of a part, when ``tokens`` is None.
        tokens: tokens of a part; a unit that has more, of rows or of tokens, forms a part of its
            own.
        packs: whether rows are packed and prompts shared; else they are padded to the longest.
        device: where the parts go.
    """
    lengths = batch.values["attention_mask"].sum(1).tolist()
    prompts = _prompts(batch) if packs else list(range(len(lengths)))
    units = _order(_units(batch), lengths, prompts)
    for rows in _parts(units, lengths, size, tokens, packs):
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


def _units(batch: Batch) -> list[list[int]]:
    """The rows of each unit, the longest first, in order of appearance."""
    lengths = batch.values["attention_mask"].sum(1).tolist()
    rows_of: dict[int, list[int]] = {}
    for row, unit in enumerate(unit_numbers(batch).tolist()):
        rows_of.setdefault(unit, []).append(row)
    return [sorted(rows, key=lambda row: -lengths[row]) for rows in rows_of.values()]


def _order(
    units: Sequence[list[int]], lengths: Sequence[int], prompts: Sequence[object]
) -> list[list[int]]:
    longest: dict[object, int] = {}
    number: dict[object, int] = {}
    for length, prompt in zip(lengths, prompts, strict=True):
        longest[prompt] = max(length, longest.get(prompt, 0))
        number.setdefault(prompt, len(number))

    def key(rows: list[int]) -> tuple[int, int, int]:
        first = rows[0]
        reach = max(longest[prompts[row]] for row in rows)
        return -reach, number[prompts[first]], -lengths[first]

    return sorted(units, key=key)


def _parts(
    units: Sequence[list[int]],
    lengths: Sequence[int],
    size: int,
    tokens: int | None,
    packs: bool,
) -> Iterator[list[int]]:
    """Split rows into whole units; a unit over the budget becomes a part by itself."""
    part: list[int] = []
    for rows in units:
        if part and not _fits([*part, *rows], lengths, size, tokens, packs):
            yield part
            part = []
        part = [*part, *rows]
    if part:
        yield part


def _fits(
    rows: Sequence[int], lengths: Sequence[int], size: int, tokens: int | None, packs: bool
) -> bool:
    if tokens is None:
        return len(rows) <= size
    if packs:
        return sum(lengths[row] for row in rows) <= tokens
    return len(rows) * max(lengths[row] for row in rows) <= tokens
