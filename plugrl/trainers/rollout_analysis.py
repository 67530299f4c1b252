"""Analysis: a language model answers questions about the rollouts that a run has saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.schemas.sections import TEXT
from plugrl.core.errors import ConfigError, PlugrlError, RunError, UsageError
from plugrl.core.experiment import prepare
from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.run.folder import find, find_all
from plugrl.core.run.initialization import read_config
from plugrl.core.text.inference.chat import chat_tokenizer, encode_question
from plugrl.core.text.inference.completions import EngineError, ask_all
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, ending
from plugrl.core.text.models import Models
from plugrl.core.text.staged.analysis import (
    BUILT_IN,
    Inquiry,
    analysis_metrics,
    inquiries,
    questions_for,
    read_answer,
)
from plugrl.core.trainer import Trainer, TrainingResult
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.protocol.protocol import Protocol

#: Questions that are asked at a time.
_AT_ONCE = 64
_WHO = "name a run of a trainer that saves them, such as ei_pure_text"


@dataclass
class RolloutAnalysisConfig:
    """Whose rollouts, what is asked about them, and who answers."""

    rollouts: str = described(
        "latest", "run with saved rollouts: path, id, experiment (its newest one), or latest"
    )
    files: list[str] = described(
        [], "which of its files, such as iteration-0002, or phase-1/iteration-0002; empty: all"
    )
    max_rollouts: int | None = described(
        None, "the first rollouts of each file; null: all", at_least=1, at_most=10**9
    )
    model: str = described("judge", "the model that answers, a key of `models`", names="model")
    questions: dict[str, Any] = described(
        dict.fromkeys(BUILT_IN, True),
        "by name: true for built-in ones, or {agents, ask} for others; false leaves one out",
    )
    temperature: float = described(
        0.0, "sampling temperature of the answers; 0: greedy", at_least=0, at_most=100
    )
    max_answer_length: int = described(256, "longest answer in tokens", at_least=1, at_most=10**8)


class RolloutAnalysisTrainer(Trainer):
    """Asks yes or no questions about rollouts; it trains nothing.

    Each file of rollouts is a step, whose metrics are the shares of yes, and after which the run
    may be stopped and resumed. Questions, replies and answers are samples of the run.
    """

    Config: ClassVar[type] = RolloutAnalysisConfig
    sections: ClassVar[Mapping[str, Any]] = {"models": TEXT["models"]}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._step = 0
        self._complete = False
        self._folder = ""
        self._metrics: dict[str, float] = {}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """A model or rollouts that are not there, and questions that cannot be asked."""
        section = check.section
        try:
            folder = _run_with_rollouts(section.rollouts, check.validated.settings.runs_folder)
            files = _files(folder, section)
        except PlugrlError as error:
            yield "trainer.rollouts", str(error)
            return
        try:
            questions_for(section.questions, _protocol_of(files[0]))
        except ConfigError as error:
            yield "trainer.questions", str(error)

    def train(self) -> TrainingResult:
        """Answer the questions about each file that is left.

        Raises:
            ConfigError: a question, the model or the rollouts are not there.
            RunError: a file is damaged, or the model answers nothing.
        """
        context = self._bound("train")
        if not self._folder:
            self._folder = str(
                _run_with_rollouts(self.config.rollouts, self.settings.runs_folder).resolve()
            )
        files = _files(Path(self._folder), self.config)
        params = self.hyper_params
        models = Models.load(
            params.models, context.factory, seed=params.seed, device=context.settings.device
        )
        with closing(models):
            self.run.places.add("models", models.places)
            for path in files[self._step :]:
                with self.run.phase("analysis"):
                    self._metrics = self._analyse(path, models)
                self._step += 1
                self._complete = self._step == len(files)
                self.run.end_step(self._step, self._metrics)
        return TrainingResult(steps=self._step, metrics=dict(self._metrics))

    @property
    def complete(self) -> bool:
        """Whether the last file is analysed."""
        return self._complete

    def _analyse(self, path: Path, models: Models) -> dict[str, float]:
        protocol = _protocol_of(path)
        questions = questions_for(self.config.questions, protocol)
        rollouts = NestedArrayDict.load(path)[: self.config.max_rollouts]
        asked = list(inquiries(rollouts, protocol, questions))
        replies = self._replies(asked, models)
        answers = [None if reply is None else read_answer(reply) for reply in replies]
        for each, reply, answer in zip(asked, replies, answers, strict=True):
            word = {True: "yes", False: "no", None: "unclear"}[answer]
            self.run.sample(
                "analysis",
                {
                    "step": self._step + 1,
                    "file": _name(path),
                    "episode": each.episode,
                    "agent": each.agent,
                    "question": each.question,
                    "answer": word,
                    "reply": reply,
                },
            )
        return {**analysis_metrics(asked, answers), "analysis/rollouts": float(len(rollouts))}

    def _replies(self, asked: Sequence[Inquiry], models: Models) -> list[str | None]:
        """What the model says to each; None: it did not answer.

        Raises:
            RunError: it answered nothing.
        """
        name = self.config.model
        service = models[name].inference
        tokenizer = chat_tokenizer(service.tokenizer, name)
        own = SamplingParams(
            temperature=self.config.temperature, max_new_tokens=self.config.max_answer_length
        )
        sampling, seed = ending(own, tokenizer), self.hyper_params.seed
        requests = [
            GenerationRequest(
                encode_question(tokenizer, each.prompt, name),
                sampling,
                (seed, self._step, number, 0, 0),
            )
            for number, each in enumerate(asked)
        ]
        answers: list[Completion | EngineError] = []
        try:
            for start in range(0, len(requests), _AT_ONCE):
                answers += ask_all(name, service, requests[start : start + _AT_ONCE])
        except RunError as error:
            raise RunError(f"model {name!r} answers no question: {error}") from error
        failed = [answer for answer in answers if isinstance(answer, EngineError)]
        if failed and len(failed) == len(answers):
            raise RunError(f"model {name!r} answers no question: {failed[0]}") from failed[0]
        return [
            None if isinstance(each, EngineError) else tokenizer.decode(each.tokens)
            for each in answers
        ]

    def state_dict(self) -> dict[str, Any]:
        """How many files are done, and of which run: there may be a newer one on resume."""
        return {"step": self._step, "folder": self._folder, "metrics": dict(self._metrics)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the files that are done."""
        self._step, self._folder = state["step"], state["folder"]
        self._metrics = dict(state["metrics"])


def _run_with_rollouts(reference: str, runs_folder: str) -> Path:
    """The run that is meant; of several the newest that has rollouts, which an analysis has not.

    Raises:
        UsageError: there is none.
    """
    root = Path(runs_folder)
    for run in reversed(find_all(root)):
        if reference in ("latest", run.experiment) and _rollout_files(Path(run.path)):
            return Path(run.path)
    if reference == "latest":
        raise UsageError(f"no run in {root} has saved rollouts; {_WHO}")
    return find(reference, root)


def _rollout_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("rollouts/*.npz"), *folder.glob("phase-*/rollouts/*.npz")])


def _files(folder: Path, section: Any) -> list[Path]:
    """The files of rollouts of a run that are asked for, in order.

    Raises:
        UsageError: it has saved none.
        ConfigError: it has not saved these.
    """
    found = _rollout_files(folder)
    if not found:
        raise UsageError(f"{folder} has no saved rollouts; {_WHO}")
    if section.files:
        names = {_name(path) for path in found}
        lost = [name for name in section.files if name not in names]
        if lost:
            raise ConfigError(
                f"{folder} has no rollouts {lost[0]!r}; it has: {', '.join(sorted(names))}"
                f"{did_you_mean(lost[0], names, 1)}"
            )
        found = [path for path in found if _name(path) in section.files]
    return found


def _name(file: Path) -> str:
    """What a file of rollouts is called: ``iteration-0001``, or ``phase-2/iteration-0001``."""
    phase = file.parent.parent.name
    return f"{phase}/{file.stem}" if phase.startswith("phase-") else file.stem


def _protocol_of(file: Path) -> Protocol:
    """The protocol of the run, or phase of a run, that saved a file."""
    own = file.parent.parent
    phase = int(own.name.removeprefix("phase-")) if own.name.startswith("phase-") else None
    run = own if phase is None else own.parent
    tree = read_config(run, "analysed")
    validated = prepare(tree, preflight=False, setup=False).validated
    if phase is not None:
        validated = validated.phases[phase - 1][1]
    return make_protocol(validated.tree["rollout_worker"]["protocol"])
