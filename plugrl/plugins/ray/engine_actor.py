"""The actor that holds an engine: an inference service on the machine that computes.

It says where it is before it imports torch, which takes seconds: what else shares its machine waits
for its place alone.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from plugrl.core.component import build
from plugrl.core.config.view import ConfigView
from plugrl.core.plugins.kinds import Record
from plugrl.core.plugins.registry import default_registry
from plugrl.core.plugins.user_code.relocation import relocate, relocated_values
from plugrl.core.run.process import determinism
from plugrl.core.run.process.heap import rare_collections
from plugrl.core.text.inference.completions import check_completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.services import InferenceService, ModelSpec
from plugrl.core.text.rollout.processes.messages import Sent, pack_error
from plugrl.plugins.ray.cluster import described_packages, load_ray
from plugrl.plugins.ray.files import Files, provide

if TYPE_CHECKING:
    import torch

    from plugrl.plugins.distributed.weight_link import Bucket, Link, Receiver

    #: Makes the weights of frozen ones and what an adapter adds.
    Merge = Callable[[Mapping[str, torch.Tensor], Any], Mapping[str, torch.Tensor]]
#: What a call gave, and what it raised as bytes: one of them.
Outcome = tuple[Any, bytes | None]


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an actor needs to build an engine and to load its model.

    Attributes:
        record: of the inference service.
        section: its section.
        spec: of the model.
        threads: of the arithmetic on CPUs; equal numbers need equally many.
        deterministic: ``settings.deterministic``.
        paths: where the driver finds modules; those that are there are searched last.
    """

    record: Record
    section: Any
    spec: ModelSpec
    threads: int
    deterministic: bool
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What the driver says in the place of an engine; see :class:`InferenceService`."""

    tokenizer: Sent
    vocabulary_size: int
    max_sequence_length: int
    takes_weights: bool
    scores_prompts: bool
    stops_at_tokens: bool
    together: bool
    sampling_options: frozenset[str]

    @classmethod
    def of(cls, service: InferenceService) -> EngineTraits:
        """Those of a service that has loaded its model."""
        sent = Sent.pack(service.tokenizer)
        names = [each.name for each in fields(cls)[1:]]
        return cls(sent, **{name: getattr(service, name) for name in names})


class EngineActor:
    """One engine. Its methods give outcomes, since Ray's own errors are pages long.

    Args:
        setup: what it builds and loads.
        files: what it needs and this machine may lack.
    """

    def __init__(self, setup: EngineSetup, files: Files) -> None:
        sys.path += [path for path in setup.paths if path not in sys.path and os.path.exists(path)]
        relocate(provide(files))
        self._setup = setup
        self._receiver: Receiver | None = None

    async def place(self) -> dict[str, str]:
        """Where it is: address of the machine, process, and what is installed there."""
        return {
            "node": load_ray().util.get_node_ip_address(),
            "pid": str(os.getpid()),
            "versions": described_packages(),
        }

    async def load(self) -> Outcome:
        """Build the engine and load its model; gives its :class:`EngineTraits`."""
        return await _outcome(self._load)

    async def generate(self, requests: Sequence[GenerationRequest]) -> Outcome:
        """What the engine's own ``generate`` gives."""
        return await _outcome(self._generate, requests)

    async def complete(self, request: GenerationRequest) -> Outcome:
        """What the engine's own ``complete`` gives; cancelling the task cancels the request."""
        try:
            answer: Completion = await self._service.complete(request)
            self._check([answer], [request])
        except (Exception, SystemExit) as error:
            return None, pack_error(error)
        return answer, None

    async def give(self, method: str, *arguments: Any) -> Outcome:
        """Call a method that gives the engine weights, with tensors as the driver packs them."""
        return await _outcome(self._give, method, arguments)

    async def give_adapter(self, frozen: Any, products: Any, merge: Merge, version: int) -> Outcome:
        """Give the engine frozen weights and an adapter, merged here."""
        return await _outcome(self._give_adapter, frozen, products, merge, version)

    async def memory(self) -> Outcome:
        """Equal for processes that can read the memory of one another."""
        from plugrl.plugins.distributed.weight_link import memory_name

        return await _outcome(memory_name, self._setup.spec.device)

    async def receive(
        self, number: int, version: int, link: Link, transfer: int, buckets: Sequence[Bucket]
    ) -> Outcome:
        """Take weights that others send at the same time, as engine ``number`` of a link."""
        return await _outcome(self._receive, number, version, link, transfer, buckets)

    def _generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return self._check(self._service.generate(requests), requests)

    def _check(self, answers: Any, requests: Sequence[GenerationRequest]) -> list[Completion]:
        # Here, since what is no answer may not be something that can be sent either.
        service = self._service
        return check_completions(self._setup.spec.name, answers, requests, service.vocabulary_size)

    def _receive(
        self, number: int, version: int, link: Link, transfer: int, buckets: Sequence[Bucket]
    ) -> None:
        from plugrl.plugins.distributed.weight_link import Receiver

        receiver, self._receiver = self._receiver, None
        if receiver is None or receiver.key != link.key:
            receiver = Receiver(link, number)
        arriving = receiver.receive(transfer, buckets)
        service = self._service
        # Engines of others may look at a weight twice.
        weights = arriving if service.reads_weights_once else dict(arriving)
        service.update_weights(weights, version)
        arriving.drain()
        self._receiver = receiver

    @rare_collections()
    def _load(self) -> EngineTraits:
        import torch

        setup = self._setup
        torch.set_num_threads(setup.threads)
        determinism.configure(setup.deterministic)
        service = build(default_registry().load(setup.record), _here(setup.section))
        service.load(replace(setup.spec, source=_here(setup.spec.source)))
        self._service: InferenceService = service
        return EngineTraits.of(service)

    def _give_adapter(self, frozen: Any, products: Any, merge: Merge, version: int) -> None:
        from plugrl.plugins.distributed import wire

        # As long as it is held, the machine keeps its copy, and the next call moves none.
        self._frozen = frozen
        weights = merge(wire.unpack(frozen, shared=True), products)
        self._service.update_weights(weights, version)

    def _give(self, method: str, arguments: Sequence[Any]) -> None:
        from plugrl.plugins.distributed import wire

        getattr(self._service, method)(*map(wire.unpack, arguments))


async def _outcome(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """What a function gives or raises, while other calls of the actor go on."""
    try:
        return await asyncio.to_thread(function, *arguments), None
    except (Exception, SystemExit) as error:
        return None, pack_error(error)


def _here(section: Any) -> Any:
    """A section with the paths of this machine."""
    here = relocated_values(section)
    return section if here is section else ConfigView(here, "engine", checked=True)
