"""What the driver and its worker processes send each other.

All messages are tuples that begin with their name. To a process: ``setup``, ``collect`` (attempts
that advance together), ``begin`` and ``cancel`` (attempts that do not), ``answers``. From it:
``ready``, ``round``, ``hung``, ``fatal``, ``log``. What comes from user code travels as bytes of
its own, so that it fails where the failure can be told to one attempt.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.plugins.user_code.user_files import USER_PACKAGE_PREFIX, load_file
from plugrl.core.text.inference.services import TokenLimits

if TYPE_CHECKING:
    from plugrl.core.factory import Factory
    from plugrl.core.plugins.kinds import Record
    from plugrl.core.text.inference.services import InferenceService
    from plugrl.core.text.inference.tokenizer import Tokenizer


#: What a process says.
REPORTS = ("ready", "round", "hung", "fatal", "log")


@dataclass(frozen=True, slots=True)
class Sent:
    """An object as bytes, with the user's file that its class comes from."""

    data: bytes
    file: str | None

    @classmethod
    def pack(cls, value: Any) -> Sent:
        """``value`` as bytes; raises what its pickling raises."""
        module = type(value).__module__
        file = getattr(sys.modules.get(module), "__file__", None)
        return cls(pickle.dumps(value), file if module.startswith(USER_PACKAGE_PREFIX) else None)

    def unpack(self) -> Any:
        """The object; raises what its unpickling raises."""
        if self.file is not None:
            load_file(self.file)
        return pickle.loads(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """What a process needs to build a worker: records and sections, and no weights."""

    worker: Record
    section: Any
    evaluators: Mapping[str, Record]
    reference_key: str
    prompt_key: str
    tokenizers: Mapping[str, Sent]
    limits: Mapping[str, TokenLimits]
    timeout: float | None = None
    level: int = field(default=30)


def worker_setup(
    factory: Factory,
    section: Any,
    services: Mapping[str, InferenceService],
    *,
    answer_key: str = "answer",
    prompt_key: str = "prompt",
    level: int = 30,
) -> Setup:
    """Describe the worker of the section ``rollout_worker`` for other processes.

    Args:
        factory: knows what the configuration picked.
        section: of the worker, validated.
        services: the models that it may ask.
        answer_key: column of the reference answers.
        prompt_key: column of the prompts.
        level: log messages below it stay in the process.

    Raises:
        ConfigError: the tokenizer of a model cannot be sent.
    """
    path = "rollout_worker.evaluator"
    evaluator = section.get("evaluator")
    evaluators = dict(factory.below(path))
    if evaluator is not None:
        evaluators[path] = factory.record("evaluator", evaluator, path)
    return Setup(
        worker=factory.record("rollout_worker", section, "rollout_worker"),
        section=section,
        evaluators=evaluators,
        reference_key=answer_key,
        prompt_key=prompt_key,
        tokenizers={name: _tokenizer(name, service) for name, service in services.items()},
        limits=TokenLimits.of(services),
        timeout=section.get("timeout"),
        level=level,
    )


def _tokenizer(name: str, service: InferenceService) -> Sent:
    try:
        return Sent.pack(service.tokenizer)
    except Exception as error:
        raise ConfigError(
            f"the tokenizer of model {name!r} ({type(service.tokenizer).__name__}) cannot be sent "
            f"to worker processes: {one_line(error)}; make it picklable, or set "
            "rollout_worker.processes=0"
        ) from error


class SentTokenizers(Mapping[str, "Tokenizer"]):
    """The tokenizers of a setup, each made when it is first used."""

    def __init__(self, sent: Mapping[str, Sent]) -> None:
        self._sent = sent
        self._made: dict[str, Tokenizer] = {}

    def __getitem__(self, name: str) -> Tokenizer:
        if name not in self._made:
            sent = self._sent[name]
            try:
                self._made[name] = sent.unpack()
            except Exception as error:
                raise ConfigError(
                    f"the tokenizer of model {name!r} cannot be made in a worker process: "
                    f"{one_line(error)}; define its class in an importable module, or set "
                    "rollout_worker.processes=0"
                ) from error
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)


def pack_error(error: BaseException) -> bytes:
    """An exception as bytes; one that cannot travel becomes one that says the same."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        kind = RunError if isinstance(error, PlugrlError) else RuntimeError
        said = str(error) if isinstance(error, PlugrlError) else one_line(error)
        data = pickle.dumps(kind(said))
    return data


def unpack_error(data: bytes) -> Exception:
    """The exception that :func:`pack_error` packed."""
    try:
        error = pickle.loads(data)
    except Exception as problem:
        return RunError(f"an error of a worker process cannot be read: {one_line(problem)}")
    return error if isinstance(error, Exception) else RunError(one_line(error))
