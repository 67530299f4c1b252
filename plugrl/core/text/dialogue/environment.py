"""``Environment``: grows rollout trees; ``DialogueEnvironment`` does so level by level."""

from __future__ import annotations

import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError, ContractError, UsageError
from plugrl.core.text.dialogue.configuration import DialogueConfig
from plugrl.core.text.dialogue.contracts import (
    check_scores,
    validate_children,
    validate_dialogue,
    validate_rewards,
)
from plugrl.core.text.dialogue.dialogue import Dialogue, opening
from plugrl.core.text.dialogue.evaluation.metrics import novelty
from plugrl.core.text.dialogue.scorer import Scorer, score_dialogues
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
from plugrl.core.wording import did_you_mean

if TYPE_CHECKING:
    from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
    from plugrl.core.text.dialogue.system import System

logger = logging.getLogger(__name__)
_TESTER, _TARGET = 0, 1


class Environment(Component, ABC):
    """Grows rollout trees from prompts with a system and a scorer.

    Args:
        config: its section.
        system: the models.
        prompts: what dialogues are about: texts, or rows with the columns that the section names.
        scorer: how far a dialogue went wrong.
    """

    #: Whether the log-probabilities of probes under the baseline are wanted for more than rewards.
    _compares = True

    def __init__(
        self,
        config: Any = None,
        *,
        system: System | None = None,
        prompts: Sequence[Any] = (),
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__(config)
        self._system = system
        self._scorer = scorer
        self._contexts = self.contexts(prompts)

    def bind(self, system: System, prompts: Sequence[Any], scorer: Scorer | None) -> None:
        """Take what the constructor may leave out; called once by a trainer."""
        self._system, self._scorer = system, scorer
        self._contexts = self.contexts(prompts)

    @property
    def system(self) -> System:
        """The tester, the target and the baseline that dialogues are sampled from.

        Raises:
            UsageError: nobody gave any.
        """
        if self._system is None:
            raise UsageError(f"{type(self).__name__} has no system; give it system=...")
        return self._system

    @property
    def scorer(self) -> Scorer:
        """The scorer, which says how far a dialogue went wrong.

        Raises:
            UsageError: nobody gave one.
        """
        if self._scorer is None:
            raise UsageError(f"{type(self).__name__} has no scorer; give it scorer=...")
        return self._scorer

    @property
    def threshold(self) -> float:
        """An exchange with at least this score is a success."""
        return float(self.config.get("threshold", 0.5))

    def contexts(self, prompts: Sequence[Any]) -> list[Dialogue]:
        """Dialogues that have not begun, of texts or rows.

        Raises:
            ConfigError: a prompt is neither, or has no such column; or they are one text.
        """
        if isinstance(prompts, str):
            raise ConfigError(
                f"prompts are the text {prompts!r:.40}; give a list, [{prompts!r:.40}]"
            )
        keys = {
            name: self.config[name]
            for name in ("prompt_key", "category_key")
            if name in self.config
        }
        return [opening(prompt, **keys) for prompt in prompts]

    def context_of(self, seed: int) -> Dialogue:
        """The prompt that ``seed`` picks.

        Raises:
            ConfigError: there are no prompts, or the seed is negative.
        """
        if not self._contexts:
            raise ConfigError(f"{type(self).__name__} has no prompts; give it at least one")
        if seed < 0:
            raise ConfigError(f"seed {seed} is negative; seeds are 0 and above")
        return self._contexts[seed % len(self._contexts)]

    def seeds(self, root: np.random.SeedSequence, count: int) -> list[int]:
        """Seeds of ``count`` trees, of different prompts as long as there are enough."""
        size = max(len(self._contexts), 1)
        draws = np.random.default_rng(root)
        found: list[int] = []
        while len(found) < count:
            picked = draws.permutation(size)[: count - len(found)]
            found += [int(draws.integers(2**31)) * size + int(index) for index in picked]
        return found

    def rollout(self, seed: int | None = None) -> RolloutTree:
        """One tree; the same seed, 0 included, gives the same tree. None: any."""
        return self.rollouts([secrets.randbits(31) if seed is None else seed])[0]

    @abstractmethod
    def rollouts(self, seeds: Sequence[int]) -> list[RolloutTree]:
        """One tree a seed, grown together."""

    @abstractmethod
    def eval_rollouts(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[RolloutTree]:
        """One dialogue, a tree of width 1, for each prompt with its seed."""

    def check(self, algorithm: HarnessAlgorithm) -> None:
        """Refuse an algorithm that cannot learn from such trees.

        Raises:
            ConfigError: they are too narrow for it, or have no baseline.
        """
        fault = incompatibility(algorithm, self.config)
        if fault is not None:
            raise ConfigError(fault)
        self._compares = algorithm.needs_baseline


def incompatibility(algorithm: Any, section: Any) -> str | None:
    """Why an algorithm, a class or an instance, cannot learn from such trees; None: it can."""
    name = getattr(algorithm, "__name__", type(algorithm).__name__)
    width = section.get("tree_width")
    if width is not None and width < algorithm.least_width:
        return (
            f"tree_width is {width}, and {name} needs at least {algorithm.least_width}, because "
            f"{algorithm.least_width_reason}"
        )
    if algorithm.needs_baseline and "baseline" in section and section.baseline is None:
        return (
            f"baseline is missing, and {name} needs it as its reference; write baseline: NAME, a "
            "frozen model with the weights that the tester begins with"
        )
    return None


@dataclass(slots=True)
class Leaf:
    """A dialogue that goes on: where its exchanges are put, and what seeds them."""

    seed: int
    context: Dialogue
    children: list[RolloutNode]
    number: int = 0


class DialogueEnvironment(Environment):
    """Dialogues of a tester with a target, all trees at once, turn by turn.

    A turn is one list of requests to the tester and one to the target, whatever the width of the
    trees and their number; the baseline is asked once at the end, the scorer too. Override
    :meth:`expand`, :meth:`advance`, :meth:`score` or :meth:`reward` to change one of these.
    """

    Config: ClassVar[type] = DialogueConfig
    _warned = False

    def rollouts(self, seeds: Sequence[int]) -> list[RolloutTree]:
        """One tree a seed. Equal lists of seeds give equal trees.

        What is said in a tree depends on its own seed alone; a bonus for diversity also on the
        trees that it is grown with.
        """
        trees = [RolloutTree(self.context_of(seed), seed=seed) for seed in seeds]
        self.grow(trees, self.config.tree_width)
        return trees

    def eval_rollouts(self, prompts: Sequence[Any], seeds: Sequence[int]) -> list[RolloutTree]:
        """One dialogue for each prompt with its seed."""
        pairs = zip(self.contexts(prompts), seeds, strict=True)
        trees = [RolloutTree(context, seed=seed) for context, seed in pairs]
        self.grow(trees, 1)
        return trees

    def grow(self, trees: Sequence[RolloutTree], width: int) -> None:
        """Fill trees that have nothing but a context."""
        leaves = [Leaf(tree.seed, tree.context, tree.children) for tree in trees]
        for _ in range(self.config.tree_depth):
            grown = validate_children(self, self.expand(leaves, width), len(leaves))
            leaves = self._next(leaves, grown)
        nodes = [node for tree in trees for node in tree.nodes()]
        self._score_baseline([node for node in nodes if node.valid])
        took_place = [node for node in nodes if node.valid]
        own: Any = self
        check_scores(self, own.score(took_place), took_place)
        self._reward([node for node in nodes if node.valid])

    def expand(self, leaves: Sequence[Leaf], width: int) -> list[list[RolloutNode]]:
        """``width`` exchanges after each leaf: one list of requests to each of the two models."""
        system = self.system
        asked = [(leaf, leaf.number * width + way) for leaf in leaves for way in range(width)]
        probes = system.probes(
            [leaf.context for leaf, _ in asked],
            [(leaf.seed, _TESTER, leaf.context.turns, number, 0) for leaf, number in asked],
        )
        nodes = [
            RolloutNode(
                leaf.context,
                said.text,
                prompt_tokens=said.prompt_tokens,
                probe_tokens=said.tokens,
                probe_logprobs=said.logprobs,
                temperature=said.temperature,
                version=said.version,
                finish_reason=said.finish_reason,
                failure=said.failure,
            )
            for (leaf, _), said in zip(asked, probes, strict=True)
        ]
        # Silence is an answer of the tester, and there is nothing to answer to.
        heard = [number for number, node in enumerate(nodes) if node.valid and node.probe]
        responses = system.responses(
            [nodes[i].context.with_message("tester", nodes[i].probe) for i in heard],
            [(asked[i][0].seed, _TARGET, nodes[i].context.turns, asked[i][1], 0) for i in heard],
        )
        for i, said in zip(heard, responses, strict=True):
            nodes[i].response, nodes[i].failure = said.text, said.failure
        return [nodes[i : i + width] for i in range(0, len(nodes), width)]

    def _next(self, leaves: Sequence[Leaf], grown: Sequence[Sequence[RolloutNode]]) -> list[Leaf]:
        """Hang exchanges below their leaves; those that took place are the next leaves."""
        following = []
        for leaf, nodes in zip(leaves, grown, strict=True):
            leaf.children.extend(nodes)
            for way, node in enumerate(nodes):
                if node.valid:
                    after = self.advance(node.context, node.probe, node.response)
                    context = validate_dialogue(self, after)
                    number = leaf.number * len(nodes) + way
                    following.append(Leaf(leaf.seed, context, node.children, number))
        return following

    def advance(self, context: Dialogue, probe: str, response: str) -> Dialogue:
        """The dialogue that goes on after an exchange."""
        return context.with_message("tester", probe).with_message("target", response)

    def score(self, nodes: Sequence[RolloutNode]) -> None:
        """Give each exchange the scorer's answer; one without a score has failed."""
        scores = score_dialogues(self.scorer, [node.dialogue for node in nodes])
        for node, score in zip(nodes, scores, strict=True):
            node.score, node.failure = score, score.failure

    def reward(self, nodes: Sequence[RolloutNode]) -> list[dict[str, float]]:
        """What each exchange of one turn is worth, as named parts whose sum is the reward."""
        weights = self.config.reward
        self._warn_of_categories(nodes)
        new = novelty([node.probe for node in nodes]) if weights.diversity else [0.0] * len(nodes)
        found = []
        for node, novel in zip(nodes, new, strict=True):
            parts = {"score": weights.score * node.score.value}
            if weights.categories:
                del parts["score"]
                for name, weight in weights.categories.items():
                    parts[name] = weight * node.score.categories.get(name, 0.0)
            if weights.fluency:
                parts["fluency"] = weights.fluency * fluency(node)
            if weights.diversity:
                parts["diversity"] = weights.diversity * novel
            found.append(parts)
        return found

    def _warn_of_categories(self, nodes: Sequence[RolloutNode]) -> None:
        """Say once that a weight is of a category which no score has, such as a misspelt one."""
        has = {name for node in nodes for name in node.score.categories}
        missing = [name for name in self.config.reward.categories if name not in has]
        if not missing or not nodes or self._warned:
            return
        self._warned = True
        close = did_you_mean(missing[0], sorted(has), 1)
        logger.warning(
            "red_team.reward.categories weighs %r, and no score of %d exchanges has it; %s has: "
            "%s%s",
            missing[0],
            len(nodes),
            type(self.scorer).__name__,
            ", ".join(sorted(has)) or "none",
            close,
        )

    def _reward(self, nodes: Sequence[RolloutNode]) -> None:
        for turn in sorted({node.turn for node in nodes}):
            level = [node for node in nodes if node.valid and node.turn == turn]
            answer = validate_rewards(self, self.reward(level), len(level))
            for node, parts in zip(level, answer, strict=True):
                node.rewards = parts
                node.reward = sum(parts.values())

    def _score_baseline(self, nodes: Sequence[RolloutNode]) -> None:
        wanted = self._compares or self.config.reward.fluency
        found = self.system.baseline_log_probs(nodes) if nodes and wanted else None
        if found is not None:
            for node, own in zip(nodes, found, strict=True):
                node.baseline_logprobs = own


def fluency(node: RolloutNode) -> float:
    """The probability of a probe's token under the baseline, their geometric mean: 0 to 1.

    It does not shrink with the length of the probe, as the probability of the whole would: of 32
    tokens at 3 nats each it is exp(-3), not exp(-96). A probe without tokens has 0.

    Raises:
        ContractError: nobody scored the probe.
    """
    if node.baseline_logprobs is None:
        raise ContractError(
            "the fluency of a probe needs a baseline; name one, or set its weight 0"
        )
    return math.exp(fmean(node.baseline_logprobs)) if node.baseline_logprobs else 0.0
