"""The ranks of one process group, as actors that Ray places.

They are given work without waiting by :meth:`Ranks.send`, so that they start, import and load while
the driver waits for others; :meth:`Ranks.receive` waits for all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.run.process import determinism
from plugrl.core.run.process.cluster import settings
from plugrl.core.run.process.memory import lacks_memory
from plugrl.plugins.distributed import wire
from plugrl.plugins.distributed.rank_actor import RankActor
from plugrl.plugins.ray.cluster import (
    check_nodes,
    connect,
    described_packages,
    load_ray,
    unplaceable,
)
from plugrl.plugins.ray.errors import failure

#: What a rank did, in messages, by the method that it was asked for.
_PHASES = {
    "place": "started",
    "join": "joined the process group",
    "load": "loaded the model",
    "start_pass": "went forward",
    "end_pass": "went backward",
    "numbers": "computed log-probabilities or values",
    "apply_gradient": "took the optimizer step",
    **dict.fromkeys(("weight_slots", "base_weights", "products", "gather"), "gathered the weights"),
    **dict.fromkeys(("memory", "open_store"), "looked for a way to the engines"),
    "send_weights": "sent the weights to the engines",
    "load_weights": "took other weights",
    "fix_value_bias": "prepared the value head",
    **dict.fromkeys(("describe", "save"), "wrote its part of the checkpoint"),
    **dict.fromkeys(("restore", "load_state_dict"), "read its part of the checkpoint"),
    **dict.fromkeys(("export", "export_scorer", "save_adapter"), "exported the model"),
}
#: The phases whose memory grows with the tokens of a pass.
_PASSES = frozenset({"start_pass", "end_pass", "numbers"})
#: Seconds after a failure in which other ranks may say more of it than that they wait in vain.
_LISTEN = 3.0
#: Seconds beyond the limit of a collective, after which nothing more is awaited.
_GRACE = 15.0
#: Of an error that says only that another rank did not come.
_IN_VAIN = 2
#: Ranks whose model is closed, for the next one: starting them takes seconds.
_idle: list[Ranks] = []


class Ranks:
    """Actors of one process group, which begin to join it; :meth:`receive` waits for that.

    Args:
        workers: how many.
        device: ``cpu`` or ``cuda``: each has a GPU of its own.
        timeout: seconds that any of their calls may take.
        gpus: the share of its GPU that each takes.

    Raises:
        RunError: they do not fit in the cluster, or do not start.
    """

    def __init__(self, workers: int, device: str, timeout: float, gpus: float = 1.0) -> None:
        self._ray = ray = connect()
        self.key = _key(workers, device, timeout, gpus)
        self._timeout = timeout
        self._lock = threading.Lock()
        check_nodes(("torch", "transformers"))
        wanted = _resources(device, gpus)
        self._group = ray.util.placement_group([wanted] * workers, strategy="PACK")
        start = settings().start_timeout
        if not self._group.wait(start):
            fault = unplaceable(wanted, workers) or "others use what they need"
            ray.util.remove_placement_group(self._group)
            raise RunError(f"{workers} ranks cannot be placed: {fault}")
        actor = ray.remote(RankActor)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        self._actors = [
            actor.options(
                num_cpus=wanted["CPU"],
                num_gpus=wanted.get("GPU", 0),
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=strategy(self._group, placement_group_bundle_index=number),
            ).remote()
            for number in range(workers)
        ]
        self._nodes = [""] * workers
        #: Calls that were sent and whose answers nobody has seen, by their methods.
        self._sent: list[tuple[str, list[Any]]] = []
        places = self._collect("place", [each.place.remote() for each in self._actors], start)
        # Ranks of one machine are neighbours, as a mesh of machines takes them.
        # By Ray's names of them: an address may be that of several.
        machines = self._machines()
        order = sorted(range(workers), key=lambda number: (places[number][0], machines[number]))
        self._actors = [self._actors[number] for number in order]
        self._machine_of = [machines[number] for number in order]
        self._nodes = [places[number][0] for number in order]
        self.processes = [places[number][2] for number in order]
        host, port, _ = places[order[0]]
        #: The address of rank 0's machine.
        self.host = host
        self.send("join", [(r, workers, host, port, device, timeout) for r in range(workers)])

    def _machines(self) -> list[str]:
        """Ray's name of each rank's machine, in the order in which they were placed."""
        placed = self._ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        return [str(placed[number]) for number in range(len(self._actors))]

    def _check_cards(self, cards: Sequence[str]) -> None:
        """Refuse ranks of which two are on one GPU; a CPU has no name."""
        shared = next(
            (rank for rank, card in enumerate(cards) if card and card in cards[:rank]), None
        )
        if shared is not None:
            self.kill()
            raise RunError(
                f"ranks {cards.index(cards[shared])} and {shared} are on one GPU; set "
                "models.NAME.train.gpus above 0.5, or give each engine more than half of a GPU"
            )

    def __len__(self) -> int:
        return len(self._actors)

    @property
    def turns(self) -> list[tuple[int, int]]:
        """Of each rank, its place among those of its machine, and how many these are."""
        return [
            (self._machine_of[:rank].count(machine), self._machine_of.count(machine))
            for rank, machine in enumerate(self._machine_of)
        ]

    @property
    def places(self) -> list[dict[str, str]]:
        """Where each rank is: address of the machine, process, and what is installed there."""
        # All machines have the versions of this one, as was checked.
        versions = described_packages()
        return [
            {"node": node, "pid": str(process), "versions": versions}
            for node, process in zip(self._nodes, self.processes, strict=True)
        ]

    def each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Call a method of every rank, each with its arguments, and wait for all.

        Raises:
            RunError: one failed, died, or did not answer in time; all are ended.
            PlugrlError: that one raised itself.
        """
        # All ranks are asked in one order, whichever threads ask.
        with self._lock:
            self._send(method, arguments)
            return self._receive()

    def send(self, method: str, arguments: Sequence[Sequence[Any]]) -> None:
        """Call a method of every rank, after what was sent before, without waiting."""
        with self._lock:
            self._send(method, arguments)

    def receive(self) -> list[Any]:
        """Wait for all that was sent; gives what the last call gave.

        Raises:
            RunError: as of :meth:`each`, or ranks are on one GPU.
            PlugrlError: that a rank raised itself.
        """
        with self._lock:
            return self._receive()

    def _send(self, method: str, arguments: Sequence[Sequence[Any]]) -> None:
        name = str(arguments[0][0]) if method == "ask" else method
        asked = [
            actor.call.remote(method, *given)
            for actor, given in zip(self._actors, arguments, strict=True)
        ]
        self._sent.append((name, asked))

    def _receive(self) -> list[Any]:
        answers: list[Any] = []
        while self._sent:
            name, asked = self._sent.pop(0)
            answers = self._collect(name, asked, self._timeout + _GRACE)
            if name == "join":
                self._check_cards(answers)
        return answers

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every rank with the same arguments, as :meth:`each` does."""
        # Once for all, in shared memory; what is small travels with the call.
        shared = [
            self._ray.put(wire.pack(value)) if isinstance(value, dict) and value else value
            for value in arguments
        ]
        return self.each(method, [shared] * len(self))

    def refer(self, method: str, *arguments: Any) -> Any:
        """What stands for the answer of the first rank, which stays where it is, packed."""
        with self._lock:
            return self._actors[0].call.remote(method, *arguments)

    def _collect(self, method: str, asked: list[Any], seconds: float) -> list[Any]:
        ray, waiting = self._ray, list(asked)
        until = time.monotonic() + seconds
        while waiting:
            left = max(0.0, until - time.monotonic())
            done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            faults = dict(self._faults(asked, done))
            if faults and waiting:
                # A rank that dies makes others fail, perhaps before anybody notices it.
                more, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_LISTEN)
                faults |= dict(self._faults(asked, more))
            in_vain = all(_weight(error) == _IN_VAIN for error in faults.values())
            if waiting and (not done or (faults and in_vain)):
                self._fail_silent(method, [asked.index(ref) for ref in waiting], seconds)
            if faults:
                self._fail(method, faults)
        return [wire.unpack(answer) for answer in ray.get(asked)]

    def _faults(self, asked: list[Any], done: Sequence[Any]) -> Iterator[tuple[int, BaseException]]:
        for ref in done:
            try:
                self._ray.get(ref)
            except Exception as error:
                yield asked.index(ref), error

    def _fail(self, method: str, faults: Mapping[int, BaseException]) -> NoReturn:
        """End all ranks and say which one failed first, where and how."""
        self.kill()
        rank = min(faults, key=lambda number: (_weight(faults[number]), number))
        error = faults[rank]
        cause = getattr(error, "cause", None)
        if isinstance(cause, PlugrlError):
            raise cause
        raise RunError(_told(error, rank, self._nodes[rank], method)) from error

    def _fail_silent(self, method: str, ranks: Sequence[int], seconds: float) -> NoReturn:
        """End all ranks and say which ones did not answer."""
        self.kill()
        raise RunError(
            f"rank {ranks[0]} on node {self._nodes[ranks[0]]} did not answer in {seconds:g} s "
            f"while it {_phase(method)}"
        )

    def kill(self) -> None:
        """End the processes of all ranks, unless they were."""
        if not self._actors:
            return
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._sent = [], []
        self._ray.util.remove_placement_group(self._group)


def take_ranks(workers: int, device: str, timeout: float, gpus: float = 1.0) -> Ranks:
    """Ranks that no model uses: idle ones of this cluster, or new ones in the place of others."""
    connect()
    key = _key(workers, device, timeout, gpus)
    for ranks in _idle:
        if ranks.key == key:
            _idle.remove(ranks)
            return ranks
    if _idle and _has_no_room(workers, device, gpus):
        end_idle()
    return Ranks(workers, device, timeout, gpus)


def _has_no_room(workers: int, device: str, gpus: float) -> bool:
    free = connect().available_resources()
    wanted = _resources(device, gpus)
    return any(free.get(kind, 0) < workers * amount for kind, amount in wanted.items())


def _resources(device: str, gpus: float) -> dict[str, float]:
    """What one rank takes of a machine."""
    return {"CPU": 1.0, **({"GPU": gpus} if device == "cuda" else {})}


def give_back(ranks: Ranks) -> None:
    """Let the next model have these ranks; until then they can be asked about theirs."""
    if len(ranks):
        _idle.append(ranks)


def is_idle(ranks: Ranks) -> bool:
    """Whether no other model has taken these ranks."""
    return ranks in _idle


def end_idle() -> None:
    """End the ranks that no model uses; they hold devices that others may need."""
    session = _session()
    while _idle:
        ranks = _idle.pop()
        # Those of a cluster that was left are gone.
        if ranks.key[0] == session:
            ranks.kill()


def _key(*wanted: Any) -> tuple[Any, ...]:
    # What was computed otherwise before goes on so: cuBLAS asks for its setting once.
    return _session(), determinism.is_on(), *wanted


def _session() -> str:
    """What this process is called in the cluster that it has joined; empty: it has joined none."""
    ray = load_ray()
    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else ""


def _phase(method: str) -> str:
    return _PHASES.get(method, f"was asked for {method}")


def _smaller(method: str) -> str:
    """What makes a rank need less memory in a phase."""
    if method in _PASSES:
        return (
            "lower models.NAME.train.micro_batch_tokens or micro_batch_size, set "
            "gradient_checkpointing: true, or take more workers"
        )
    return "take more models.NAME.train.workers with shard: full, or a smaller model"


def _told(error: BaseException, rank: int, node: str, method: str) -> str:
    """One line about the error of a rank, with what to lower where memory ran out."""
    if lacks_memory(getattr(error, "cause", None)):
        return (
            f"rank {rank} on node {node} ran out of memory while it {_phase(method)}; "
            f"{_smaller(method)}"
        )
    message = failure(error, actor=f"rank {rank}", node=node, task=_phase(method))
    # The process is gone, with whatever it could have said.
    killed = f"; if it was, {_smaller(method)}" if "out of memory?" in message else ""
    short = f"; {_smaller(method)}" if "low on memory" in message else ""
    return f"{message}{killed}{short}"


def _weight(error: BaseException) -> int:
    """How much an error explains: a death first, then what is not said by waiting neighbours."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if "RayActorError" in names:
        return 0
    text = str(error)
    if "OutOfMemory" in text or lacks_memory(getattr(error, "cause", None)):
        return 0
    waiting = ("gloo" in text, "NCCL" in text, "Connection closed" in text, "Timed out" in text)
    return _IN_VAIN if any(waiting) else 1
