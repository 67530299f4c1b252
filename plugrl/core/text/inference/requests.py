"""Sends lists of requests to one model; a request that fails does not fail the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from plugrl.core.errors import ContractError, PlugrlError, RunError
from plugrl.core.text.inference.completions import (
    EngineError,
    complete_request,
    complete_requests,
    engine_error,
)
from plugrl.core.text.inference.generation import Completion, GenerationRequest
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.rollout.time_limits import run_coroutine

#: Finish reasons of answers that are none.
_FAILED = ("error", "abort")


def ask_all(
    model: str, service: InferenceService, requests: Sequence[GenerationRequest]
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
    model: str, service: InferenceService, requests: Sequence[GenerationRequest]
) -> list[Completion | EngineError]:
    """The same of an engine that serves requests one by one, such as an API."""

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
