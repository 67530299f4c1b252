"""Which rows each rank computes, and in which passes: balanced, units whole, as many for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.minibatches import unit_numbers
from plugrl.plugins.transformers.training.micro_batches import MicroBatch, micro_batches

#: What a forward pass reads; the rest of a batch is for the loss, which the driver computes.
_READ = ("input_ids", "attention_mask", "position_ids", "loss_mask")
#: A rank may have so much more than the mean before rows of one prompt are separated.
_IMBALANCE = 1.1


@dataclass(frozen=True)
class Part:
    """A micro-batch of one rank: ``whole`` for the loss, ``sent`` for the rank; rows of the batch.

    ``whole`` is None where a rank has no rows left: it computes a token that counts nowhere, since
    every rank takes part in gathering weights.
    """

    rows: torch.Tensor | None
    whole: Batch | None
    sent: MicroBatch


@dataclass(frozen=True)
class Plan:
    """The passes of a batch: in each, one part for every rank.

    ``untrained`` are parts in which no token is trained: there is nothing to compute.
    """

    passes: Sequence[Sequence[Part]]
    untrained: Sequence[Batch]

    @classmethod
    def of(cls, batch: Batch, ranks: int, *, size: int, tokens: int | None, packs: bool) -> Plan:
        """Spread a batch over ranks, then split the share of each into micro-batches.

        Args:
            batch: on the CPU.
            ranks: how many there are.
            size: rows of a micro-batch, when ``tokens`` is None.
            tokens: of a micro-batch.
            packs: whether the model takes rows without padding.
        """
        shares = [
            (torch.tensor(rows), batch if ranks == 1 else batch.select(rows))
            for rows in spread_rows(batch, ranks)
        ]
        split = partial(micro_batches, size=size, tokens=tokens, packs=packs, device="cpu")
        given = [list(split(share)) if len(share) else [] for _, share in shares]
        # As many for all, so that none is idle while others compute.
        most = max(map(len, given))
        columns: list[list[Part]] = []
        untrained: list[Batch] = []
        for (rows, share), parts in zip(shares, given, strict=True):
            columns.append([])
            equal = parts if len(parts) in (0, most) else split(share, at_least=most)
            for part in equal:
                if _trains(part.batch):
                    columns[-1].append(Part(rows[part.rows], part.batch, _sent(part)))
                else:
                    untrained.append(part.batch)
        count = max(map(len, columns))
        idle = Part(None, None, _idle())
        full = [column + [idle] * (count - len(column)) for column in columns]
        return cls([list(each) for each in zip(*full, strict=True)], untrained)


def spread_rows(batch: Batch, ranks: int) -> list[list[int]]:
    """The rows of each rank, in their order: as many tokens for all as whole units allow.

    Rows of one unit are never separated. Those that begin with the same prompt stay together, so
    that it is computed once, where ranks are balanced all the same.
    """
    count = len(batch)
    if ranks == 1:
        return [list(range(count))]
    tokens = batch.values["attention_mask"].sum(1).tolist()
    units = unit_numbers(batch).tolist()
    prompts = _prompt_numbers(batch)
    shares = _shares(_joined(units, prompts), tokens, ranks)
    loads = [sum(tokens[row] for row in rows) for rows in shares]
    if max(loads, default=0) > _IMBALANCE * sum(loads) / ranks:
        shares = _shares(units, tokens, ranks)
    return [sorted(rows) for rows in shares]


def _shares(numbers: Sequence[int], tokens: Sequence[int], ranks: int) -> list[list[int]]:
    """Give the rows of each number to the rank that has least, those with most tokens first."""
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(numbers):
        rows_of.setdefault(number, []).append(row)
    sizes = {number: sum(tokens[row] for row in rows) for number, rows in rows_of.items()}
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for number in sorted(rows_of, key=lambda number: -sizes[number]):
        least = loads.index(min(loads))
        shares[least].extend(rows_of[number])
        loads[least] += sizes[number]
    return shares


def _joined(units: Sequence[int], prompts: Sequence[int]) -> list[int]:
    """One number for rows that share a unit or a prompt, directly or through others."""
    leader: dict[tuple[str, int], tuple[str, int]] = {}

    def find(key: tuple[str, int]) -> tuple[str, int]:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for unit, prompt in zip(units, prompts, strict=True):
        leader[find(("unit", unit))] = find(("prompt", prompt))
    names: dict[tuple[str, int], int] = {}
    return [names.setdefault(find(("unit", unit)), len(names)) for unit in units]


def _prompt_numbers(batch: Batch) -> list[int]:
    ids, mask = batch.values["input_ids"], batch.values["loss_mask"]
    ends = torch.where(mask.ne(0).any(1), mask.ne(0).int().argmax(1), ids.shape[1]).tolist()
    names: dict[bytes, int] = {}
    return [
        names.setdefault(ids[row, :end].numpy().tobytes(), len(names))
        for row, end in enumerate(ends)
    ]


def _trains(batch: Batch) -> bool:
    """Whether a token is predicted from others, so that there is a forward pass."""
    real = batch.values["attention_mask"][:, :-1] != 0
    return bool(((batch.values["loss_mask"][:, 1:] != 0) & real).any())


def _sent(part: MicroBatch) -> MicroBatch:
    values = {name: part.batch.values[name] for name in _READ}
    heat = part.batch.metadata.get("temperature", 1.0)
    return MicroBatch(part.rows, Batch(values, {"temperature": heat}), part.leaders)


def _idle() -> MicroBatch:
    """A row of two tokens, of which the second is predicted."""
    zero, one = torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.long)
    values = {
        "input_ids": zero,
        "attention_mask": one,
        "position_ids": torch.tensor([[0, 1]]),
        "loss_mask": torch.tensor([[0, 1]]),
    }
    return MicroBatch(torch.tensor([0]), Batch(values), torch.tensor([0]))


def gradients_of(
    leaves: Sequence[Mapping[str, torch.Tensor] | None],
) -> list[dict[str, torch.Tensor] | None]:
    """The gradients of what each rank computed, by name; None for all: there is none at all.

    What one rank goes backward from, all do, from zeros if need be: they reduce together.

    Args:
        leaves: of each rank what its loss was computed from; None: an idle rank.
    """
    there = [each for each in leaves if each is not None]
    names = {name for each in there for name, leaf in each.items() if leaf.grad is not None}
    if not names:
        return [None] * len(leaves)
    idle = torch.zeros(1, 2)
    given: list[dict[str, torch.Tensor] | None] = []
    for each in leaves:
        own = each or dict.fromkeys(names, idle)
        given.append(
            {n: torch.zeros_like(own[n]) if own[n].grad is None else own[n].grad for n in names}  # type: ignore[misc]
        )
    return given
