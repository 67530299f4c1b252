"""One request while it is being answered: its tokens, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from plugrl.core.text.inference.requests import Completion, GenerationRequest

if TYPE_CHECKING:
    from plugrl.core.text.trajectory import FinishReason
    from plugrl.plugins.transformers.engine.grammars import Matcher

#: Tokens that are decoded beyond those that a stop string needs: some have no text of their own.
_MARGIN = 8


@dataclass(slots=True, eq=False)
class Row:
    """A request and its answer so far.

    Args:
        request: what was asked.
        limit: the answer has at most this many tokens.
        decode: gives the text of tokens.
        matcher: says which tokens may come next; None: all.
    """

    request: GenerationRequest
    limit: int
    decode: Callable[[Sequence[int]], str]
    matcher: Matcher | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    prompt_logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    reason: FinishReason | None = None
    _stops: frozenset[int] = frozenset()
    _texts: tuple[str, ...] = ()
    _min: int = 0

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self._stops = frozenset(sampling.stop_token_ids)
        self._texts = sampling.stop
        self._min = sampling.min_new_tokens
        if sampling.top_logprobs:
            self.top_logprobs = []
        if self.matcher is not None and self.matcher.stuck and self.limit:
            self.limit, self.reason = 0, "error"

    @property
    def remaining(self) -> int:
        """Tokens that may still follow."""
        return self.limit - len(self.tokens)

    def take(self, token: int, logprob: float, version: int) -> bool:
        """Append a token; returns whether it ends the answer."""
        tokens = self.tokens
        tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        matcher = self.matcher
        if matcher is not None:
            matcher.take(token)
        if token in self._stops or (self._texts and self._text_ends()):
            self.reason = "stop"
        elif matcher is not None and (matcher.ended or matcher.stuck):
            self.reason = "stop" if matcher.ended else "error"
        elif len(tokens) >= self.limit:
            self.reason = "length"
        return self.reason is not None

    def take_all(self, tokens: list[int], logprobs: list[float], versions: Sequence[int]) -> bool:
        """Append tokens up to the one that ends the answer; returns whether one does."""
        if self.matcher is not None or self._texts or not self._stops.isdisjoint(tokens):
            return any(map(self.take, tokens, logprobs, versions))
        room = self.remaining
        self.tokens += tokens[:room]
        self.logprobs += logprobs[:room]
        self.versions += versions[:room]
        if len(tokens) < room:
            return False
        self.reason = "length"
        return True

    def add_top_logprobs(self, steps: Sequence[tuple[list[int], list[float]]]) -> None:
        """Keep the most probable tokens of the newest steps, as far as there are tokens."""
        if self.top_logprobs is None:
            return
        most = self.request.sampling.top_logprobs
        for tokens, logprobs in steps[: len(self.tokens) - len(self.top_logprobs)]:
            pairs = zip(tokens[:most], logprobs[:most], strict=True)
            # JSON knows no infinity, and what cannot be drawn is no alternative.
            self.top_logprobs.append([pair for pair in pairs if pair[1] > -math.inf])

    @property
    def looks_for(self) -> tuple[frozenset[int], bool]:
        """Its stop tokens, and whether text can end it."""
        return self._stops, bool(self._texts)

    def completion(self, version: int) -> Completion:
        """The answer; ``version`` is that of an answer without tokens."""
        changed = len(set(self.versions)) > 1
        return Completion(
            self.tokens,
            self.logprobs,
            self.reason or "length",
            self.versions[0] if self.versions else version,
            self.versions if changed else None,
            self.prompt_logprobs,
            top_logprobs=self.top_logprobs,
        )

    def _text_ends(self) -> bool:
        """Whether the newest token completes a stop string in the text of the answer."""
        if len(self.tokens) < self._min:
            return False
        longest = max(map(len, self._texts))
        size = longest + _MARGIN
        text = self.decode(self.tokens[-size:])
        while len(text) < longest + 1 and size < len(self.tokens):
            size *= 2
            text = self.decode(self.tokens[-size:])
        if not any(stop in text for stop in self._texts):
            return False
        # A tokenizer may decode the middle of an answer differently, and before the shortest
        # length strings do not count.
        whole, before = self.decode(self.tokens), self.decode(self.tokens[:-1])
        return any(whole.count(stop) > before.count(stop) for stop in self._texts)
