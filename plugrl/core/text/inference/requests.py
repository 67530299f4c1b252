"""A request to an engine, and its completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plugrl.core.errors import ConfigError
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.trajectory import FinishReason


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for a continuation of ``prompt_tokens``.

    ``stream`` is (seed, step, item, run, turn): it orders the requests of a lockstep round and
    seeds the request's own random numbers. ``prompt_logprobs`` asks for the log-probabilities of
    the prompt too.

    Raises:
        ConfigError: the prompt is empty, so that nothing says what the first token follows.
    """

    prompt_tokens: Sequence[int]
    sampling: SamplingParams
    stream: tuple[int, int, int, int, int]
    prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        if not len(self.prompt_tokens):
            raise ConfigError("a prompt has no tokens; at least one is needed")


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer: the sampled token ids with their log-probabilities under the sampler.

    The log-probabilities are those of the model at the request's temperature (1 when it is
    greedy), before min-p, top-k, top-p or ``min_new_tokens`` take tokens away. Penalties and a
    grammar change the distribution: it is theirs, over the tokens that the grammar allows.
    ``top_logprobs``, when asked for, has the most probable tokens of that distribution at each
    place, as (token, log-probability), the most probable first. ``version`` is the policy
    version that sampled the first token; ``versions`` has one for each token, and is given only
    when the weights changed on the way. ``prompt_logprobs``, when asked for, has the
    log-probability of each prompt token given the ones before it, 0.0 for the first.
    ``temperature`` is that of the log-probabilities; the rollout that asked fills it in.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    version: int
    versions: list[int] | None = None
    prompt_logprobs: list[float] | None = None
    temperature: float | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None

    def at(self, temperature: float) -> Completion:
        """A copy that says at which temperature the log-probabilities are taken."""
        # By hand, since dataclasses.replace takes as long as a request's other costs together.
        return type(self)(
            self.tokens,
            self.logprobs,
            self.finish_reason,
            self.version,
            self.versions,
            self.prompt_logprobs,
            temperature,
            self.top_logprobs,
        )
