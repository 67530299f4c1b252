"""What rollouts have cost in requests, tokens and money, and where that must end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    from plugrl.core.text.inference.requests import Completion
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.rollout.task import Ask


class LimitReachedError(RunError):
    """A limit of ``text_rl`` is reached; the trainer ends the run cleanly."""


@dataclass(slots=True)
class Usage:
    """Requests that were sent, and the tokens of their prompts and answers."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        """All tokens."""
        return self.input_tokens + self.output_tokens

    def add(self, other: Self) -> None:
        """Add what something else has cost."""
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost

    def state_dict(self) -> dict[str, Any]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class Meter:
    """Counts what requests cost, and refuses those that a limit excludes.

    Args:
        section: ``text_rl``.
    """

    def __init__(self, section: Any) -> None:
        self._section = section
        self.total = Usage()
        #: The limit that a request was refused for; None: none was.
        self.reached: str | None = None

    def fault(self) -> str | None:
        """The limit that is reached; None: there is room for a request."""
        section, total = self._section, self.total
        limits = {
            "max_requests": (section.max_requests, total.requests),
            "max_tokens": (section.max_tokens, total.tokens),
            "max_cost": (section.max_cost, total.cost),
        }
        for name, (limit, spent) in limits.items():
            if limit is not None and spent >= limit:
                return f"text_rl.{name}={limit:g} is reached ({spent:g})"
        return None

    def count_usage(self, ask: Ask, own: Usage) -> Ask:
        """``ask`` that counts, in ``own`` too.

        A request that is on its way counts as one; its tokens count when they are known.
        """

        async def counted_ask(
            model: str, tokens: Sequence[int], sampling: SamplingParams | None = None, /
        ) -> Completion:
            self.reached = self.fault()
            if self.reached is not None:
                raise LimitReachedError(self.reached)
            self._spend(Usage(1, len(tokens), 0, self._price(model, len(tokens), 0)), own)
            answer = await ask(model, tokens, sampling)
            sampled = len(answer.tokens)
            self._spend(Usage(0, 0, sampled, self._price(model, 0, sampled)), own)
            return answer

        return counted_ask

    def _spend(self, usage: Usage, own: Usage) -> None:
        self.total.add(usage)
        own.add(usage)

    def _price(self, model: str, asked: int, sampled: int) -> float:
        price = self._section.prices.get(model)
        if price is None:
            return 0.0
        return float((asked * price.input + sampled * price.output) / 1e6)

    def metrics(self) -> dict[str, float]:
        """What has been spent so far."""
        total = self.total
        numbers = {
            "spent/requests": float(total.requests),
            "spent/tokens": float(total.tokens),
        }
        if self._section.prices:
            numbers["spent/cost"] = total.cost
        return numbers

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on counting from what :meth:`Usage.state_dict` of the total gave."""
        self.total = Usage(**state)
