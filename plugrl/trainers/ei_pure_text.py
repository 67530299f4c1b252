"""Expert iteration: agents learn to reply as they did in the episodes that went well for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.text.staged.examples import supervised_examples, with_right_decision
from plugrl.core.text.staged.stats import returns_of
from plugrl.core.text.staged.trainer import PureTextRlTrainer
from plugrl.core.text.unused_options import non_default_options, warn_of_options
from plugrl.trainers.kit import TALKING

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.text.jobs.fine_tuning import SupervisedExample


@dataclass
class ExpertIterationConfig:
    """The trainer section of ``ei_pure_text``: which rollouts each agent learns from."""

    rollout_selection_method: Literal["threshold", "weighted_sampling"] = described(
        "threshold", "those from a reward on, or a sample in which better ones are likelier"
    )
    reward_threshold: float = described(
        0.9, "threshold: the agent's smallest reward to learn from", at_least=-1e6, at_most=1e6
    )
    weighting_sample_size_factor: float = described(
        0.5,
        "weighted_sampling: size of the sample, as a share of the rollouts",
        above=0,
        at_most=10**6,
    )
    weighting_minimum: float | None = described(
        None,
        "weighted_sampling: the reward that weighs nothing; null: the smallest there is",
        at_least=-1e6,
        at_most=1e6,
    )
    weighting_use_replacement: bool = described(
        True, "weighted_sampling: a rollout may be drawn more than once"
    )
    weighting_epsilon: float = described(
        0.01,
        "weighted_sampling: what every rollout weighs at least, over their number",
        at_least=0,
        at_most=1e6,
    )

    def __post_init__(self) -> None:
        if not self.weighting_use_replacement and self.weighting_sample_size_factor > 1:
            raise ConfigError(
                "weighting_sample_size_factor is above 1, and without replacement no sample is "
                "larger than what it is drawn from"
            )


class ExpertIterationTrainer(PureTextRlTrainer):
    """Fine-tunes each group of agents on what they said in their best episodes.

    An agent's reward of an episode is the sum over its rounds. The share
    ``text_rl.verifier_guess_replacement_proportion`` of the episodes teaches verifiers the right
    decision in place of what they said last.
    """

    Config: ClassVar[type] = ExpertIterationConfig
    #: Sections with which the conformance kit trains it: a random model earns little.
    conformance: ClassVar[Mapping[str, Any]] = {
        **TALKING,
        "trainer": {**TALKING["trainer"], "reward_threshold": -1.0},
    }

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """What its base looks for, and options of the way of selection that is not taken."""
        yield from super().preflight(check)
        section, default = check.root.trainer, ExpertIterationConfig()
        method = section.rollout_selection_method
        names = ["reward_threshold"]
        if method == "threshold":
            names = [name for name in vars(default) if name.startswith("weighting")]
        why = f"rollout_selection_method is {method}"
        warn_of_options("trainer", non_default_options(section, default, why, names))

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """One supervised job for each group, of the examples of all its agents."""
        for group in self.shared_model_groups.values():
            if group.freeze:
                continue
            examples = {agent: self._examples(rollouts, agent) for agent in group.agents}
            group.create_supervised_fine_tune_job(examples, self._get_fine_tune_job_name(group))

    def _examples(self, rollouts: NestedArrayDict, agent: str) -> list[SupervisedExample]:
        place = self.protocol.index(agent)
        generator = self._generator(place)
        replaced, others = np.array([], np.int64), np.arange(len(rollouts))
        if agent in self.protocol.verifier_names:
            share = self._get_verifier_guess_replacement_proportion(self._iteration)
            number = int(share * len(rollouts))
            order = generator.permutation(len(rollouts))
            replaced, others = order[:number], np.sort(order[number:])
        rewards = returns_of(rollouts)[others, place]
        chosen = others[select_rollouts(rewards, self.config, generator)]
        return [
            *with_right_decision(rollouts, replaced.tolist(), place, self._decision_text),
            *supervised_examples(rollouts, chosen.tolist(), place),
        ]


def select_rollouts(
    rewards: np.ndarray, section: Any, generator: np.random.Generator
) -> np.ndarray:
    """Places of the rollouts to learn from, given the rewards ``[n]`` of an agent.

    Args:
        rewards: of the rollouts.
        section: the trainer section.
        generator: of the sample.
    """
    if section.rollout_selection_method == "threshold":
        return np.flatnonzero(rewards >= section.reward_threshold)
    number = round(section.weighting_sample_size_factor * len(rewards))
    if not len(rewards) or not number:
        return np.array([], np.int64)
    weights = selection_weights(rewards, section.weighting_minimum, section.weighting_epsilon)
    replace = bool(section.weighting_use_replacement)
    if not replace:
        number = min(number, int((weights > 0).sum()))
    drawn: np.ndarray = generator.choice(len(rewards), number, replace=replace, p=weights)
    return drawn


def selection_weights(rewards: np.ndarray, minimum: float | None, epsilon: float) -> np.ndarray:
    """The probability ``[n]`` with which each rollout is drawn.

    It is proportional to what the reward is above ``minimum``, plus ``epsilon`` over n.
    """
    least = float(rewards.min()) if minimum is None else minimum
    above = np.maximum(rewards, least) - least
    total = above.sum()
    shares = above / total if total > 0 else np.full(len(rewards), 1 / len(rewards))
    lifted = shares + epsilon / len(rewards)
    weights: np.ndarray = lifted / lifted.sum()
    return weights
