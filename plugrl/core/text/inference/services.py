"""The two services that a text trainer talks to: one samples from a model, one trains it."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.text.inference.batching import RequestBatcher
from plugrl.core.text.inference.chat import end_tokens
from plugrl.core.text.inference.completions import check_completions
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, unfit_stop_token
from plugrl.core.text.inference.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

    from plugrl.core.config.view import ConfigView
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.learn.losses import WeightedLoss

#: Held while a service makes what serves its requests, so that two threads make one.
_STARTING = threading.Lock()


class LoadedModel:
    """What one service of a model leaves for the other, where both load it in this process.

    Args:
        shares: whether nothing is sampled while the model is trained, so that both may hold the
            same weights.

    Attributes:
        model: of the software that loaded it; None: nobody did, or it is taken already.
        shared: whether it was taken with the weights of the first service.
        memory: of the device, which both use in turns; None: each has its own.
    """

    def __init__(self, shares: bool = False) -> None:
        self.shares = shares
        self.model: Any = None
        self.shared = False
        self.memory: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads its own.
        return LoadedModel, ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a service needs to load a model.

    ``adapter`` is for the train service alone: the inference service gets the merged weights.
    ``trained`` says whether a train service has the model, so that its samples may be trained on.
    ``train_steps`` are the training steps of the whole run, None where they are not known, and
    ``decode_steps`` those in which the engine samples a token of each row, for training alone.
    ``loaded`` has what the model's other service loaded; None: it is loaded anew.
    """

    name: str
    source: ConfigView
    seed: int
    device: str
    adapter: ConfigView | None = None
    trained: bool = False
    train_steps: int | None = None
    decode_steps: int | None = None
    loaded: LoadedModel | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """The weights of a model with an adapter, before the two are merged.

    Attributes:
        frozen: gives the weights without the adapter, by name.
        edition: an object that is another one whenever the frozen weights are others.
        products: what the adapter adds, as ``merge`` takes it; small, and on the CPU.
        merge: an importable function of frozen weights and products that gives the weights.
    """

    frozen: Callable[[], Mapping[str, torch.Tensor]]
    edition: object
    products: Any
    merge: Callable[[Mapping[str, torch.Tensor], Any], Mapping[str, torch.Tensor]]


class InferenceService(RenamedMethods, Component, ABC):
    """Samples from one model.

    An engine implements :meth:`generate`, the lockstep form. The asynchronous form is made from
    it: :meth:`complete` queues requests and serves all that wait with one call of ``generate``. An
    engine that can do better overrides it, and :meth:`close` with it.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {"take_over": "import_weights"}
    version: int = 0
    #: Whether the weights of a model's source are loaded in this process, so that a run fetches
    #: them from the hub; configuration and tokenizer are fetched in any case.
    loads_weights: ClassVar[bool] = False
    #: Whether new weights can be given to it, in one form or another.
    takes_weights: bool = True
    #: Whether it merges adapters itself, so that :meth:`update_adapter` gives it those alone.
    merges_adapters: bool = False
    #: Whether :meth:`update_weights` reads each weight once, so that of those that come from other
    #: processes a part is there at a time.
    reads_weights_once: ClassVar[bool] = False
    #: Whether log-probabilities of prompts can be had, which :meth:`score` is made of.
    scores_prompts: bool = True
    #: Whether answers can end at any token, not at the model's own end tokens alone.
    stops_at_tokens: bool = True
    #: Whether a list of requests is computed together, so that it gives equal numbers each time.
    #: False: each is alone on its way, as to an API, and may fail alone.
    together: bool = True
    #: Which of :data:`~plugrl.core.text.inference.sampling.OPTIONS` it samples with. Requests that
    #: need another one are refused before they reach it.
    sampling_options: frozenset[str] = frozenset()
    _batching: RequestBatcher | None = None

    @classmethod
    def context_length(cls, source: ConfigView) -> int | None:
        """The longest sequence of the model of ``source``, without loading it; None: unknown."""
        return None

    @classmethod
    def known_vocabulary(cls, source: ConfigView) -> int | None:
        """What :attr:`vocabulary_size` will be, without loading the model; None: unknown."""
        return None

    def begin_load(self, spec: ModelSpec) -> None:
        """Begin what :meth:`load` waits for in other processes, so that they start side by side.

        Nothing by default. A service that has it takes its place on devices here, and returns. All
        services of a run begin, in the order of ``models``, before the first one loads;
        :meth:`load` of the same ``spec`` follows, or :meth:`close` where the run ends before.

        Raises:
            ConfigError: the source is missing or unreadable.
        """

    @abstractmethod
    def load(self, spec: ModelSpec) -> None:
        """Load the model and its tokenizer.

        Raises:
            ConfigError: the source is missing or unreadable.
        """

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""

    @property
    @abstractmethod
    def max_sequence_length(self) -> int:
        """Prompt and answer together have at most this many tokens."""

    @abstractmethod
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order: equal requests give equal numbers."""

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too; cancelling the task cancels it.

        It may be awaited from several event loops and threads at once.

        Raises:
            RunError: the engine broke its contract, or was closed meanwhile.
        """
        return await asyncio.wrap_future(self._batcher().submit(request))

    def places(self) -> Sequence[Mapping[str, Any]]:
        """Its processes on other machines, as rows of :class:`~plugrl.core.run.records.places`."""
        return ()

    def close(self) -> None:
        """End what serves :meth:`complete`; requests that wait end with a ``RunError``.

        A later request starts it anew.
        """
        with _STARTING:
            batcher, self._batching = self._batching, None
        if batcher is not None:
            batcher.close()

    def _batcher(self) -> RequestBatcher:
        with _STARTING:
            if self._batching is None:
                self._batching = RequestBatcher(self)
            return self._batching

    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Log-probability of each token given the ones before it; 0.0 for the first.

        Raises:
            ContractError: the engine gives no log-probabilities of prompts.
        """
        sampling = SamplingParams(temperature=temperature, max_new_tokens=0)
        requests = [
            GenerationRequest(tokens, sampling, (0, 0, i, 0, 0), prompt_logprobs=True)
            for i, tokens in enumerate(sequences)
        ]
        answers = check_completions(
            type(self).__name__, self.generate(requests), requests, self.vocabulary_size
        )
        return [answer.prompt_logprobs or [] for answer in answers]

    @abstractmethod
    def update_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Take the weights of ``version``; a missing or extra name is a ``ValueError``."""

    def update_adapter(self, weights: AdapterWeights, version: int) -> None:
        """Take the weights of ``version``, of which the adapter alone is moved where that can be.

        Raises:
            ValueError: a name is missing, extra, or of another shape.
        """
        self.update_weights(weights.merge(weights.frozen(), weights.products), version)

    def share_weights(self, weights: Mapping[str, torch.Tensor]) -> bool:
        """Sample from these very tensors from now on, instead of copies of them, if it can.

        They are all weights of the model or some of them. Their owner changes them while nothing is
        sampled alone, and calls :meth:`update_weights` after each change. Returns whether they are
        shared.
        """
        return False

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Sample from what the train service of an earlier phase handed over, as version 0."""
        self.update_weights(handed, 0)

    def use_saved_weights(self, path: str, version: int) -> None:
        """Sample from weights that the train service keeps elsewhere, under ``path``.

        Raises:
            ConfigError: this service takes tensors alone.
        """
        raise ConfigError(
            f"{type(self).__name__} cannot sample from weights that are kept elsewhere ({path}); "
            "give the model the inference service that belongs to its train service"
        )


class BaseTrainService(RenamedMethods, Component, ABC):
    """What runs, checkpoints and weight syncs ask of every service that trains a model.

    How a gradient is taken differs: see :class:`TrainService`, and
    :class:`~plugrl.core.text.remote.service.RemoteTrainService`.
    """

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {
        "hand_over": "export_weights",
        "take_over": "import_weights",
    }
    version: int = 0
    #: As of :class:`InferenceService`.
    loads_weights: ClassVar[bool] = False
    #: Bytes that the last :meth:`sync_to` took from other processes.
    moved_bytes: int = 0
    #: Which trainers can use it, for messages.
    serves: ClassVar[str] = "trainers of its own"

    @classmethod
    def device_plan(
        cls, model: ConfigView, devices: int, machines: int
    ) -> Sequence[tuple[str, str]]:
        """Memory and communication of each of ``devices`` that train a model, as (what, how much).

        Args:
            model: its entry of ``models``.
            devices: how many there are.
            machines: which have them, as many each.

        Returns:
            Nothing where the service trains on no devices of the run.
        """
        return ()

    def begin_load(self, spec: ModelSpec) -> None:
        """As of :class:`InferenceService`, whose own was called before."""

    @abstractmethod
    def load(self, spec: ModelSpec) -> None:
        """Load the model and make its optimizer.

        Raises:
            ConfigError: the source is missing or unreadable.
        """

    @abstractmethod
    def compute_log_prob(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the batch's tokens, [B, T], 0.0 where ``loss_mask`` is 0."""

    @abstractmethod
    def weights(self) -> Mapping[str, torch.Tensor]:
        """The current weights by name."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the weights, for example by those of an earlier phase."""

    def export_weights(self) -> Mapping[str, Any]:
        """What a later phase begins with: copies of the weights by name.

        A service that keeps the weights itself gives plain values that say where they are.
        """
        return {name: weight.detach().clone() for name, weight in self.weights().items()}

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Begin with what the train service of an earlier phase handed over."""
        self.load_weights(handed)

    def share_with(self, inference: InferenceService) -> None:
        """Let the service that samples from the model use its weights without a copy, if both can.

        Called once, before the first :meth:`sync_to`, where nothing is sampled during training.
        """

    def sync_to(self, inference: InferenceService) -> None:
        """Give the current weights to the service that samples from the model."""
        inference.update_weights(self.weights(), self.version)

    def export(self, folder: Path, tokenizer: Tokenizer, *, adapter: bool = False) -> None:
        """Write the weights and ``tokenizer`` to a new folder, for other software.

        Args:
            adapter: write the adapter alone.

        Raises:
            UsageError: this service writes no such folders.
        """
        raise UsageError(f"{type(self).__name__} has no export method, so it cannot write folders")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer and schedule."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""

    def places(self) -> Sequence[Mapping[str, Any]]:
        """As of :class:`InferenceService`."""
        return ()

    def close(self) -> None:
        """Let go of what runs elsewhere; called when nothing more is asked of the service."""


def no_own_optimizer(service: type[BaseTrainService], method: str) -> str:
    """Why a trainer with an optimizer of its own cannot use a train service without a method."""
    return (
        f"{service.__name__} has no {method}, which trainers with an optimizer of their own need; "
        "take a train service that has, such as models.NAME.train: local"
    )


class TrainService(BaseTrainService):
    """Trains one model: gradients of any loss are accumulated, then applied."""

    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {
        **BaseTrainService.RENAMED_METHODS,
        "stepped": "after_optimizer_step",
    }
    serves: ClassVar[str] = "self-hosted trainers, such as self_hosted_grpo"

    def compute_values(self, batch: Batch) -> torch.Tensor:
        """Values of the state before each token, [B, T], 0.0 where ``loss_mask`` is 0; no gradient.

        Raises:
            ConfigError: the service has no value head.
        """
        self._no_value_head()

    def differentiable(
        self, batch: Batch, needs: Sequence[str] = ()
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities of the batch's tokens with their gradient, [B, T], in one pass.

        For losses that are no ``WeightedLoss``. Where ``loss_mask`` is 0 they are 0.0.

        Args:
            batch: rows of one micro-batch.
            needs: what else of the same pass is wanted, [B, T] each, see
                :data:`plugrl.core.text.learn.losses.NEEDS`.

        Raises:
            ConfigError: the service has no such pass, or values are needed and there is no head.
        """
        self._no_gradient("differentiable")

    def parameters(self) -> list[torch.nn.Parameter]:
        """What an optimizer of the caller's changes; see :meth:`after_optimizer_step`.

        Raises:
            ConfigError: the service shows none.
        """
        self._no_gradient("parameters")

    def after_optimizer_step(self) -> None:
        """Take over what an optimizer of the caller's changed; called after each of its steps."""

    @property
    def module(self) -> Any:
        """The model itself, as the software has it that the service is made with.

        Raises:
            ConfigError: the service shows none.
        """
        self._no_gradient("module")

    def _no_gradient(self, method: str) -> NoReturn:
        raise ConfigError(no_own_optimizer(type(self), method))

    def fix_value_bias(self) -> None:
        """Keep the bias of the value head at 0; called before training, perhaps more than once.

        A reward model needs it, because sequence classifiers have none. A service without value
        heads has nothing to do.
        """

    def export_scorer(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write the model with its value head as a reward model for other software.

        Raises:
            UsageError: this service writes no such folders, or the model has no such form.
        """
        raise UsageError(
            f"{type(self).__name__} has no export_scorer method, so it writes no reward models"
        )

    def _no_value_head(self) -> NoReturn:
        raise ConfigError(
            "values of states are needed, and the train service has no value head; set "
            "models.NAME.train.value_head=true for a service that can have one, such as local"
        )

    @abstractmethod
    def forward_backward(self, batch: Batch, loss: WeightedLoss) -> dict[str, tuple[float, float]]:
        """Add the gradient of ``loss`` over ``batch``; returns metrics as (sum, count).

        Among them is ``loss``, the loss of the whole batch, with the count 1. A batch in which
        nothing is trained has no gradient, and its loss needs no ``backward``.

        What ``loss.needs`` names, "entropy" or "values", is a tensor of ``batch.values`` with a
        gradient when the loss is called: [B, T], float32, 0.0 where ``loss_mask`` is 0.
        """

    @abstractmethod
    def optimizer_step(self) -> dict[str, float]:
        """Apply the accumulated gradient once; returns ``grad_norm`` and ``learning_rate``.

        A gradient that is not finite is dropped: nothing is applied, and the returned
        ``grad_norm`` says so.
        """


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What bounds the tokens of a model.

    Attributes:
        vocabulary: token ids are below it.
        context: a sequence has at most so many tokens.
        options: of sampling that its service knows, as ``InferenceService.sampling_options``.
    """

    vocabulary: int
    context: int
    options: frozenset[str] = frozenset()

    @classmethod
    def of(cls, services: Mapping[str, InferenceService]) -> dict[str, Self]:
        """The limits of several models by name."""
        return {
            name: cls(
                service.vocabulary_size, service.max_sequence_length, service.sampling_options
            )
            for name, service in services.items()
        }


def check_stop_tokens(
    tokens: Sequence[int], model: str, service: InferenceService, path: str
) -> None:
    """Refuse tokens that a model never says, or that its service cannot end an answer at.

    Args:
        tokens: that end an answer.
        model: its name.
        service: samples from it.
        path: of the setting.

    Raises:
        ConfigError: one of them is such a token.
    """
    fault = unfit_stop_token(tokens, model, service.vocabulary_size)
    if fault:
        raise ConfigError(f"{path} {fault}")
    others = set(tokens) - set(end_tokens(service.tokenizer))
    if others and not service.stops_at_tokens:
        raise ConfigError(
            f"{path} cannot be asked of {type(service).__name__}, which serves model {model!r}: it "
            f"ends answers at the model's own end tokens alone; write the text of {min(others)} in "
            "stop, or use another inference service"
        )
