"""``RolloutTree``: the dialogues about one prompt, with several probes at each turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score
from plugrl.core.text.trajectory import NOT_SAMPLED, FinishReason, Trajectory


@dataclass
class RolloutNode:
    """One exchange: a probe of the tester, the target's response, and what they are worth.

    Attributes:
        context: the dialogue before.
        probe: what the tester said.
        response: what the target answered.
        reward: of this exchange alone; later ones have their own.
        children: what was said next, one way or another.
        prompt_tokens: the tokens after which the probe was sampled.
        probe_tokens: the probe as it was sampled, end token included.
        probe_logprobs: their log-probabilities under the tester as it was.
        baseline_logprobs: the same under the baseline; None: there is none.
        temperature: of the distributions that both belong to.
        version: of the tester that sampled it.
        finish_reason: why the probe ended.
        score: what the scorer said.
        rewards: the parts that the reward is the sum of, by name.
        failure: why the exchange counts for nothing, such as a target that did not answer.
    """

    context: Dialogue
    probe: str
    response: str = ""
    reward: float = 0.0
    children: list[RolloutNode] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    probe_tokens: list[int] = field(default_factory=list)
    probe_logprobs: list[float] = field(default_factory=list)
    baseline_logprobs: list[float] | None = None
    temperature: float = 1.0
    version: int = 0
    finish_reason: FinishReason = "stop"
    score: Score = field(default_factory=Score)
    rewards: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def valid(self) -> bool:
        """Whether the exchange took place and was scored."""
        return not self.failure

    @property
    def turn(self) -> int:
        """Which exchange of its dialogue it is, from 1 on."""
        return self.context.turns + 1

    @property
    def dialogue(self) -> Dialogue:
        """The dialogue with this exchange."""
        return self.context.with_message("tester", self.probe).with_message("target", self.response)

    def trajectory(self, model: str = "tester", **extra_fields: Any) -> Trajectory:
        """The prompt and the probe as the tokens that a loss reads; the probe alone is trained."""
        asked = len(self.prompt_tokens)
        sampled = len(self.probe_tokens)
        return Trajectory(
            tokens=[*self.prompt_tokens, *self.probe_tokens],
            loss_mask=[0] * asked + [1] * sampled,
            reward=self.reward,
            logprobs=[0.0] * asked + list(self.probe_logprobs),
            versions=[NOT_SAMPLED] * asked + [self.version] * sampled,
            model=model,
            valid=self.valid,
            failure=self.failure,
            finish_reason=self.finish_reason,
            temperature=self.temperature,
            extra_fields=extra_fields,
        )


@dataclass
class RolloutTree:
    """All dialogues that grew from one prompt.

    Attributes:
        context: the dialogue before anything was said.
        children: the first exchanges.
        seed: that it was grown with.
    """

    context: Dialogue
    children: list[RolloutNode] = field(default_factory=list)
    seed: int = 0

    def levels(self) -> Iterator[list[RolloutNode]]:
        """The exchanges of each turn, the first turn first."""
        level = self.children
        while level:
            yield level
            level = [child for node in level for child in node.children]

    def nodes(self) -> Iterator[RolloutNode]:
        """All exchanges, turn by turn."""
        for level in self.levels():
            yield from level

    def siblings(self) -> Iterator[list[RolloutNode]]:
        """The exchanges that followed one and the same dialogue, group by group, turn by turn."""
        if self.children:
            yield self.children
        for node in self.nodes():
            if node.children:
                yield node.children

    def paths(self) -> Iterator[list[RolloutNode]]:
        """Whole dialogues, each as its exchanges from the first to the last."""
        stack = [[node] for node in reversed(self.children)]
        while stack:
            path = stack.pop()
            if not path[-1].children:
                yield path
            stack.extend([*path, child] for child in reversed(path[-1].children))
