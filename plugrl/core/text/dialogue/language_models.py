"""``LanguageModelSystem``: tester, target and baseline as entries of ``models``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plugrl.core.config.check import configure
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.batch import Batch
from plugrl.core.text.dialogue.configuration import ModelsConfig
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.prompts import DialoguePrompts
from plugrl.core.text.dialogue.system import Stream, System, Utterance
from plugrl.core.text.inference.completions import EngineError, ask_all
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.learn.reference import FrozenModels
from plugrl.core.text.models import Models

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.dialogue import Dialogue
    from plugrl.core.text.dialogue.tree import RolloutNode


class LanguageModelSystem(System):
    """The models of red-teaming behind the services that sample from them and train them.

    Args:
        models: with the entries that the section names; the tester has a train service.
        config: the section ``red_team``, or its keys ``tester``, ``target`` and ``baseline``.

    Raises:
        ConfigError: an entry is missing, the tester is frozen, or the baseline has other tokens.
    """

    def __init__(self, models: Models, config: Any = None) -> None:
        self.config = (
            config
            if isinstance(config, ConfigView)
            else configure(DialogueEnvironment, config or {})
        )
        self.models = models
        self._tester = models[self.config.tester.model]
        self._target = models[self.config.target.model]
        self._train = self._tester.trained()
        baseline = self.config.baseline
        self._baseline = None if baseline is None else models[baseline]
        if self._baseline is not None and self._baseline.train is not None:
            raise ConfigError(f"baseline {baseline!r} is trained; name a frozen model")
        if self._target.train is not None:
            raise ConfigError(
                f"target {self._target.name!r} is trained; name a frozen model, or one behind an "
                "API"
            )
        self._tester_prompts = DialoguePrompts(self._tester, self.config.tester, probes=True)
        self._target_prompts = DialoguePrompts(self._target, self.config.target, probes=False)
        self._frozen = FrozenModels(models)
        self._sampled: int | None = None

    @classmethod
    def load(
        cls,
        models: Mapping[str, Any],
        config: Any = None,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> LanguageModelSystem:
        """Load models from a mapping as ``models`` has it in YAML.

        Args:
            models: by name, each with ``source`` and, for the tester, ``train``.
            config: as for the constructor.
            seed: of random weights.
            device: of the models in this process.

        Raises:
            ConfigError: a section is wrong, or a model cannot be loaded.
        """
        section: Any = configure(ModelsSection, {"models": dict(models)})
        factory = Factory(default_registry())
        loaded = Models.load(section.models, factory, seed=seed, device=device)
        return cls(loaded, config)

    def probes(self, contexts: Sequence[Dialogue], streams: Sequence[Stream]) -> list[Utterance]:
        """What the tester says next: one list of requests."""
        return _utterances(self._tester_prompts, contexts, streams)

    def responses(
        self, dialogues: Sequence[Dialogue], streams: Sequence[Stream]
    ) -> list[Utterance]:
        """What the target answers: one list of requests."""
        return _utterances(self._target_prompts, dialogues, streams)

    def baseline_log_probs(self, nodes: Sequence[RolloutNode]) -> list[list[float]] | None:
        """Log-probabilities of the probes' tokens under the baseline, at their temperature.

        Raises:
            ConfigError: its tokens are not those of the tester.
        """
        if self._baseline is None:
            return None
        found: list[list[float]] = [[] for _ in nodes]
        some = [i for i, node in enumerate(nodes) if node.probe_tokens]
        if not some:
            return found
        batch = Batch.from_trajectories([nodes[i].trajectory(self._tester.name) for i in some])
        scores = self._frozen.score(self._baseline.name, batch)
        for i, row in zip(some, scores, strict=True):
            start = len(nodes[i].prompt_tokens)
            found[i] = row[start : start + len(nodes[i].probe_tokens)].tolist()
        return found

    def log_probs(
        self, batch: Batch, needs: Sequence[str] = ()
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Log-probabilities of the tester with their gradient; see the base class.

        Raises:
            ConfigError: values are needed and the tester has no value head.
        """
        return self._train.differentiable(batch, needs)

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights of the tester that are trained, and its value head's."""
        return self._train.parameters()

    def sync_weights(self) -> None:
        """Let the tester sample with its weights as they are now."""
        if self._sampled != self._train.version:
            self._train.sync_to(self._tester.inference)
            self._sampled = self._train.version

    def after_optimizer_step(self) -> None:
        """Take over what an optimizer changed."""
        self._train.after_optimizer_step()
        self._train.version += 1

    def begin_with(self, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin with weights of an earlier phase, by model name.

        A baseline that no earlier phase knows begins with the tester's: it is what the tester was.
        """
        given = dict(weights)
        own = given.get(self._tester.name)
        if self._baseline is not None and own is not None:
            given.setdefault(self._baseline.name, own)
        self.models.load_weights(given)

    @property
    def tester(self) -> Any:
        """The tester's model, as its train service has it."""
        return self._train.module

    @property
    def tokenizer(self) -> Any:
        """The tester's tokenizer; of ``transformers`` where the model is."""
        tokenizer = self._tester.inference.tokenizer
        return getattr(tokenizer, "wrapped", tokenizer)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write tester and tokenizer as ``from_pretrained`` reads them, an adapter merged.

        The adapter alone: ``models["tester"].train.save_adapter(folder)``.
        """
        self._train.export(Path(folder), self._tester.inference.tokenizer)

    def state_dict(self) -> dict[str, Any]:
        """The models that training changes."""
        return self.models.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self.models.load_state_dict(state)
        self._sampled = None

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take the weights of what :meth:`state_dict` gave, and nothing else of it."""
        self.models.load_state_dict(state, weights_only=True)
        self._sampled = None

    def close(self) -> None:
        """End what the models run in the background."""
        self.models.close()


class ModelsSection:
    """What messages call the models of a system that is made without a run."""

    Config = ModelsConfig


def _utterances(
    prompts: DialoguePrompts, dialogues: Sequence[Dialogue], streams: Sequence[Stream]
) -> list[Utterance]:
    """What a model says next in each dialogue: one list of requests."""
    shown = [prompts.tokens(dialogue) for dialogue in dialogues]
    requests = [
        GenerationRequest(tokens, prompts.sampling, stream)
        for tokens, stream in zip(shown, streams, strict=True)
    ]
    answers = ask_all(prompts.name, prompts.service, requests)
    return [
        _utterance(prompts, tokens, answer) for tokens, answer in zip(shown, answers, strict=True)
    ]


def _utterance(
    prompts: DialoguePrompts, shown: list[int], answer: Completion | EngineError
) -> Utterance:
    if isinstance(answer, EngineError):
        return Utterance("", shown, [], [], "error", failure=str(answer))
    return Utterance(
        prompts.service.tokenizer.decode(answer.tokens),
        shown,
        answer.tokens,
        answer.logprobs,
        answer.finish_reason,
        answer.version,
        prompts.sampling.temperature or 1.0,
    )
