"""Requests: what a client asks for, read from its JSON and checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plugrl.core.chat_template import Message
from plugrl.core.config.schemas.temperature import LEAST
from plugrl.core.text.endpoint.body import Body
from plugrl.core.text.endpoint.faults import invalid, unsupported
from plugrl.core.text.endpoint.messages import read_messages, read_tools
from plugrl.core.text.inference.sampling import SamplingParams

#: Answers to one request.
MOST_CHOICES = 128
_MOST_TOKENS = 2**31
#: What clients send for their own books.
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
#: Parameters with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "ignore_eos": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}


@dataclass(frozen=True)
class EndpointRequest:
    """What both sorts of requests have in common.

    Attributes:
        model: name that was asked for.
        n: answers to each prompt.
        sampled: fields of :class:`SamplingParams` that the request sets.
        seed: of the answers; None: chosen here.
        logprobs: whether log-probabilities of the answer are sent.
        prompt_logprobs: whether those of the prompt are.
        return_token_ids: whether token ids are sent.
        stream: whether the answer is sent in pieces, the last of which may be ``usage``.
        prompted_by: the parameter that holds what is answered.
    """

    prompted_by: ClassVar[str]

    model: str
    n: int
    sampled: dict[str, Any]
    seed: int | None
    logprobs: bool
    prompt_logprobs: bool
    return_token_ids: bool
    stream: bool
    usage: bool

    def sampling(self, base: SamplingParams, room: int) -> SamplingParams:
        """The parameters of this request over those of the endpoint, for at most ``room`` tokens.

        An answer is never longer than ``base`` says.
        """
        most = min(self.sampled.get("max_new_tokens", base.max_new_tokens), base.max_new_tokens)
        most = min(most, room)
        least = self.sampled.get("min_new_tokens", 0)
        if least > most:
            raise invalid("min_tokens", f"min_tokens is {least}; at most {most} are possible")
        return replace(base, **{**self.sampled, "max_new_tokens": most})


@dataclass(frozen=True)
class ChatRequest(EndpointRequest):
    """A request for ``/chat/completions``; ``calls``: whether replies may call tools."""

    prompted_by: ClassVar[str] = "messages"

    messages: list[Message]
    tools: list[dict[str, Any]]
    calls: bool


@dataclass(frozen=True)
class TextRequest(EndpointRequest):
    """A request for ``/completions``; each prompt is text or token ids."""

    prompted_by: ClassVar[str] = "prompt"

    prompts: list[str | list[int]]


def read_chat(data: bytes) -> ChatRequest:
    """Read the body of a request for ``/chat/completions``.

    Raises:
        ApiError: it is malformed, or asks for what is not supported.
    """
    body = Body(data)
    messages = read_messages(body.take("messages"))
    tools = read_tools(body.take("tools"))
    choice = body.take("tool_choice")
    if choice not in (None, "auto", "none"):
        raise unsupported("tool_choice", "tool_choice can be auto or none; calls are not forced")
    body.neutral("top_logprobs", 0, reason="only the log-probability of the sampled token is kept")
    for name, values in _CHAT_NEUTRAL.items():
        body.neutral(name, *values, reason=f"only {_list(values)} is possible")
    limit = body.whole("max_completion_tokens", 1, _MOST_TOKENS)
    common = _common(body, limit, 1)
    common["logprobs"] = body.flag("logprobs")
    body.finish()
    return ChatRequest(
        **common, messages=messages, tools=tools, calls=bool(tools) and choice != "none"
    )


def read_text(data: bytes) -> TextRequest:
    """Read the body of a request for ``/completions``.

    Raises:
        ApiError: it is malformed, or asks for what is not supported.
    """
    body = Body(data)
    prompts = _prompts(body.take("prompt"))
    logprobs = body.take("logprobs")
    if logprobs is not None and logprobs is not False and (type(logprobs), logprobs) != (int, 0):
        raise unsupported(
            "logprobs", "logprobs can be 0: only the log-probability of the sampled token is kept"
        )
    common = _common(body, None, 0)
    if common["sampled"].get("max_new_tokens") == 0 and not common["prompt_logprobs"]:
        raise invalid("max_tokens", "max_tokens is 0, which is of use with prompt_logprobs alone")
    common["logprobs"] = logprobs is not None and logprobs is not False
    body.finish()
    return TextRequest(**common, prompts=prompts)


def _common(body: Body, limit: int | None, least: int) -> dict[str, Any]:
    older = body.whole("max_tokens", least, _MOST_TOKENS)
    if limit is not None and older is not None and limit != older:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; send one of them")
    options = body.take("stream_options") or {}
    if not isinstance(options, dict) or not set(options) <= {"include_usage"}:
        raise unsupported("stream_options", "stream_options can have include_usage alone")
    for name in _LABELS:
        body.take(name)
    for name, values in _NEUTRAL.items():
        body.neutral(name, *values, reason=f"only {_list(values)} is possible")
    top_k = body.whole("top_k", -1, _MOST_TOKENS)
    temperature = body.number("temperature", 0.0, 100.0)
    sampled = {
        "temperature": temperature,
        "top_p": body.number("top_p", 0.0, 1.0),
        "top_k": None if top_k is None else max(top_k, 0),
        "max_new_tokens": older if limit is None else limit,
        "min_new_tokens": body.whole("min_tokens", 0, _MOST_TOKENS),
        "stop": body.texts("stop", 16) or None,
        "stop_token_ids": _token_ids(body.take("stop_token_ids")),
    }
    if temperature and temperature < LEAST:
        raise invalid("temperature", f"temperature is below {LEAST:g}; 0 is greedy")
    if sampled["top_p"] == 0:
        raise invalid("top_p", "top_p is 0; more than 0 and at most 1 is possible")
    of_prompt = body.take("prompt_logprobs")
    if (
        of_prompt is not None
        and of_prompt is not False
        and (type(of_prompt), of_prompt) != (int, 0)
    ):
        raise unsupported(
            "prompt_logprobs", "prompt_logprobs can be 0: only those of the prompt's own tokens"
        )
    model = body.text("model")
    if model is None:
        raise invalid("model", "model is missing")
    return {
        "model": model,
        "n": body.whole("n", 1, MOST_CHOICES) or 1,
        "sampled": {name: value for name, value in sampled.items() if value is not None},
        "seed": body.whole("seed", -(2**63), 2**63 - 1),
        "prompt_logprobs": of_prompt is not None and of_prompt is not False,
        "return_token_ids": body.flag("return_token_ids"),
        "stream": body.flag("stream"),
        "usage": bool(options.get("include_usage")),
    }


def _prompts(value: Any) -> list[str | list[int]]:
    expected = "text, token ids, or a list of such prompts, none empty, is expected"
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_CHOICES:
        raise invalid("prompt", expected)
    for prompt in value:
        tokens = isinstance(prompt, list) and all(type(t) is int and t >= 0 for t in prompt)
        if not prompt or not (tokens or isinstance(prompt, str)):
            raise invalid("prompt", expected)
    return value


def _token_ids(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(t) is int and t >= 0 for t in value):
        raise invalid("stop_token_ids", "stop_token_ids must be a list of token ids")
    return tuple(value) or None


def _list(values: tuple[Any, ...]) -> str:
    return " or ".join(json.dumps(value) for value in values)
