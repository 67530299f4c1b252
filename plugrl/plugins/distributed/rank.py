"""The process of one rank: joins the process group, and does what the driver asks of it.

It knows nothing of who started it: :mod:`plugrl.plugins.distributed.ranks` does so through Ray.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from plugrl.core.run.checkpoints.shards import SavedShards, Shard
from plugrl.core.run.process import determinism
from plugrl.core.run.process.heap import rare_collections
from plugrl.plugins.distributed import shard_files, wire
from plugrl.plugins.distributed.rank_service import RankTrainService
from plugrl.plugins.distributed.sharding import make_mesh
from plugrl.plugins.distributed.weight_link import (
    Bucket,
    HostCopy,
    Link,
    Sender,
    TransferError,
    memory_name,
)

if TYPE_CHECKING:
    from plugrl.core.text.inference.services import ModelSpec


class RankWorker:
    """One rank of a process group, with its part of a model.

    Args:
        server: listens where the ranks meet, if this is the first one.
    """

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._service: RankTrainService | None = None
        self._spread: dict[str, torch.Tensor] = {}
        self._sender: Sender | None = None
        self._store: dist.Store | None = None
        #: Of the first rank, once it has sent weights.
        self._copy: HostCopy | None = None

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of this class; dicts of tensors are packed on their way."""
        return wire.pack(getattr(self, method)(*map(wire.unpack, args)))

    def join(
        self, rank: int, workers: int, address: str, port: int, device: str, timeout: float
    ) -> str:
        """Join the process group; all ranks do so at the same time.

        Args:
            rank: of this process.
            workers: how many ranks there are.
            address: of the machine of rank 0.
            port: of its server.
            device: ``cpu`` or ``cuda``.
            timeout: seconds that a collective may take.

        Returns:
            What is equal for ranks on one GPU; empty: it is on none.
        """
        if device == "cuda":
            torch.cuda.set_device(0)
        limit = timedelta(seconds=timeout)
        first = rank == 0
        store = dist.TCPStore(
            address,
            port,
            is_master=first,
            timeout=limit,
            wait_for_workers=False,
            # It closes what it is given.
            master_listen_fd=self._server.detach() if first else None,
        )
        self._server.close()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=workers,
            timeout=limit,
        )
        return memory_name(device) if device == "cuda" else ""

    @rare_collections()
    def load(
        self,
        config: Any,
        spec: ModelSpec,
        turn: int,
        turns: int,
        threads: int,
        deterministic: bool,
    ) -> dict[str, Any]:
        """Load a model and keep this rank's part of it.

        Args:
            config: the section of the train service.
            spec: of the model, with the device of the ranks.
            turn: of this rank among those of its machine: each holds the whole model for a moment.
            turns: ranks of a machine.
            threads: of torch.
            deterministic: ``settings.deterministic``.

        Returns:
            What the driver has to know of it.
        """
        self.drop()
        torch.set_num_threads(threads)
        determinism.configure(deterministic)
        mesh = make_mesh(spec.device, dist.get_world_size(), config.shard, turns)
        service = RankTrainService(config, mesh)
        for number in range(turns):
            if number == turn:
                service.load(spec)
            dist.all_reduce(torch.zeros(1))
        service.begin_compiling(spec)
        self._service = service
        return {
            "packs": service.packs,
            "compiled": service.is_compiled,
            "digest": service.digest,
        }

    def drop(self) -> None:
        """Forget the model."""
        self._service, self._spread = None, {}
        self._sender, self._store, self._copy = None, None, None
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    # -------------------------------------------------------------- weights for engines

    def memory(self, device: str) -> str:
        """Equal for processes that can read the memory of one another."""
        return memory_name(device)

    def open_store(self, address: str, timeout: float) -> int:
        """Begin a store for a link to engines, and say its port; others than rank 0 have none."""
        if dist.get_rank() > 0:
            return 0
        limit = timedelta(seconds=timeout)
        self._store = dist.TCPStore(
            address, 0, is_master=True, wait_for_workers=False, timeout=limit
        )
        return int(self._store.port)

    def send_weights(self, link: Link, number: int, buckets: Sequence[Bucket]) -> str:
        """Send the weights without the adapter to engines; every rank does so.

        The first rank keeps a copy of them on the host, for engines that take over later.

        Returns:
            What went wrong at an engine; empty: nothing.
        """
        rank, service = dist.get_rank(), self.service
        if rank == 0 and self._copy is None:
            self._copy = HostCopy(service.device)
        copy = self._copy

        def fill(bucket: Bucket, flat: torch.Tensor | None) -> None:
            if copy is None or flat is None:
                service.fill(bucket, flat)
                return
            copy.let_write(flat)
            service.fill(bucket, flat)
            copy.take(bucket, flat)

        sender, self._sender = self._sender, None
        try:
            if sender is None or sender.key != link.key:
                store = link.join() if self._store is None else self._store
                sender = Sender(link, store, rank, service.device)
            sender.send(number, buckets, fill)
        except TransferError as error:
            return str(error)
        self._sender = sender
        if service.device != "cpu":
            torch.cuda.current_stream().synchronize()
        return ""

    def sent_weights(self) -> dict[str, torch.Tensor]:
        """The weights that engines have had last, of the first rank; empty on others."""
        return {} if self._copy is None else self._copy.weights()

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the service."""
        return getattr(self.service, method)(*args)

    @property
    def service(self) -> RankTrainService:
        """This rank's part of the model."""
        assert self._service is not None, "no model is loaded"
        return self._service

    # ------------------------------------------------------------------------ state

    def describe(self) -> Any:
        """The tree of the state, with a ``Shard`` for each tensor that is spread."""
        self._spread = {}
        return shard_files.describe(self.service.state_dict(), self._spread, {})

    def gather(self, names: list[str]) -> Any:
        """Whole tensors of the state that :meth:`describe` told of; empty on other ranks."""
        self.describe()
        return self.service.gather({name: self._spread[name] for name in names})

    def save(self, folder: str) -> None:
        """Write this rank's part of the state to a folder that all ranks share."""
        self.describe()
        shard_files.save(self._spread, Path(folder))

    def restore(self, folder: str, tree: Any) -> None:
        """Take back a state that was saved in parts, by any number of ranks."""
        own = self.describe()

        def like(keys: Sequence[Any]) -> DTensor | None:
            if keys[0] == "optimizer":
                return self.service.parameter(int(keys[1]))
            found = own
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            return cast(DTensor, self._spread[found.name]) if isinstance(found, Shard) else None

        self.service.load_state_dict(shard_files.load(SavedShards(Path(folder), tree), like))
