"""Requests go to an engine and completions come back; what no engine can answer is named here."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from operator import countOf
from typing import Protocol, get_args

from plugrl.core.errors import ContractError, PlugrlError, RunError
from plugrl.core.plugins.user_code.error_location import one_line, raised_at
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.rollout.time_limits import run_coroutine
from plugrl.core.text.trajectory import ROUNDING, FinishReason

_REASONS = get_args(FinishReason)


class Engine(Protocol):
    """What answers requests: an inference service."""

    #: Whether a list of requests is computed together, so that it gives equal numbers each time.
    together: bool

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this number."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Answer all requests, in their order."""

    async def complete(self, request: GenerationRequest) -> Completion:
        """Answer one request while others are served too."""


class EngineError(Exception):
    """A request that an engine failed to answer; its attempt becomes invalid, and says why."""


def engine_error(
    model: str, service: object, error: Exception, method: str = "generate"
) -> EngineError:
    """What is said of requests during which the engine of ``model`` raised ``error``."""
    at = raised_at(error)
    text = f"model {model!r}: {type(service).__name__}.{method} raised {one_line(error)}"
    failure = EngineError(text + (f" ({at})" if at else ""))
    failure.__cause__ = error
    return failure


def complete_requests(
    model: str, service: Engine, requests: Sequence[GenerationRequest]
) -> list[Completion | EngineError]:
    """What ``service`` answers to ``requests``; an answer that no model gives is an error.

    Raises:
        ContractError: the engine broke its contract.
        Exception: whatever the engine raises.
    """
    answers = check_completions(
        model, service.generate(requests), requests, service.vocabulary_size
    )
    return [_unlikely(model, answer) or answer for answer in answers]


async def complete_request(model: str, service: Engine, request: GenerationRequest) -> Completion:
    """The answer of ``service`` to one of many requests that it has at once.

    Raises:
        EngineError: it failed to answer this request, or no model gives such an answer.
        PlugrlError: it broke its contract, or names a fault that must end the run.
    """
    try:
        answer = await service.complete(request)
    except (PlugrlError, EngineError):
        raise
    except Exception as error:
        raise engine_error(model, service, error, "complete") from error
    except SystemExit as error:
        raise RunError(f"model {model!r} called exit ({error})") from error
    check_completions(model, [answer], [request], service.vocabulary_size)
    unlikely = _unlikely(model, answer)
    if unlikely is not None:
        raise unlikely
    return answer


def check_completions(
    model: str, answers: object, requests: Sequence[GenerationRequest], vocabulary_size: int
) -> list[Completion]:
    """Refuse answers that an engine cannot have sampled; give them back otherwise.

    Impossible log-probabilities are left to :func:`complete_requests`, which fails one attempt.

    Args:
        model: its name, for the message.
        answers: what ``generate`` returned.
        requests: what it was asked, in order.
        vocabulary_size: token ids are below this number.

    Raises:
        ContractError: the engine broke its contract; the run must not go on with such answers.
    """
    if not isinstance(answers, Sequence):
        raise ContractError(
            f"model {model!r} answered {type(answers).__name__}; a list of completions is expected"
        )
    if len(answers) != len(requests):
        raise ContractError(f"model {model!r} answered {len(answers)} of {len(requests)} requests")
    for answer, request in zip(answers, requests, strict=True):
        fault = _fault(answer, request, vocabulary_size)
        if fault:
            raise ContractError(f"model {model!r} answered {fault}")
    return list(answers)


def _unlikely(model: str, answer: Completion) -> EngineError | None:
    """The error of an answer with a log-probability that is not finite or is above 0."""
    total = sum(answer.logprobs)
    if not math.isfinite(total):
        return EngineError(f"model {model!r} answered: a log-probability is NaN or infinite")
    highest = max(answer.logprobs, default=0.0)
    if highest > ROUNDING:
        return EngineError(f"model {model!r} answered: a log-probability is {highest:g}, above 0")
    return None


def _holds(values: Sequence[object], kind: type) -> bool:
    """Whether all are of ``kind``, or whole numbers instead."""
    if countOf(map(type, values), kind) == len(values):
        return True
    return {int, kind} >= set(map(type, values))


def _fault(answer: object, request: GenerationRequest, vocabulary_size: int) -> str:
    if not isinstance(answer, Completion):
        return f"{type(answer).__name__} to a request; a Completion is expected"
    for name, kind, values in (
        ("token", int, answer.tokens),
        ("log-probability", float, answer.logprobs),
    ):
        if not isinstance(values, list) or not _holds(values, kind):
            return f"a list of {name} values that is none of numbers"
    if answer.finish_reason not in _REASONS:
        return f"finish reason {answer.finish_reason!r}; use one of {', '.join(_REASONS)}"
    count = len(answer.tokens)
    if count != len(answer.logprobs):
        return f"{count} tokens with {len(answer.logprobs)} log-probabilities"
    if answer.versions is not None and count != len(answer.versions):
        return f"{count} tokens with {len(answer.versions)} versions"
    if count > request.sampling.max_new_tokens:
        return f"{count} tokens where at most {request.sampling.max_new_tokens} were asked for"
    for token in (min(answer.tokens, default=0), max(answer.tokens, default=0)):
        if not 0 <= token < vocabulary_size:
            return f"token {token}, outside the vocabulary of {vocabulary_size}"
    asked = len(request.prompt_tokens) if request.prompt_logprobs else None
    given = None if answer.prompt_logprobs is None else len(answer.prompt_logprobs)
    if asked is not None and given != asked:
        return f"{given or 'no'} prompt log-probabilities where {asked} were asked for"
    return ""


#: Finish reasons of answers that are none.
_FAILED = ("error", "abort")


def ask_all(
    model: str, service: Engine, requests: Sequence[GenerationRequest]
) -> list[Completion | EngineError]:
    """The answers to ``requests``, in their order; one list, served at once.

    What an API fails to answer, after its tries, is one message that is missing.

    Raises:
        PlugrlError: the engine broke its contract, or names a fault that must end the run.
    """
    if not requests:
        return []
    if not service.together:
        return run_coroutine(_each(model, service, requests))
    try:
        return [
            _as_completion(model, answer) for answer in complete_requests(model, service, requests)
        ]
    except PlugrlError:
        raise
    except Exception as error:
        failure = engine_error(model, service, error)
        return [failure] * len(requests)


async def _each(
    model: str, service: Engine, requests: Sequence[GenerationRequest]
) -> list[Completion | EngineError]:
    """The answers of an engine that serves requests one by one, such as an API."""

    async def one(request: GenerationRequest) -> Completion | EngineError:
        try:
            return _as_completion(model, await complete_request(model, service, request))
        except EngineError as error:
            return error
        except RunError as error:
            if isinstance(error, ContractError):
                raise
            return EngineError(f"model {model!r}: {error}")

    return list(await asyncio.gather(*map(one, requests)))


def _as_completion(model: str, answer: Completion | EngineError) -> Completion | EngineError:
    if isinstance(answer, Completion) and answer.finish_reason in _FAILED:
        return EngineError(f"model {model!r} ended an answer with {answer.finish_reason!r}")
    return answer
