"""Requests: what a client asks for, read from its JSON and checked."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from plugrl.core.chat_template import Message
from plugrl.core.config.schemas.temperature import LEAST
from plugrl.core.text.endpoint.body import Body
from plugrl.core.text.endpoint.faults import invalid, unsupported
from plugrl.core.text.endpoint.forms import AnswerForm, read_response_format, read_tool_choice
from plugrl.core.text.endpoint.messages import read_messages, read_tools
from plugrl.core.text.inference.sampling import (
    LEAST_REPETITION,
    MOST_PENALTY,
    MOST_REPETITION,
    MOST_TOP_LOGPROBS,
    SamplingParams,
)

#: Answers to one request.
MOST_CHOICES = 128
MOST_TOKENS = 2**31
#: What clients send for their own books.
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
#: Parameters with the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
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
#: Variables that the chat template gets anyway, and parameters of what renders it.
_TEMPLATE_OWN = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "tokenizer_kwargs"),
        *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "self"),
        *("pad_token", "eos_token", "bos_token"),
    )
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
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

    def sampling(self, base: SamplingParams, room: int, grammar: str = "") -> SamplingParams:
        """The parameters of this request over those of the endpoint, for at most ``room`` tokens.

        An answer is never longer than ``base`` says, and matches ``grammar``.
        """
        most = min(self.sampled.get("max_new_tokens", base.max_new_tokens), base.max_new_tokens)
        most = min(most, room)
        least = self.sampled.get("min_new_tokens", 0)
        if least > most:
            raise invalid("min_tokens", f"min_tokens is {least}; at most {most} are possible")
        changes = {**self.sampled, "max_new_tokens": most}
        if grammar:
            if least:
                raise invalid("min_tokens", "min_tokens cannot be had where an answer has a form")
            # The grammar says when an answer ends.
            changes |= {"grammar": grammar, "min_new_tokens": 0}
        return replace(base, **changes)


@dataclass(frozen=True)
class ChatRequest(EndpointRequest):
    """A request for ``/chat/completions``.

    Attributes:
        messages: that are answered.
        tools: that replies may call.
        form: of the reply.
        template: further variables of the chat template.
        effort: of reasoning, as templates that know of it are told.
        ignored: parameters that are accepted and do nothing.
    """

    prompted_by: ClassVar[str] = "messages"

    messages: list[Message]
    tools: list[dict[str, Any]]
    form: AnswerForm = field(default_factory=AnswerForm)
    template: dict[str, Any] = field(default_factory=dict)
    effort: str | None = None
    ignored: Sequence[str] = ()

    @property
    def calls(self) -> bool:
        """Whether replies may call tools."""
        return bool(self.tools) and self.form.choice != "none"

    def template_options(
        self, variables: Collection[str] | None
    ) -> tuple[dict[str, Any], set[str]]:
        """What the template is given besides, and which parameters it does not read.

        Args:
            variables: that it reads; None: they are not known.
        """
        options, effort = dict(self.template), self.effort
        unread = set() if variables is None else set(options) - set(variables)
        if effort is not None and (variables is None or "reasoning_effort" in variables):
            options.setdefault("reasoning_effort", effort)
        elif effort == "none" and "enable_thinking" in (variables or ()):
            # What templates read that can do without reasoning.
            options.setdefault("enable_thinking", False)
        elif effort is not None:
            unread.add("reasoning_effort")
        return {name: options[name] for name in options if name not in unread}, unread


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
    form = AnswerForm(
        read_response_format(body.take("response_format")),
        read_tool_choice(body.take("tool_choice"), tools),
        body.flag("parallel_tool_calls", absent=True),
    )
    template, effort = read_template(body), checked_effort(body.text("reasoning_effort"))
    for name, values in _CHAT_NEUTRAL.items():
        body.neutral(name, *values, reason=f"only {_list(values)} is possible")
    limit = body.whole("max_completion_tokens", 1, MOST_TOKENS)
    common = read_common(body, limit, 1)
    common["logprobs"] = body.flag("logprobs")
    common["sampled"] |= read_top_logprobs(body, common["logprobs"], "logprobs: true")
    body.finish()
    return ChatRequest(
        **common, messages=messages, tools=tools, form=form, template=template, effort=effort
    )


def read_top_logprobs(body: Body, logprobs: bool, needed: str) -> dict[str, int]:
    """``top_logprobs`` as a field of :class:`SamplingParams`, if it is asked for.

    Args:
        body: of the request.
        logprobs: whether log-probabilities are sent.
        needed: how a request asks for them.

    Raises:
        ApiError: it is out of range, or no log-probabilities are sent.
    """
    top = body.whole("top_logprobs", 0, MOST_TOP_LOGPROBS)
    if top and not logprobs:
        raise invalid("top_logprobs", f"top_logprobs needs {needed}")
    return {"top_logprobs": top} if top else {}


def read_template(body: Body) -> dict[str, Any]:
    """Further variables of the chat template.

    Raises:
        ApiError: they are malformed, or name what the template gets anyway.
    """
    options = body.take("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise invalid("chat_template_kwargs", "chat_template_kwargs must be an object")
    for name in options:
        if name in _TEMPLATE_OWN or not name.isidentifier() or name.startswith("plugrl_"):
            raise invalid("chat_template_kwargs", f"chat_template_kwargs cannot have {name[:64]!r}")
    return options


def checked_effort(effort: str | None) -> str | None:
    """``reasoning_effort``, which must be one that OpenAI's interface has.

    Raises:
        ApiError: it is another.
    """
    if effort is not None and effort not in _EFFORTS:
        raise invalid("reasoning_effort", f"reasoning_effort can be {', '.join(_EFFORTS)}")
    return effort


def read_text(data: bytes) -> TextRequest:
    """Read the body of a request for ``/completions``.

    Raises:
        ApiError: it is malformed, or asks for what is not supported.
    """
    body = Body(data)
    prompts = _prompts(body.take("prompt"))
    asked = body.take("logprobs")
    top = None if asked is False else body.whole("logprobs", 0, MOST_TOP_LOGPROBS)
    common = read_common(body, None, 0)
    if common["sampled"].get("max_new_tokens") == 0 and not common["prompt_logprobs"]:
        raise invalid("max_tokens", "max_tokens is 0, which is of use with prompt_logprobs alone")
    common["logprobs"] = top is not None
    common["sampled"] |= {"top_logprobs": top} if top else {}
    body.finish()
    return TextRequest(**common, prompts=prompts)


def read_common(
    body: Body, limit: int | None, least: int, streamed: Collection[str] = ("include_usage",)
) -> dict[str, Any]:
    """The fields of :class:`EndpointRequest`, without ``logprobs``.

    Args:
        body: of the request.
        limit: tokens of the answer, if they are given by a newer name.
        least: tokens that an answer may be limited to.
        streamed: what ``stream_options`` may have.

    Raises:
        ApiError: a parameter is malformed, or asks for what is not supported.
    """
    older = body.whole("max_tokens", least, MOST_TOKENS)
    if limit is not None and older is not None and limit != older:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; send one of them")
    options = body.take("stream_options") or {}
    if not isinstance(options, dict) or not set(options) <= set(streamed):
        raise unsupported("stream_options", f"stream_options can have {' and '.join(streamed)}")
    for name in _LABELS:
        body.take(name)
    for name, values in _NEUTRAL.items():
        body.neutral(name, *values, reason=f"only {_list(values)} is possible")
    top_k = body.whole("top_k", -1, MOST_TOKENS)
    temperature = body.number("temperature", 0.0, 100.0)
    sampled = {
        "temperature": temperature,
        "top_p": body.number("top_p", 0.0, 1.0),
        "top_k": None if top_k is None else max(top_k, 0),
        "max_new_tokens": older if limit is None else limit,
        "min_new_tokens": body.whole("min_tokens", 0, MOST_TOKENS),
        "min_p": body.number("min_p", 0.0, 1.0),
        "presence_penalty": body.number("presence_penalty", -MOST_PENALTY, MOST_PENALTY),
        "frequency_penalty": body.number("frequency_penalty", -MOST_PENALTY, MOST_PENALTY),
        "repetition_penalty": body.number("repetition_penalty", LEAST_REPETITION, MOST_REPETITION),
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
