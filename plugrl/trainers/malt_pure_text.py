"""MALT (Motwani et al., 2024, arXiv:2412.01928): preferences from trees of replies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import PlugrlError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.staged.trainer import PureTextRlTrainer
from plugrl.core.text.staged.trees import preferences
from plugrl.trainers.kit import TALKING

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import HyperParameters
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict
    from plugrl.core.text.protocol.episode import Episode
    from plugrl.core.text.rollout.task import RolloutTask

#: Trees with more leaves are refused: nobody means to pay for them.
MOST_LEAVES = 4096


@dataclass
class MaltConfig:
    """The trainer section of ``malt_pure_text``."""

    num_responses_per_timestep: int = described(
        2, "replies that are sampled at each place", at_least=2, at_most=10**4
    )


class MaltTrainer(PureTextRlTrainer):
    """Samples a tree of replies to each problem, and prefers those that lead to better ends.

    Every round of every branch is played ``num_responses_per_timestep`` times. A reply is good
    when what its agent earns from there on is, on average, at least what a random episode is worth
    (``Protocol.reward_mid_point_estimate``).
    """

    Config: ClassVar[type] = MaltConfig
    #: Sections with which the conformance kit trains it.
    conformance: ClassVar[Mapping[str, Any]] = TALKING

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Settings that have no effect, and trees that are too large."""
        yield from super().preflight(check)
        section = check.root.text_rl
        if section.verifier_guess_replacement_proportion:
            yield (
                "text_rl.verifier_guess_replacement_proportion",
                "has no effect: malt_pure_text learns from comparisons; write 0",
            )
        try:
            leaves = cls.rollouts_per_attempt(check.root)
        except PlugrlError:
            # The worker says itself what is wrong with it.
            return
        if leaves is not None and leaves > MOST_LEAVES:
            replies = check.root.trainer.num_responses_per_timestep
            # Of some protocols the number of rounds is no option.
            fixed = "max_message_rounds" not in check.root.rollout_worker.protocol
            yield (
                "trainer.num_responses_per_timestep",
                f"{replies} replies in each of {round(math.log(leaves, replies))} rounds are "
                f"{leaves:,} episodes a problem, and {MOST_LEAVES:,} are possible; lower it"
                + ("" if fixed else ", or rollout_worker.protocol.max_message_rounds"),
            )

    @classmethod
    def rollouts_per_attempt(cls, root: HyperParameters) -> int | None:
        """The leaves of a tree of which no branch ends early.

        Raises:
            PlugrlError: the protocol is faulty.
        """
        if "protocol" not in root.rollout_worker:
            return None
        rounds = make_protocol(root.rollout_worker["protocol"]).max_message_rounds
        return int(root.trainer.num_responses_per_timestep**rounds)

    async def _rollouts_of(self, task: RolloutTask) -> NestedArrayDict:
        """The leaves of a problem's tree, with ``tree`` and ``node_id``."""
        count = self.config.num_responses_per_timestep
        leaves = await grow_tree(self._parts.worker.begin(task), count)
        rollouts = self._as_rollouts(task, [episode for episode, _ in leaves])
        numbers = np.full(tuple(rollouts.batch_size), -1, np.int64)
        for row, (_, path) in enumerate(leaves):
            numbers[row, : len(path)] = path
        rollouts["node_id"] = numbers
        # The turn of the problem tells the trees of all iterations apart, with the attempt.
        attempts = self.hyper_params.data.rollout_repeat_n
        rollouts["tree"] = np.full_like(numbers, task.seed[2] * attempts + task.run_id)
        return rollouts

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """One job of preferences for each group, of the comparisons of all its agents."""
        for group in self.shared_model_groups.values():
            if group.freeze:
                continue
            examples = {}
            for agent in group.agents:
                place = self.protocol.index(agent)
                middle = self.protocol.reward_mid_point_estimate(agent)
                generator = self._generator(place)
                examples[agent] = preferences(rollouts, place, middle, generator)
            group.create_dpo_fine_tune_job(examples, self._get_fine_tune_job_name(group))


async def grow_tree(root: Episode, count: int) -> list[tuple[Episode, list[int]]]:
    """The leaves below an episode that has not ended, each with its path of node numbers.

    All branches play a round at the same time. Nodes are numbered in the order of growth.
    """
    leaves: list[tuple[Episode, list[int]]] = []
    level: list[tuple[Episode, list[int]]] = [(root, [])]
    number = 0
    while level:
        children = []
        for episode, path in level:
            for _ in range(count):
                children.append((episode.fork(number), [*path, number]))
                number += 1
        await asyncio.gather(*(episode.advance() for episode, _ in children))
        leaves += [child for child in children if child[0].ended]
        level = [child for child in children if not child[0].ended]
    return leaves
