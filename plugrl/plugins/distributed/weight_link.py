"""Weights on their way from ranks to engines, in buckets: what each process does.

1. The driver: ``FsdpTrainService.sync_to`` divides the weights into buckets, opens a :class:`Link`,
   and has all ranks send and all engines receive at the same time.
2. Each rank: ``RankWorker.send_weights`` gathers a bucket from all ranks
   (``RankTrainService.fill``) and hands it over with its :class:`Sender`.
3. Each engine: ``EngineActor.receive`` has a :class:`Receiver`, and its engine reads the weights
   from :class:`Arriving`, bucket after bucket.
4. The first rank keeps a :class:`HostCopy`.

An engine on the card of a rank, or on its machine where there are no cards, reads the memory of
that rank. Others get a broadcast of rank 0, by NCCL between cards and by gloo between CPUs.
"""

from __future__ import annotations

import functools
import pickle
import platform
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from math import prod
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.multiprocessing

#: Bytes to which a weight in a bucket is aligned, so that it can be looked at in its data type.
_ALIGNED = 16
#: Buckets of a rank that are there at the same time: one is filled while engines read the other.
_MEMORIES = 2
#: Seconds between two looks at whether the other end is ready.
_PAUSE = 2e-4
#: Seconds in which a store answers whose process lives.
_REACHED_WITHIN = 5.0
#: Set in the store by the driver when an end has failed.
_ENDED = "ended"


class TransferError(Exception):
    """The other end did not come, or failed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A weight in a bucket, by all of its names."""

    names: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """How large it is."""
        return prod(self.shape) * self.dtype.itemsize


#: Weights that are there at the same time.
Bucket = Sequence[Slot]


def size_of(bucket: Bucket) -> int:
    """Bytes of a bucket."""
    return sum(_aligned(slot.bytes) for slot in bucket)


def views(bucket: Bucket, flat: torch.Tensor) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Each weight of a bucket in the bucket's bytes."""
    start = 0
    for slot in bucket:
        yield slot, flat[start : start + slot.bytes].view(slot.dtype).view(slot.shape)
        start += _aligned(slot.bytes)


def fill_buckets(slots: Sequence[Slot], limit: int) -> list[list[Slot]]:
    """Weights in their order, as many to a bucket as ``limit`` bytes hold, but at least one."""
    made: list[list[Slot]] = []
    for slot in slots:
        if not made or size_of(made[-1]) + slot.bytes > limit:
            made.append([])
        made[-1].append(slot)
    return made


def gather_parts(
    own: Mapping[Slot, torch.Tensor], group: dist.ProcessGroup, device: str
) -> dict[Slot, list[torch.Tensor]]:
    """What each rank has of weights that are split by their first dimension, as ``chunk`` does.

    Args:
        own: what this rank has of each, in any data type.
        group: of all ranks that have parts; all of them call it.
        device: on which they compute.

    Returns:
        The parts of each weight in the order of ranks, in the weight's data type.
    """
    ranks = group.size()
    parts = [
        Slot(slot.names, slot.dtype, (-(-slot.shape[0] // ranks), *slot.shape[1:])) for slot in own
    ]
    sent = torch.empty(size_of(parts), dtype=torch.uint8, device=device)
    places = [
        place[: len(own[slot])] for slot, (_, place) in zip(own, views(parts, sent), strict=True)
    ]
    torch._foreach_copy_(places, list(own.values()))
    received = sent.new_empty(ranks, len(sent))
    dist.all_gather_into_tensor(received.view(-1), sent, group=group)
    found: dict[Slot, list[torch.Tensor]] = {slot: [] for slot in own}
    for number, flat in enumerate(received):
        for slot, (part, place) in zip(own, views(parts, flat), strict=True):
            left = slot.shape[0] - number * part.shape[0]
            found[slot].append(place[: max(0, left)])
    return found


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def memory_name(device: str) -> str:
    """Equal for processes that can read the memory of one another: those of a card, or a machine.

    Args:
        device: on which they compute.
    """
    if device.startswith("cuda"):
        return f"cuda {torch.cuda.get_device_properties(0).uuid}"
    # Containers of one machine may have shared memory of their own.
    shared, boot = Path("/dev/shm"), Path("/proc/sys/kernel/random/boot_id")
    place = shared.stat().st_dev if shared.exists() else 0
    machine = boot.read_text("utf-8").strip() if boot.exists() else platform.node()
    return f"cpu {machine} {place}"


@dataclass(frozen=True, slots=True)
class Link:
    """Who gets weights of whom.

    Attributes:
        host: of rank 0, whose store all ends use.
        port: of the store.
        near: of each engine, the rank whose memory it reads; None: it gets the broadcast.
        backend: of the broadcast.
        timeout: seconds that an end may wait for another one.
    """

    host: str
    port: int
    near: tuple[int | None, ...]
    backend: Literal["gloo", "nccl"]
    timeout: float

    @property
    def far(self) -> list[int]:
        """The engines that get the broadcast."""
        return [number for number, rank in enumerate(self.near) if rank is None]

    @property
    def key(self) -> tuple[str, int]:
        """No two links have the same."""
        return self.host, self.port

    def join(self) -> dist.Store:
        """The store, from any process."""
        limit = timedelta(seconds=self.timeout)
        return dist.TCPStore(self.host, self.port, is_master=False, timeout=limit)


def end(link: Link) -> None:
    """Tell all ends of a link that one of them has failed."""
    with suppress(RuntimeError, ValueError):
        limit = timedelta(seconds=_REACHED_WITHIN)
        dist.TCPStore(link.host, link.port, is_master=False, timeout=limit).set(_ENDED, "")


class _Ends:
    """What senders and receivers share: patience."""

    def __init__(self, link: Link, store: dist.Store) -> None:
        self._link, self._store = link, store

    def _wait(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + self._link.timeout
        while True:
            try:
                if done():
                    return
                ended = self._store.check([_ENDED])
            except RuntimeError as error:
                raise TransferError("rank 0 is gone") from error
            if ended:
                raise TransferError("another end failed")
            if time.monotonic() > until:
                raise TransferError(f"the other end did not come in {self._link.timeout:g} s")
            time.sleep(_PAUSE)

    def _broadcaster(self, number: int) -> Any:
        """This end of the broadcast; number 0 sends."""
        link, size = self._link, 1 + len(self._link.far)
        limit = timedelta(seconds=link.timeout)
        # Groups wait for their members without looking at anything else.
        self._store.add("there", 1)
        self._wait(lambda: self._store.add("there", 0) == size)
        store = dist.PrefixStore("broadcast", self._store)
        try:
            if link.backend == "gloo":
                return dist.ProcessGroupGloo(store, number, size, limit)
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = limit
            group = dist.ProcessGroupNCCL(store, number, size, options)
            group._set_sequence_number_for_group()
        except RuntimeError as error:
            raise TransferError(f"no broadcast could begin: {error}") from error
        return group

    def _broadcast(self, group: Any, flat: torch.Tensor) -> None:
        work = group.broadcast([flat], dist.BroadcastOptions())
        try:
            self._wait(work.is_completed)
        except TransferError:
            with suppress(Exception):
                group.abort()
            raise
        try:
            work.wait()
        except RuntimeError as error:
            raise TransferError(f"the broadcast failed: {error}") from error

    @property
    def _far_device(self) -> str:
        return "cuda" if self._link.backend == "nccl" else "cpu"


class Sender(_Ends):
    """The end of a rank.

    Args:
        link: of which it is an end.
        store: of the link.
        rank: which one it is.
        device: on which it computes.
    """

    def __init__(self, link: Link, store: dist.Store, rank: int, device: str) -> None:
        super().__init__(link, store)
        self.key = link.key
        self._rank, self._device = rank, device
        self._near = link.near.count(rank)
        self._group = self._broadcaster(0) if rank == 0 and link.far else None

    def send(
        self,
        number: int,
        buckets: Sequence[Bucket],
        fill: Callable[[Bucket, torch.Tensor | None], None],
    ) -> None:
        """Send buckets, one after the other.

        Args:
            number: of the transfer over this link.
            buckets: what is sent.
            fill: writes a bucket to bytes; called with None on ranks, but the first, of which no
                engine gets anything.

        Raises:
            TransferError: an engine did not come, or failed.
        """
        name, flats = f"{number}/{self._rank}", list[torch.Tensor]()
        if self._near or self._rank == 0:
            largest = max(map(size_of, buckets))
            flats = [self._memory(largest) for _ in buckets[:_MEMORIES]]
        if self._near:
            self._store.set(name, _shared(flats))
        handed_over = deque[str]()
        for place, bucket in enumerate(buckets):
            own = None
            if flats:
                if len(handed_over) == len(flats):
                    self._await_readers(handed_over.popleft())
                own = flats[place % len(flats)][: size_of(bucket)]
            fill(bucket, own)
            if own is not None:
                handed_over.append(f"{name}/{place}")
                self._hand_over(handed_over[-1], own)
        for key in handed_over:
            self._await_readers(key)
        if self._near:
            self._store.delete_key(name)

    def _hand_over(self, key: str, flat: torch.Tensor) -> None:
        if self._near:
            if flat.is_cuda:
                torch.cuda.current_stream().synchronize()
            self._store.set(key, "")
        if self._group is not None:
            self._broadcast(self._group, flat.to(self._far_device))

    def _await_readers(self, key: str) -> None:
        if self._near:
            self._wait(lambda: self._store.add(f"{key}/read", 0) == self._near)
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/read")

    def _memory(self, size: int) -> torch.Tensor:
        flat = torch.empty(size, dtype=torch.uint8, device=self._device)
        return flat.share_memory_() if self._near and not flat.is_cuda else flat


class Receiver(_Ends):
    """The end of an engine.

    Args:
        link: of which it is an end.
        number: of the engine.
    """

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, link.join())
        self._rank, self.key = link.near[number], link.key
        far = link.far
        self._group = self._broadcaster(1 + far.index(number)) if number in far else None

    def receive(self, number: int, buckets: Sequence[Bucket]) -> Arriving:
        """The weights of a transfer, each of which is received when it is read.

        Args:
            number: of the transfer over this link.
            buckets: what is sent.
        """
        return Arriving(buckets, self._flats(number, buckets))

    def _flats(self, number: int, buckets: Sequence[Bucket]) -> Iterator[torch.Tensor]:
        memories: list[torch.Tensor] = []
        for place, bucket in enumerate(buckets):
            size = size_of(bucket)
            if self._group is not None:
                flat = torch.empty(size, dtype=torch.uint8, device=self._far_device)
                self._broadcast(self._group, flat)
                yield flat
                continue
            key = f"{number}/{self._rank}/{place}"
            self._wait(functools.partial(self._store.check, [key]))
            if not memories:
                memories = pickle.loads(self._store.get(f"{number}/{self._rank}"))
            flat = memories[place % len(memories)][:size].clone()
            if flat.is_cuda:
                torch.cuda.current_stream().synchronize()
            self._store.add(f"{key}/read", 1)
            yield flat


class Arriving(Mapping[str, torch.Tensor]):
    """Weights that are received when they are read: in their order, each name once.

    Args:
        buckets: what comes.
        flats: the bytes of each bucket.
    """

    def __init__(self, buckets: Sequence[Bucket], flats: Iterator[torch.Tensor]) -> None:
        self._buckets, self._flats = list(buckets), flats
        slots = [slot for bucket in buckets for slot in bucket]
        self._names = dict.fromkeys(name for slot in slots for name in slot.names)
        self._there: dict[str, torch.Tensor] = {}
        self._come = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        while name not in self._there:
            if not self._receive():
                raise RuntimeError(f"weight {name!r} was read before; it is not kept")
        return self._there.pop(name)

    def drain(self) -> None:
        """Receive what nobody has read, since the others wait for that."""
        while self._receive():
            pass

    def _receive(self) -> bool:
        if self._come == len(self._buckets):
            return False
        bucket, flat = self._buckets[self._come], next(self._flats)
        self._come += 1
        self._there |= {name: value for slot, value in views(bucket, flat) for name in slot.names}
        return True


class HostCopy:
    """The weights that were sent last, on the host of their rank, for engines that take over.

    Args:
        device: on which the rank computes; on a GPU, copies are made beside what it does next.
    """

    def __init__(self, device: str) -> None:
        self._weights: dict[str, torch.Tensor] = {}
        #: The bytes of each bucket, by the name of its first weight.
        self._flats: dict[str, torch.Tensor] = {}
        self._stream = torch.cuda.Stream() if device.startswith("cuda") else None
        #: When the last copy of a memory is made, by its address.
        self._made: dict[int, torch.cuda.Event] = {}

    def let_write(self, flat: torch.Tensor) -> None:
        """Have what the GPU does next to a memory wait until its copy is made."""
        if (made := self._made.pop(flat.data_ptr(), None)) is not None:
            torch.cuda.current_stream().wait_event(made)

    def take(self, bucket: Bucket, flat: torch.Tensor) -> None:
        """Copy a bucket."""
        first = bucket[0].names[0]
        if first not in self._flats:
            own = torch.empty_like(flat, device="cpu", pin_memory=flat.is_cuda)
            self._flats[first] = own
            self._weights |= {n: value for slot, value in views(bucket, own) for n in slot.names}
        if self._stream is None:
            self._flats[first].copy_(flat)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._flats[first].copy_(flat, non_blocking=True)
            flat.record_stream(self._stream)
            self._made[flat.data_ptr()] = self._stream.record_event()

    def weights(self) -> dict[str, torch.Tensor]:
        """All of them by name."""
        if self._stream is not None:
            self._stream.synchronize()
        return self._weights


def _shared(flats: Sequence[torch.Tensor]) -> bytes:
    """What another process finds these memories by."""
    # By a name: descriptors go to children alone.
    torch.multiprocessing.set_sharing_strategy("file_system")
    return bytes(ForkingPickler.dumps(flats))
