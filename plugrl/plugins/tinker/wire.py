"""plugrl's datums, sampling parameters and completions in the form of the Tinker API, and back."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.inference.requests import Completion, GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, stream_seeds
from plugrl.core.text.remote.service import Datum, NamedLoss
from plugrl.core.text.trajectory import FinishReason

#: What services say of the end of an answer, in plugrl's words.
_REASONS: dict[Any, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def as_datums(datums: Sequence[Datum], loss: NamedLoss) -> list[Any]:
    """Datums with the inputs that the loss reads; the API knows no mask."""
    from tinker import types

    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(list(datum.input_tokens)),
            loss_fn_inputs={
                name: datum.loss_fn_inputs[name] for name in ("target_tokens", *loss.inputs)
            },
        )
        for datum in datums
    ]


def for_forward(datums: Sequence[Datum]) -> list[Datum]:
    """Datums whose weights are their masks, so that a forward pass over them has a loss."""
    return [
        Datum(
            datum.input_tokens,
            {
                "target_tokens": datum.loss_fn_inputs["target_tokens"],
                "weights": [float(value) for value in datum.loss_fn_inputs["mask"]],
            },
        )
        for datum in datums
    ]


def logprobs_of(output: Any) -> list[list[float]]:
    """The log-probabilities of the targets, of each datum of an answer.

    Raises:
        ContractError: the answer has none.
    """
    rows = []
    for entry in output.loss_fn_outputs:
        if "logprobs" not in entry:
            raise ContractError("the service gave no log-probabilities of the targets")
        rows.append([float(value) for value in entry["logprobs"].data])
    return rows


def metrics_of(metrics: Mapping[str, float] | None) -> dict[str, float]:
    """Numbers of the service under names that metrics can have; ``grad_norm`` is known by it."""
    found = {}
    for name, value in (metrics or {}).items():
        short = name.rpartition("/")[2].replace(":", "_")
        if short != "learning_rate":
            found[short if short == "grad_norm" else f"service/{short}"] = float(value)
    return found


def as_sampling(sampling: SamplingParams, seed: int, room: int) -> Any:
    """Sampling parameters; strings that end an answer are looked for here.

    Raises:
        ConfigError: the API has nothing of the kind that is asked for.
    """
    from tinker import types

    if sampling.min_new_tokens:
        raise ConfigError("min_new_tokens: the Tinker API has no such parameter; write 0")
    return types.SamplingParams(
        max_tokens=min(sampling.max_new_tokens, room),
        seed=seed,
        stop=list(sampling.stop_token_ids) or None,
        temperature=sampling.temperature,
        top_k=sampling.top_k or -1,
        top_p=sampling.top_p,
    )


def seed_of(request: GenerationRequest) -> int:
    """The seed of a request: 31 bits of its stream."""
    return int(stream_seeds([request.stream])[0]) & 0x7FFFFFFF


def group_by_prompt(requests: Sequence[GenerationRequest]) -> list[list[int]]:
    """The numbers of requests that one call can answer: those of one prompt, in their order."""
    groups: dict[Any, list[int]] = {}
    for number, request in enumerate(requests):
        key = (tuple(request.prompt_tokens), request.sampling, request.prompt_logprobs)
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def prompt_logprobs_of(values: Iterable[float | None] | None, count: int) -> list[float] | None:
    """Log-probabilities of a prompt, 0.0 for the first token; None: the service gives none.

    Services differ in whether they have a place for the first token.

    Raises:
        ContractError: there are not as many as tokens.
    """
    if values is None:
        return None
    found = [math.nan if value is None else float(value) for value in values]
    if len(found) == count - 1:
        found.insert(0, 0.0)
    if len(found) != count:
        raise ContractError(
            f"the service gave {len(found)} log-probabilities of a prompt of {count} tokens"
        )
    found[0] = 0.0
    return found


def completion_of(
    sequence: Any,
    request: GenerationRequest,
    version: int,
    decode: Callable[[Sequence[int]], str],
    prompt_logprobs: list[float] | None,
) -> Completion:
    """An answer of the service, cut where a string ends it.

    Raises:
        ContractError: it has no log-probabilities.
    """
    tokens = [int(token) for token in sequence.tokens]
    if sequence.logprobs is None or len(sequence.logprobs) != len(tokens):
        raise ContractError("the service gave an answer without log-probabilities of its tokens")
    reason: FinishReason = _REASONS.get(sequence.stop_reason, "length")
    end = _end(tokens, request.sampling.stop, decode)
    if end is not None:
        tokens, reason = tokens[:end], "stop"
    logprobs = [float(value) for value in sequence.logprobs[: len(tokens)]]
    asked = prompt_logprobs if request.prompt_logprobs else None
    return Completion(tokens, logprobs, reason, version, prompt_logprobs=asked)


def _end(
    tokens: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]
) -> int | None:
    """How many tokens the answer has when the first of the strings is complete in its text."""
    if not stops or not any(stop in decode(tokens) for stop in stops):
        return None
    return bisect.bisect_left(
        range(len(tokens)), True, key=lambda n: any(stop in decode(tokens[:n]) for stop in stops)
    )
