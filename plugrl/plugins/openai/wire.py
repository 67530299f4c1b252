"""Requests and answers in the words of each server.

The fields are those of public documents: vLLM's OpenAI-compatible server (``return_token_ids``,
``prompt_logprobs``; docs.vllm.ai), SGLang's native ``/generate`` (docs.sglang.io) and OpenAI's
``/completions``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.text.inference.chat import encode_continuation, end_tokens
from plugrl.core.text.inference.requests import GenerationRequest
from plugrl.core.text.inference.sampling import SamplingParams, stream_seeds
from plugrl.core.text.inference.tokenizer import Tokenizer
from plugrl.core.text.trajectory import FinishReason

#: Bits of a seed that every server takes.
_SEED_BITS = 31
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    # What is left of an answer that the vendor's filter cut.
    "content_filter": "stop",
}
#: A whole message in ChatML: its role and its text.
_CHATML = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


class Missing(ContractError):
    """An answer lacks something that the server's documents promise."""


@dataclass(frozen=True)
class Answer:
    """What a server answered; ``weights`` is its own name for the weights, if it has one."""

    tokens: list[int]
    logprobs: list[float]
    finish: FinishReason
    prompt_logprobs: list[float] | None = None
    weights: str | None = None


class Dialect(ABC):
    """How one sort of server is asked for tokens."""

    #: Whether answers hold token ids with log-probabilities.
    exact: ClassVar[bool] = True
    #: Whether weights can be loaded into the server.
    takes_weights: ClassVar[bool] = False
    #: Whether a request says which model is to answer.
    names_model: ClassVar[bool] = True
    #: Whether the server is sent what the tokenizer counts as a prompt.
    counts_alike: ClassVar[bool] = True
    #: Whether it can be told of tokens that end answers; the model's own do everywhere.
    stops_at_tokens: ClassVar[bool] = True
    #: Tokens of a context that a prompt can never have.
    reserve: ClassVar[int] = 0

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.model, self._tokenizer = model, tokenizer

    @abstractmethod
    def url(self, base: str, root: str) -> str:
        """Where requests go."""

    @abstractmethod
    def body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        """The JSON of a request whose answer has at most ``room`` tokens.

        Raises:
            ConfigError: the server cannot be asked for this.
        """

    @abstractmethod
    def read(self, answer: Any, request: GenerationRequest) -> Answer:
        """The answer to ``request``.

        Raises:
            Missing: it lacks something.
        """


class Vllm(Dialect):
    """vLLM's ``/v1/completions`` with token ids."""

    takes_weights = True
    # A prompt as long as the context is refused, and scoring samples a token that is dropped.
    reserve = 1

    def __init__(self, model: str, tokenizer: Tokenizer, *, processed: bool = False) -> None:
        super().__init__(model, tokenizer)
        self._processed = processed

    def url(self, base: str, root: str) -> str:
        """Where requests go."""
        return f"{base}/completions"

    def body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        """The JSON of a request; the log-probabilities of the sampled tokens are asked for."""
        self._check(request.sampling)
        # The server's own end tokens, which a generation config may add to, do not count.
        return self._common(request, max(room, 1)) | {"ignore_eos": True}

    def _common(self, request: GenerationRequest, most: int) -> dict[str, Any]:
        sampling = request.sampling
        # What is left out has the default of the model's generation config, so nothing is.
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": [int(token) for token in request.prompt_tokens],
            "max_tokens": most,
            "min_tokens": min(sampling.min_new_tokens, most),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "n": 1,
            "seed": seed_of(request),
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,
            "return_token_ids": True,
        }
        return body | ({"prompt_logprobs": 0} if request.prompt_logprobs else {})

    def _check(self, sampling: SamplingParams) -> None:
        """Refuse parameters with which the server's log-probabilities are not those of plugrl."""
        if not sampling.max_new_tokens:
            return
        if not self._processed and sampling.temperature not in (0, 1):
            raise ConfigError(
                f"temperature is {sampling.temperature:g}, and vLLM gives log-probabilities of "
                "temperature 1 unless it is started with --logprobs-mode processed_logprobs; start "
                "it so and write logprobs_mode: processed, or sample at temperature 1"
            )
        if self._processed and (sampling.top_k or sampling.top_p < 1):
            raise ConfigError(
                "logprobs_mode is processed, and such log-probabilities are of the tokens that "
                "top_k and top_p keep; leave those at 0 and 1, or use logprobs_mode: raw"
            )

    def read(self, answer: Any, request: GenerationRequest) -> Answer:
        """The first choice of the answer."""
        choice = _first_choice(answer)
        prompt = _prompt_scores(choice.get("prompt_logprobs"), request)
        if not request.sampling.max_new_tokens:
            return Answer([], [], "length", prompt)
        tokens = choice.get("token_ids")
        if not isinstance(tokens, list):
            raise Missing("token ids (return_token_ids)")
        given = (choice.get("logprobs") or {}).get("token_logprobs")
        if not isinstance(given, list) or len(given) != len(tokens) or None in given:
            raise Missing("the log-probability of each sampled token (logprobs)")
        echoed = choice.get("prompt_token_ids")
        if echoed is not None and list(echoed) != list(request.prompt_tokens):
            raise Missing("the prompt's own tokens (prompt_token_ids are others)")
        logprobs = [float(value) for value in given]
        return Answer(list(tokens), logprobs, _finish(choice.get("finish_reason")), prompt)


class Plugrl(Vllm):
    """plugrl's own endpoint, which has vLLM's fields and log-probabilities at any temperature."""

    takes_weights = False
    reserve = 0

    def body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        """The JSON of a request."""
        return self._common(request, room)


class Sglang(Dialect):
    """SGLang's native ``/generate``, which has no seeds unless it is started for them."""

    takes_weights = True
    names_model = False
    reserve = 1

    def url(self, base: str, root: str) -> str:
        """Where requests go."""
        return f"{root}/generate"

    def body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        """The JSON of a request; the log-probabilities of the sampled tokens are asked for."""
        sampling = request.sampling
        return {
            "input_ids": [int(token) for token in request.prompt_tokens],
            "sampling_params": {
                "max_new_tokens": room,
                "min_new_tokens": min(sampling.min_new_tokens, room),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k or -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop": list(sampling.stop),
                "stop_token_ids": list(sampling.stop_token_ids),
            },
            "return_logprob": True,
            "logprob_start_len": 0 if request.prompt_logprobs else -1,
            "stream": False,
        }

    def read(self, answer: Any, request: GenerationRequest) -> Answer:
        """Tokens and log-probabilities, which are pairs in ``meta_info``."""
        meta = answer.get("meta_info") if isinstance(answer, Mapping) else None
        if not isinstance(meta, Mapping):
            raise Missing("meta_info (/generate)")
        prompt = None
        if request.prompt_logprobs:
            prompt = _triples(meta.get("input_token_logprobs"), "input_token_logprobs", True)[1]
        version = meta.get("weight_version")
        weights = None if version is None else str(version)
        if not request.sampling.max_new_tokens:
            return Answer([], [], "length", prompt, weights)
        tokens, logprobs = _triples(meta.get("output_token_logprobs"), "output_token_logprobs")
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        return Answer(tokens, logprobs, _finish(kind), prompt, weights)


class Generic(Dialect):
    """OpenAI's ``/completions``: text in, text out, and no log-probabilities that can be used.

    Prompt and answer are turned into text and back, so that nothing can be trained on them.
    """

    exact = False
    stops_at_tokens = False

    def url(self, base: str, root: str) -> str:
        """Where requests go."""
        return f"{base}/completions"

    def body(self, request: GenerationRequest, room: int) -> dict[str, Any]:
        """The JSON of a request."""
        sampling = request.sampling
        unknown = [n for n in ("top_k", "min_new_tokens") if getattr(sampling, n)]
        # The server ends answers at the model's own end tokens itself.
        others = set(sampling.stop_token_ids) - set(end_tokens(self._tokenizer))
        if request.prompt_logprobs or not sampling.max_new_tokens:
            raise ContractError(
                f"model {self.model!r} is behind a server that gives no log-probabilities of "
                "prompts; use vLLM, SGLang or plugrl serve where they are needed"
            )
        if unknown or others:
            names = " and ".join([*unknown, *(["stop_token_ids"] if others else [])])
            raise ConfigError(
                f"{names} cannot be asked of a server of engine {type(self).__name__.lower()}; "
                "leave it out, or use vLLM, SGLang or plugrl serve"
            )
        body: dict[str, Any] = {
            "model": self.model,
            **self._prompt_fields(as_text(self._tokenizer, request.prompt_tokens), room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed_of(request),
        }
        return body | ({"stop": list(sampling.stop)} if sampling.stop else {})

    def _prompt_fields(self, prompt: str, room: int) -> dict[str, Any]:
        """The fields that say what is to be continued, and for how long."""
        return {"prompt": prompt, "max_tokens": room}

    def read(self, answer: Any, request: GenerationRequest) -> Answer:
        """The text of the first choice in tokens; the log-probabilities are all 0."""
        choice = _first_choice(answer)
        text = self._answer_text(choice)
        if not isinstance(text, str):
            raise Missing("a text")
        writable = getattr(self._tokenizer, "writable", lambda text: text)
        most = request.sampling.max_new_tokens
        tokens = encode_continuation(self._tokenizer, writable(text))[:most]
        finish = _finish(choice.get("finish_reason"))
        end = self._tokenizer.eos_token_id
        if finish == "stop" and len(tokens) < most and tokens[-1:] != [end]:
            tokens.append(end)
        return Answer(tokens, [0.0] * len(tokens), finish)

    def _answer_text(self, choice: Mapping[str, Any]) -> Any:
        """The text of a choice."""
        return choice.get("text")


class Chat(Generic):
    """OpenAI's ``/chat/completions``: messages in, text out.

    The messages are read from a prompt that is written in ChatML; any other prompt is one message
    of the user.
    """

    counts_alike = False

    def url(self, base: str, root: str) -> str:
        """Where requests go."""
        return f"{base}/chat/completions"

    def _prompt_fields(self, prompt: str, room: int) -> dict[str, Any]:
        return {"messages": messages_of(prompt), "max_completion_tokens": room}

    def _answer_text(self, choice: Mapping[str, Any]) -> Any:
        message = choice.get("message")
        if not isinstance(message, Mapping):
            return None
        # A model that refuses says so in another field.
        return message.get("content") or message.get("refusal") or ""


def messages_of(prompt: str) -> list[dict[str, str]]:
    """The messages of a prompt in ChatML, without the beginning of the reply that is asked for."""
    found = [{"role": role, "content": text} for role, text in _CHATML.findall(prompt)]
    return found or [{"role": "user", "content": prompt}]


def seed_of(request: GenerationRequest) -> int:
    """The seed of a request's random numbers, from its place in the run."""
    return int(stream_seeds([request.stream])[0]) >> (64 - _SEED_BITS)


def as_text(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of a prompt, special tokens included, from which a server makes the same tokens.

    It begins every text as the tokenizer does, so that this is left out.
    """
    opening, tokens = list(getattr(tokenizer, "opening", ())), list(tokens)
    if tokens[: len(opening)] == opening:
        tokens = tokens[len(opening) :]
    wrapped = getattr(tokenizer, "wrapped", None)
    if wrapped is None:
        return str(tokenizer.decode(tokens))
    return str(wrapped.decode(tokens, skip_special_tokens=False))


def _first_choice(answer: Any) -> Mapping[str, Any]:
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise Missing("choices")
    return choices[0]


def _finish(reason: Any) -> FinishReason:
    if reason not in _FINISH:
        raise Missing(f"a finish reason that is known ({reason!r} is not)")
    return _FINISH[reason]


def _prompt_scores(given: Any, request: GenerationRequest) -> list[float] | None:
    """The prompt's log-probabilities from vLLM's list of mappings, one for each token."""
    if not request.prompt_logprobs:
        return None
    prompt = request.prompt_tokens
    if not isinstance(given, list) or len(given) != len(prompt):
        raise Missing("the log-probability of each prompt token (prompt_logprobs)")
    scores = [0.0]
    for token, entry in zip(prompt[1:], given[1:], strict=True):
        found = entry.get(str(int(token))) if isinstance(entry, Mapping) else None
        value = found.get("logprob") if isinstance(found, Mapping) else None
        if not isinstance(value, (int, float)):
            raise Missing("the log-probability of each prompt token (prompt_logprobs)")
        scores.append(float(value))
    return scores


def _triples(given: Any, name: str, first_unknown: bool = False) -> tuple[list[int], list[float]]:
    """Tokens and log-probabilities of SGLang's list of (log-probability, token, text)."""
    tokens, values = [], []
    for place, entry in enumerate(given if isinstance(given, list) else [None]):
        value, token = entry[:2] if isinstance(entry, list) and len(entry) > 1 else (None, None)
        if value is None and first_unknown and place == 0 and token is not None:
            value = 0.0
        if not isinstance(value, (int, float)) or not isinstance(token, int):
            raise Missing(f"{name} (return_logprob)")
        tokens.append(token)
        values.append(float(value))
    return tokens, values
