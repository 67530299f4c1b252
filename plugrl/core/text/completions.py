"""What an engine may answer: a fault is named where it arises, not where it shows."""

from __future__ import annotations

from collections.abc import Sequence

from plugrl.core.errors import ContractError
from plugrl.core.text.services import Completion, GenerationRequest


def check_completions(
    model: str, answers: object, requests: Sequence[GenerationRequest], vocabulary_size: int
) -> list[Completion]:
    """Refuse answers that an engine cannot have sampled; give them back otherwise.

    Log-probabilities that are not finite pass: they make the one trajectory invalid.

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


def _fault(answer: object, request: GenerationRequest, vocabulary_size: int) -> str:
    if not isinstance(answer, Completion):
        return f"{type(answer).__name__} to a request; a Completion is expected"
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
