"""``models.NAME.inference: ray``: engines in actors of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from plugrl.core.config.schemas.schema import component, described
from plugrl.core.errors import ConfigError
from plugrl.core.factory import component_record
from plugrl.core.run.process import determinism
from plugrl.core.run.process.cluster import settings
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.services import AdapterWeights, InferenceService, ModelSpec
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.plugins.ray import cluster, room
from plugrl.plugins.ray.engine_actor import EngineSetup
from plugrl.plugins.ray.files import collect_files
from plugrl.plugins.ray.placement import Placement, divide, group_of
from plugrl.plugins.ray.replicas import Replicas, Task
from plugrl.plugins.transformers.outline import context_length, known_vocabulary

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import ConfigView

_KIND = "inference_service"
#: What the driver says in the place of an engine.
_TRAITS = ("takes_weights", "scores_prompts", "stops_at_tokens", "together", "sampling_options")


@dataclass
class RayInferenceConfig:
    """Options of the inference service ``ray``."""

    engine: Any = component(_KIND, "transformers", help="what each replica runs")
    replicas: int = described(1, "engines, each in an actor", at_least=1, at_most=10**4)
    resources: dict[str, float] = described(
        {"CPU": 1.0},
        "what each replica takes of its machine: CPU, GPU, memory in bytes, or a resource of your "
        "own that machines have; with a GPU the model is on it, without one on the CPU",
        at_least=0,
        at_most=9e11,
    )
    timeout: float = described(
        1800.0,
        "seconds that a replica may take to answer, or to load the model; then it is replaced",
        above=0,
        at_most=1e6,
    )
    max_restarts: int = described(
        8, "replicas that may be replaced before the run ends", at_least=0, at_most=10**6
    )

    def __post_init__(self) -> None:
        if str(self.engine.get("type")).rpartition("/")[2] == "ray":
            raise ConfigError("engine is what an actor runs; name another service than ray")


class RayInferenceService(InferenceService):
    """Answers with engines of another inference service, each in an actor of its own.

    A list of requests is divided by prompts, in a way that depends on the list alone. Single
    requests go to the engine with the fewest open ones, those of one prompt to the same.
    """

    Config: ClassVar[type] = RayInferenceConfig
    merges_adapters: bool = True
    _replicas: Replicas
    _last_places: Sequence[Mapping[str, Any]] = ()
    #: Whether the replicas have begun to load the model that is to be loaded.
    _begun = False

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """More replicas than the cluster can hold; one is joined for that, and none started."""
        yield from room.findings(check, "replicas")

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model, as its configuration says."""
        return context_length(source)

    @classmethod
    def known_vocabulary(cls, source: ConfigView) -> int | None:
        """Token ids are below this number, as the model's configuration says."""
        return known_vocabulary(source)

    def begin_load(self, spec: ModelSpec) -> None:
        """Start the replicas, which begin to load the model; wait until each has its place.

        Raises:
            ConfigError: they do not fit in the cluster.
            PluginError: a machine lacks a package or has another version.
            RunError: a replica is not placed.
        """
        section, count = self.config.engine, self.config.replicas
        resources = self.config.resources.to_dict()
        cluster.connect()
        fault = cluster.unplaceable(resources, count)
        if fault is not None:
            raise ConfigError(f"models.{spec.name}.inference: {fault}; write fewer replicas")
        record = component_record(_KIND, section)
        cluster.check_nodes((record.distribution, "torch", "transformers"))
        device = "cuda" if resources.get("GPU") else "cpu"
        files = collect_files(
            [] if record.file is None else [record.file],
            (section.to_dict(), spec.source.to_dict()),
            settings().files,
        )
        sent = replace(spec, device=device)
        self._replicas = Replicas(
            spec.name,
            count,
            resources,
            EngineSetup(
                record,
                section,
                sent,
                torch.get_num_threads(),
                determinism.is_on(),
                list(sys.path),
            ),
            files,
            timeout=self.config.timeout,
            max_restarts=self.config.max_restarts,
        )
        self._replicas.begin()
        self._begun = True

    def load(self, spec: ModelSpec) -> None:
        """Start the replicas if they were not, and wait until each has loaded the model.

        Raises:
            ConfigError: they do not fit in the cluster, or the source cannot be used.
            PluginError: a machine lacks a package or has another version.
            RunError: a replica does not start.
        """
        if not self._begun:
            self.begin_load(spec)
        self._begun = False
        traits = self._replicas.start()
        self._tokenizer: Tokenizer = traits.tokenizer.unpack()
        self._vocabulary_size = traits.vocabulary_size
        self._context = traits.max_sequence_length
        for name in _TRAITS:
            setattr(self, name, getattr(traits, name))
        self._placement = Placement(self.config.replicas)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self._tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""
        return self._vocabulary_size

    @property
    def max_sequence_length(self) -> int:
        """Prompt and answer together have at most this many tokens."""
        return self._context

    @property
    def replicas(self) -> Replicas:
        """The actors, once the model is loaded."""
        return self._replicas

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order: equal requests give equal numbers.

        A replica that dies is replaced and its requests are asked again with their streams, in the
        same batch, so that the numbers are those without a death.

        Raises:
            RunError: too many replicas have died.
            Exception: what an engine raises.
        """
        parts = divide(requests, len(self._replicas))
        asked = {n: ([requests[i] for i in part],) for n, part in parts.items()}
        tasks = {n: _task(own) for n, (own,) in asked.items()}
        found = self._replicas.call("generate", asked, tasks)
        for n, given in found.items():
            self._replicas.uses[n].add_tokens(sum(len(answer.tokens) for answer in given))
        answers = {i: a for n, part in parts.items() for i, a in zip(part, found[n], strict=True)}
        return [answers[i] for i in range(len(requests))]

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too; cancelling the task cancels it.

        Raises:
            RunError: too many replicas have died.
            Exception: what an engine raises.
        """
        number = self._placement.place(group_of(request))
        use = self._replicas.uses[number]
        use.begin()
        try:
            answer: Completion = await self._replicas.complete(number, request, _task([request]))
        finally:
            self._placement.answered(number)
            use.end()
        use.add_tokens(len(answer.tokens))
        return answer

    def places(self) -> Sequence[Mapping[str, Any]]:
        """Where the replicas are, and what they did."""
        if not hasattr(self, "_replicas"):
            return ()
        present = [
            {**place, "weights": self.version, "of": "the run", **use.numbers()}
            for place, use in zip(self._replicas.places, self._replicas.uses, strict=False)
            if place
        ]
        return present or self._last_places

    def close(self) -> None:
        """End the replicas; a later request starts them anew, with the present weights."""
        # The list of the run is written once more after its models are closed.
        self._last_places = self.places()
        self._replicas.close()

    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Give ``weights`` to all replicas, through the object store, where they are put once.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        self._replicas.give(version, "update_weights", weights, version)
        self.version = version

    def update_adapter(self, weights: AdapterWeights, version: int) -> None:
        """Give an adapter to all replicas, which merge it into frozen weights that they keep.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        self._replicas.give_adapter(weights, version)
        self.version = version

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Sample from what the train service of an earlier phase handed over, as version 0."""
        self._replicas.give(0, "import_weights", handed)
        self.version = 0

    def use_saved_weights(self, path: str, version: int) -> None:
        """Sample from weights that the train service keeps elsewhere, under ``path``.

        Raises:
            ConfigError: the engine takes tensors alone.
        """
        self._replicas.give(version, "use_saved_weights", path, version)
        self.version = version


def _task(requests: Sequence[GenerationRequest]) -> Task:
    """What a replica does while it answers."""
    count = len(requests)
    return Task(f"answered {count} request{'s' * (count > 1)}", requests[0].stream[1])
