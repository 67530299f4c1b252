"""``Session``: requests that belong together, each answered by a model and recorded."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from plugrl.core.errors import PlugrlError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.agents.parsing import Parser
from plugrl.core.text.endpoint import replies
from plugrl.core.text.endpoint.faults import (
    ApiError,
    invalid,
    prompt_too_long,
    session_ended,
    unsupported,
)
from plugrl.core.text.endpoint.forms import answer_grammar, call_limits, check_grammar
from plugrl.core.text.endpoint.messages import read_messages
from plugrl.core.text.endpoint.recording import Prompt, Recording, Turn
from plugrl.core.text.endpoint.replies import Choice
from plugrl.core.text.endpoint.requests import ChatRequest, EndpointRequest, TextRequest
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.inference.services import TokenLimits
from plugrl.core.text.inference.tokenizer import Tokenizer

#: Requests of one session that may be open at once.
MOST_OPEN = 64
#: Characters of a grammar that is compiled while other requests wait.
_SHORT_GRAMMAR = 2**13


class Source(Protocol):
    """What answers the requests of a session: an attempt of a run, or a served model."""

    #: Whether requests may choose a seed and ask for log-probabilities of prompts.
    chooses: bool

    def ask(
        self,
        model: str,
        tokens: list[int],
        sampling: SamplingParams,
        asked: EndpointRequest,
        number: int,
        /,
    ) -> Awaitable[Completion]:
        """The answer of ``model``; ``number`` counts the answers to one request."""


@dataclass(frozen=True)
class Offer:
    """The models of a session and the limits of its requests.

    Attributes:
        tokenizers: by the names of models.
        limits: by the names of models.
        sampling: what holds where a request says nothing; its length is the longest.
        names: other names of the models.
        longest_prompt: tokens of a prompt; None: what the model's context leaves.
        parsers: read the reasoning of replies.
        call_parsers: read the calls of replies to requests with tools.
        most_requests: of one session; None: any number.
    """

    tokenizers: Mapping[str, Tokenizer]
    limits: Mapping[str, TokenLimits]
    sampling: SamplingParams
    names: Mapping[str, str] = field(default_factory=dict)
    longest_prompt: int | None = None
    parsers: Sequence[Parser] = ()
    call_parsers: Sequence[Parser] = ()
    most_requests: int | None = None


class Session:
    """Requests that share one recording. Its methods run in one event loop.

    Args:
        identity: names it in addresses; nobody can guess it.
        offer: what can be asked.
        source: answers.
        loop: the event loop that all requests are answered in; None: that of the server.
        serials: numbers its replies.

    Attributes:
        recording: the tokens of everything that was answered.
        on_activity: called when a request begins and when it ends.
        listener: told of every answer that was recorded.
        waiting: requests of other threads that are on their way into the event loop or back.
        faults: what failed while requests were answered, the latest last.
        fault: the first failure that is no matter of one request, and ``fatal`` tells of it.
        unenforced: how many requests had a parameter that was accepted and not enforced.
    """

    def __init__(
        self,
        identity: str,
        offer: Offer,
        source: Source,
        loop: asyncio.AbstractEventLoop | None = None,
        serials: itertools.count[int] | None = None,
    ) -> None:
        self.identity = identity
        self.offer = offer
        self.loop = loop
        self.recording = Recording()
        self.on_activity: Callable[[], None] = lambda: None
        self.listener: Callable[[Session, Turn], None] | None = None
        self.waiting: set[Future[Any]] = set()
        self.faults: list[str] = []
        self.fault: PlugrlError | None = None
        self.unenforced = 0
        self.fatal = asyncio.Event()
        self.closed = False
        self._source = source
        self._serials = serials or itertools.count()
        self._open: set[asyncio.Task[Any]] = set()
        self._count = 0

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        return bool(self._open)

    def close(self) -> None:
        """End it: open requests are cancelled, and later ones are refused."""
        self.closed = True
        for task in self._open:
            task.cancel()
        for future in list(self.waiting):
            future.cancel()

    async def answer(self, asked: EndpointRequest) -> list[Choice]:
        """The answers to a request, those of one prompt after the other.

        Raises:
            ApiError: it is refused or failed.
        """
        task = asyncio.current_task()
        assert task is not None
        self._admit()
        self._open.add(task)
        try:
            return await self._answer(asked)
        except PlugrlError as error:
            self.fault = self.fault or error
            self.fatal.set()
            self.faults.append(str(error))
            raise ApiError(500, str(error), None, "engine_failed") from error
        except ApiError:
            raise
        except Exception as error:
            self.faults.append(one_line(error))
            raise ApiError(500, one_line(error), None, "engine_failed") from error
        finally:
            self._open.discard(task)
            self.on_activity()

    def _admit(self) -> None:
        if self.closed:
            raise session_ended(self.identity)
        if len(self._open) >= MOST_OPEN:
            raise ApiError(429, f"the session has {MOST_OPEN} open requests; wait for some of them")
        most = self.offer.most_requests
        if most is not None and self._count >= most:
            raise ApiError(
                429, f"the session has used its {most} requests", None, "session_used_up"
            )
        self._count += 1
        self.on_activity()

    async def _answer(self, asked: EndpointRequest) -> list[Choice]:
        offer = self.offer
        model = offer.names.get(asked.model, asked.model)
        tokenizer = offer.tokenizers.get(model)
        if tokenizer is None:
            known = ", ".join([*offer.tokenizers, *offer.names])
            raise ApiError(
                404, f"there is no model {asked.model[:64]!r}; models are: {known}",
                "model", "model_not_found",
            )  # fmt: skip
        if not self._source.chooses:
            self._refuse(asked)
        self._check_options(asked, model)
        prompts, unread = self._prompts(asked, model, tokenizer)
        grammar, unenforced = await self._grammar(asked, model, prompts)
        unenforced = [*unenforced, *unread]
        self.unenforced += bool(unenforced)
        wanted = [
            (prompt, self._sampling(asked, model, prompt, grammar))
            for prompt in prompts
            for _ in range(asked.n)
        ]
        # Sent together, so that one round of the lockstep serves them in one batch.
        asking = [
            asyncio.ensure_future(
                self._source.ask(model, list(prompt.tokens), sampling, asked, number)
            )
            for number, (prompt, sampling) in enumerate(wanted)
        ]
        try:
            completions = await asyncio.gather(*asking)
        finally:
            for one in asking:
                one.cancel()
        for completion in completions:
            if completion.finish_reason in ("abort", "error"):
                why = ", since no token of the vocabulary goes on with the form" if grammar else ""
                raise RuntimeError(
                    f"the engine ended an answer with {completion.finish_reason}{why}"
                )
        return [
            self._choice(asked, tokenizer, prompt, sampling, completion, unenforced)
            for (prompt, sampling), completion in zip(wanted, completions, strict=True)
        ]

    @staticmethod
    def _refuse(asked: EndpointRequest) -> None:
        if asked.seed is not None:
            message = (
                "seed is not supported here: the run gives every request its own; leave it out"
            )
            raise ApiError(400, message, "seed", "unsupported_value")
        if asked.prompt_logprobs:
            message = "prompt_logprobs is not supported during a run; leave it out"
            raise ApiError(400, message, "prompt_logprobs", "unsupported_value")

    def _check_options(self, asked: EndpointRequest, model: str) -> None:
        """Refuse parameters that the service of the model does not sample with."""
        needed = {
            "min_p": ("min_p",),
            "penalties": ("presence_penalty", "frequency_penalty", "repetition_penalty"),
            "top_logprobs": ("top_logprobs",),
        }
        chat = isinstance(asked, ChatRequest)
        known = self.offer.limits[model].options
        for option, params in needed.items():
            for param in params if option not in known else ():
                neutral = 1 if param == "repetition_penalty" else 0
                if asked.sampled.get(param, neutral) != neutral:
                    # Requests for text say it otherwise.
                    param = param if chat else param.removeprefix("top_")
                    raise unsupported(
                        param, f"{param} is not supported by the service of {model!r}; leave it out"
                    )

    async def _grammar(
        self, asked: EndpointRequest, model: str, prompts: Sequence[Prompt]
    ) -> tuple[str, list[str]]:
        """What the answers must be, and which parameters are not enforced."""
        if not isinstance(asked, ChatRequest):
            return "", []
        offer, form = self.offer, asked.form
        grammar, unenforced = answer_grammar(
            form, asked.tools, offer.parsers, offer.call_parsers, prompts[0].text
        )
        if not grammar:
            return "", unenforced
        free = form.schema is None and not form.forced
        param = "tools" if free else "tool_choice" if form.forced else "response_format"
        if "grammar" not in offer.limits[model].options:
            if free:
                return "", call_limits(form, asked.tools)
            raise unsupported(
                param, f"{param} cannot be enforced by the service of {model!r}; leave it out"
            )
        if len(grammar) > _SHORT_GRAMMAR:
            await asyncio.to_thread(check_grammar, grammar, param)
        else:
            check_grammar(grammar, param)
        return grammar, unenforced

    def _prompts(
        self, asked: EndpointRequest, model: str, tokenizer: Tokenizer
    ) -> tuple[list[Prompt], list[str]]:
        """The prompts, and which parameters do nothing, since nobody reads them."""
        recording, unread = self.recording, list[str]()
        if isinstance(asked, ChatRequest):
            read: Callable[[], Any] | None = getattr(tokenizer, "template_variables", None)
            options, own = asked.template_options(None if read is None else read())
            unread = [*sorted(own), *asked.ignored]
            prompts = [recording.chat(model, tokenizer, asked.messages, asked.tools, options)]
        else:
            assert isinstance(asked, TextRequest)
            prompts = [recording.text(model, tokenizer, prompt) for prompt in asked.prompts]
        vocabulary = self.offer.limits[model].vocabulary
        for prompt in prompts:
            if not prompt.tokens:
                raise invalid(asked.prompted_by, "the prompt has no tokens")
            if max(prompt.tokens) >= vocabulary:
                raise invalid(
                    asked.prompted_by,
                    f"token {max(prompt.tokens)} is outside the vocabulary ({vocabulary})",
                )
        return prompts, unread

    def _sampling(
        self, asked: EndpointRequest, model: str, prompt: Prompt, grammar: str
    ) -> SamplingParams:
        length, context = len(prompt.tokens), self.offer.limits[model].context
        longest = self.offer.longest_prompt
        least = min(1, asked.sampled.get("max_new_tokens", 1))
        if longest is not None and length > longest:
            setting = f"rollout_worker.max_prompt_length={longest}"
            raise prompt_too_long(asked.prompted_by, length, longest, setting)
        if length + least > context:
            raise prompt_too_long(asked.prompted_by, length, context)
        return asked.sampling(self.offer.sampling, context - length, grammar)

    def _choice(
        self,
        asked: EndpointRequest,
        tokenizer: Tokenizer,
        prompt: Prompt,
        sampling: SamplingParams,
        completion: Completion,
        unenforced: list[str],
    ) -> Choice:
        said = tokenizer.decode(completion.tokens)
        text, reasoning = replies.cut_at_stop(said, sampling.stop), ""
        calls: list[dict[str, Any]] = []
        finish = "length" if completion.finish_reason == "length" else "stop"
        if isinstance(asked, ChatRequest):
            own = self.offer.call_parsers if asked.calls and finish == "stop" else ()
            parsers = [*self.offer.parsers, *own]
            serial = next(self._serials)
            if parsers:
                text, reasoning, calls = replies.split_reply(
                    parsers, text, prompt.text, asked.tools, serial
                )
        choice = Choice(
            text=text,
            finish="tool_calls" if calls else finish,
            prompt=prompt.tokens,
            completion=completion,
            versions=completion.versions or [completion.version] * len(completion.tokens),
            token_texts=replies.token_texts(tokenizer, completion) if asked.logprobs else [],
            pieces=replies.pieces(tokenizer, completion, text) if asked.stream else [],
            reasoning=reasoning,
            calls=calls,
            unenforced=unenforced,
            top_texts=replies.top_texts(tokenizer, completion) if asked.logprobs else [],
        )
        chat = isinstance(asked, ChatRequest)
        reply = read_messages([choice.message])[0] if chat else None
        turn = self.recording.add(prompt, completion, said, text, reply)
        if self.listener is not None:
            self.listener(self, turn)
        return choice
