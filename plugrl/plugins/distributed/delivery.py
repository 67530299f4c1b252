"""Weights of ranks for engines of the cluster: what the driver does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import RunError
from plugrl.core.text.endpoint.clients.callables import DaemonThreads
from plugrl.plugins.distributed.weight_link import Bucket, Link, end, size_of

if TYPE_CHECKING:
    from plugrl.plugins.distributed.ranks import Ranks
    from plugrl.plugins.ray.replicas import Replicas


class Delivery:
    """Has ranks send their weights, and replicas take them at the same time.

    Args:
        ranks: that have the weights.
        replicas: of the engine.
        device: of the ranks.
        timeout: seconds that one of them may wait for another one.
        broadcast: send them by a broadcast to all, also to those that share memory with a rank.
    """

    def __init__(
        self, ranks: Ranks, replicas: Replicas, device: str, timeout: float, *, broadcast: bool
    ) -> None:
        self._ranks, self.replicas = ranks, replicas
        self._device, self._timeout, self._broadcast = device, timeout, broadcast
        self._link: Link | None = None
        self._lives: Sequence[int] = ()
        self._number = 0

    def __call__(
        self, buckets: Sequence[Bucket], version: int, present: Callable[[], tuple[str, Any]]
    ) -> int:
        """Send weights to all replicas; those that die meanwhile are replaced, and it begins anew.

        Args:
            buckets: what is sent.
            version: of the weights.
            present: how a replica that takes over later gets them: a method of its actor, and
                arguments.

        Returns:
            Bytes of the weights.

        Raises:
            RunError: a rank died, too many replicas have died, or one is not reached.
            Exception: what an engine raises.
        """
        while not self._send(self._opened(), buckets, version, present):
            pass
        return sum(map(size_of, buckets))

    def _send(
        self,
        link: Link,
        buckets: Sequence[Bucket],
        version: int,
        present: Callable[[], tuple[str, Any]],
    ) -> bool:
        self._number += 1
        sent = (link, self._number, buckets)
        taken = DaemonThreads(1).submit(
            lambda: self.replicas.take_sent(version, sent, lambda: end(link), present)
        )
        try:
            faults = [fault for fault in self._ranks.all("send_weights", *sent) if fault]
        except BaseException:
            self._link = None
            end(link)
            raise
        if faults:
            self._link = None
            end(link)
        done: bool = taken.result()
        if done and faults:
            raise RunError(f"weights did not reach the engines: {faults[0]}")
        return done

    def _opened(self) -> Link:
        """The link to the replicas that live."""
        places = self.replicas.memories()
        if self._link is None or self._lives != self.replicas.lives:
            self._lives, self._number = self.replicas.lives, 0
            own: list[str] = self._ranks.all("memory", self._device)
            near = [own.index(m) if m in own and not self._broadcast else None for m in places]
            ends = [own[0], *(m for m, rank in zip(places, near, strict=True) if rank is None)]
            # NCCL takes no card twice.
            cards = all(m.startswith("cuda") for m in ends) and len(set(ends)) == len(ends)
            host = self._ranks.host
            port = self._ranks.all("open_store", host, self._timeout)[0]
            backend = "nccl" if cards else "gloo"
            self._link = Link(host, port, tuple(near), backend, self._timeout)  # type: ignore[arg-type]
        return self._link
