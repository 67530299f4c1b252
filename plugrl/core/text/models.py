"""``Models``: every model of a run, with the services that sample from it and train it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.run.loaded_state import restore_weights, state_mismatch
from plugrl.core.run.process.heap import rare_collections
from plugrl.core.text.inference.services import (
    BaseTrainService,
    InferenceService,
    LoadedModel,
    ModelSpec,
    TrainService,
)
from plugrl.core.text.jobs.fine_tuning import FineTuneService, JobContext

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.config.view import ConfigView
    from plugrl.core.factory import Factory
    from plugrl.core.run.records.places import Place

logger = logging.getLogger(__name__)
Service = TypeVar("Service", bound=BaseTrainService)


@dataclass
class Model:
    """One model; without a train service it is frozen, but for jobs of a fine-tuning service."""

    name: str
    inference: InferenceService
    train: BaseTrainService | None
    fine_tune: FineTuneService | None = None

    def trained(self) -> TrainService:
        """The train service, which takes the gradient of any loss.

        Raises:
            ConfigError: the model is frozen, or its service is of another sort.
        """
        return self.trained_by(TrainService)

    def trained_by(self, kind: type[Service]) -> Service:
        """The train service, which is of the sort that a trainer needs.

        Raises:
            ConfigError: the model is frozen, or its service is of another sort.
        """
        service = self.service()
        if not isinstance(service, kind):
            raise ConfigError(
                f"models.{self.name}.train: {wrong_service_fault(type(service), kind)}"
            )
        return service

    def service(self) -> BaseTrainService:
        """The train service, of any kind.

        Raises:
            ConfigError: the model is frozen.
        """
        if self.train is None:
            raise ConfigError(
                f"model {self.name!r} is frozen; give models.{self.name}.train to train it"
            )
        return self.train


class Models(Mapping[str, Model]):
    """The models of a run by name.

    A frozen model may have weights of an earlier phase, which trained it: they belong to the state.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        self._models = dict(models)
        self._given: dict[str, dict[str, Any]] = {}

    @classmethod
    @rare_collections()
    def load(
        cls,
        section: ConfigView,
        factory: Factory,
        *,
        seed: int,
        device: str,
        folder: Path | None = None,
        train_steps: int | None = None,
        decode_steps: Mapping[str, int] = MappingProxyType({}),
        shares: bool = False,
    ) -> Models:
        """Build and load the services of every entry of ``models``.

        All begin before the first one loads, so that what they start in other processes starts
        side by side. If one fails, those that began are closed.

        Models with one configuration and one seed begin with the same random weights, so that a
        reference model equals the policy; ``source.seed`` tells them apart.

        Args:
            section: the section ``models``.
            factory: builds the services.
            seed: of random weights, where a source has none of its own.
            device: for what runs in this process.
            folder: of fine-tuning jobs; None: models have no such service.
            train_steps: training steps of the whole run; None: not known.
            decode_steps: of the engine of a model, for training in the whole run; absent: not
                known.
            shares: whether nothing is sampled while a model is trained, so that its services may
                hold the same weights.

        Raises:
            ConfigError: there is no model, or a source cannot be loaded.
        """
        if not section:
            raise ConfigError("models is empty; name at least one model, such as models.policy")
        loaded: dict[str, Model] = {}
        specs: dict[str, ModelSpec] = {}
        for name in section:
            config, path = section[name], f"models.{name}"
            own = config.source.get("seed")
            trained = config.get("train") is not None
            chosen = seed if own is None else own
            specs[name] = ModelSpec(
                name,
                config.source,
                chosen,
                device,
                trained=trained,
                train_steps=train_steps,
                decode_steps=decode_steps.get(name),
                loaded=LoadedModel(shares) if trained else None,
            )
            inference = factory.build("inference_service", config.inference, f"{path}.inference")
            train = None
            if trained:
                train = factory.build("train_service", config.train, f"{path}.train")
            loaded[name] = Model(name, inference, train)
        with ExitStack() as begun:
            for name, model in loaded.items():
                adapter = section[name].get("adapter")
                for service, spec in _services(model, specs[name], adapter):
                    service.begin_load(spec)
                    begun.callback(_abandon, service)
            for name, model in loaded.items():
                config, spec = section[name], specs[name]
                for service, own in _services(model, spec, config.get("adapter")):
                    service.load(own)
                if spec.loaded is not None:
                    # A train service of another kind had no use for it.
                    spec.loaded.model = None
                if folder is not None and config.get("fine_tune") is not None:
                    path = f"models.{name}.fine_tune"
                    jobs = factory.build("fine_tune_service", config.fine_tune, path)
                    own = replace(spec, adapter=config.get("adapter"), trained=True, loaded=None)
                    jobs.load(own, JobContext(folder / name, factory, model.inference))
                    model.fine_tune = jobs
            begun.pop_all()
        return cls(loaded)

    def __getitem__(self, name: str) -> Model:
        try:
            return self._models[name]
        except KeyError:
            known = ", ".join(sorted(self._models))
            raise ConfigError(f"no model {name!r} in models; it has: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def inference(self) -> dict[str, InferenceService]:
        """The inference services by model name."""
        return {name: model.inference for name, model in self._models.items()}

    @property
    def trained(self) -> dict[str, BaseTrainService]:
        """The train services by model name, frozen models left out."""
        return {n: model.train for n, model in self._models.items() if model.train is not None}

    def weights(self) -> dict[str, Mapping[str, Any]]:
        """What a later phase begins with: of models that are, or were, trained, by name.

        It is copies of the weights, or where the service keeps them.
        """
        trained = {name: train.export_weights() for name, train in self.trained.items()}
        return {**self._given, **trained}

    def load_weights(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Start models from ``weights``, as :meth:`weights` gave them, frozen ones too.

        Raises:
            RunError: the weights of a frozen model do not fit its source.
        """
        for name, own in weights.items():
            if name not in self._models:
                continue
            train = self._models[name].train
            if train is not None:
                train.import_weights(own)
            else:
                self._import_into_sampler(name, own)

    def _import_into_sampler(self, name: str, weights: Mapping[str, Any]) -> None:
        model = self._models[name]
        try:
            model.inference.import_weights(weights)
            if model.fine_tune is not None:
                model.fine_tune.import_weights(weights)
        except (RuntimeError, ValueError, KeyError) as error:
            raise RunError(
                f"frozen model {name!r} does not fit the weights that an earlier phase trained "
                f"({one_line(error)[:200]}); give it the same models.{name}.source in both phases, "
                "or another name"
            ) from error
        self._given[name] = dict(weights)

    def places(self) -> list[Place]:
        """The processes on other machines that sample from models, or train them."""
        services = [each for m in self._models.values() for each in (m.inference, m.train)]
        return [place for each in services if each is not None for place in each.places()]

    def close(self) -> None:
        """End what the services run in the background, or elsewhere."""
        for model in self._models.values():
            model.inference.close()
            if model.train is not None:
                model.train.close()
            if model.fine_tune is not None:
                model.fine_tune.close()

    def state_dict(self) -> dict[str, Any]:
        """The state and version of every trained model, and the weights that frozen ones got."""
        trained = {
            name: {"version": train.version, "state": train.state_dict()}
            for name, train in self.trained.items()
        }
        return {**{name: {"weights": own} for name, own in self._given.items()}, **trained}

    def load_state_dict(self, state: Mapping[str, Any], *, weights_only: bool = False) -> None:
        """Take back what :meth:`state_dict` gave.

        Args:
            state: of every trained model.
            weights_only: what train services of users keep besides weights may be missing.

        Raises:
            ConfigError: the trained models are not those of the saved state.
            RunError: a state does not fit its model.
        """
        trained = {name for name, own in state.items() if "state" in own}
        if trained != set(self.trained) or not set(state) <= set(self._models):
            raise ConfigError(
                f"the checkpoint holds models {', '.join(sorted(state)) or 'none'}, the "
                f"configuration trains {', '.join(sorted(self.trained)) or 'none'}"
            )
        for name in set(state) - trained:
            self._import_into_sampler(name, state[name]["weights"])
        for name, train in self.trained.items():
            load_state(name, train, state[name]["state"], weights_only=weights_only)
            train.version = state[name]["version"]


def _services(
    model: Model, spec: ModelSpec, adapter: ConfigView | None
) -> Iterator[tuple[InferenceService | BaseTrainService, ModelSpec]]:
    """The services of a model, each with what it is given to load, in the order of loading."""
    yield model.inference, spec
    if model.train is not None:
        yield model.train, replace(spec, adapter=adapter)


def _abandon(service: InferenceService | BaseTrainService) -> None:
    """Close a service of models that could not be loaded; why, is what the run is told."""
    try:
        service.close()
    except Exception:
        logger.debug("%s could not be closed", type(service).__name__, exc_info=True)


def load_state(
    name: str, train: BaseTrainService, state: Mapping[str, Any], *, weights_only: bool = False
) -> None:
    """Give a train service the saved state of model ``name``.

    Args:
        name: of the model.
        train: its service.
        state: as the service gave it.
        weights_only: see :func:`~plugrl.core.run.loaded_state.restore_weights`.

    Raises:
        RunError: it does not fit, because the source of the model, or a service of users, is not
            what it was.
    """
    what, of = "train service", f"model {name!r}"
    own = type(train).__module__.partition(".")[0] == __name__.partition(".")[0]
    try:
        if weights_only and not own:
            restore_weights(train, state, what, of, root=BaseTrainService)
        else:
            train.load_state_dict(state)
    except PlugrlError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        if not own:
            raise state_mismatch(train, error, what, of) from error
        raise RunError(
            f"the saved state of model {name!r} does not fit models.{name}.source as it is now "
            f"({one_line(error)[:200]}); restore the source that the run began with, or start a "
            "new run"
        ) from error


def wrong_service_fault(service: type[BaseTrainService], kind: type[BaseTrainService]) -> str:
    """Say that a train service is not of the sort that a trainer needs, and what to write."""
    return (
        f"{service.__name__} serves {service.serves}; this trainer needs a service for "
        f"{kind.serves}: choose another trainer.type, or another train service"
    )
