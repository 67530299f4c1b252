"""The contract of environments of red-teaming.

Run it with ``--plugrl-dialogue-environment NAME``, or subclass
:class:`DialogueEnvironmentContract` with an attribute ``plugrl_dialogue_environment``. An
environment gives its section as ``conformance["config"]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.environment import Environment
from plugrl.core.text.dialogue.scorer import Score, Scorer
from plugrl.core.text.dialogue.tree import RolloutNode, RolloutTree
from plugrl.testing.contract import ComponentContract
from plugrl.testing.red_team import PROMPTS, LetterScorer, make_system

SEEDS = (0, 1, 5)


class _Refuses(Scorer):
    """Has a score for no dialogue."""

    def score(self, dialogues: Sequence[Dialogue]) -> list[Score]:
        return [Score(failure="the kit's scorer fails here") for _ in dialogues]


class DialogueEnvironmentContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_dialogue_environment``."""

    kind = "dialogue_environment"

    @pytest.fixture
    def grow(self, cls: Any, section: Any) -> Callable[..., Environment]:
        """An environment with small models and a scorer."""

        def grown(scorer: Scorer | None = None, prompts: Sequence[Any] = PROMPTS) -> Environment:
            made: Environment = cls(
                section,
                system=make_system(),
                prompts=prompts,
                scorer=scorer or LetterScorer(),
            )
            return made

        return grown

    def test_each_seed_has_its_tree(self, grow: Callable[..., Environment]) -> None:
        environment = grow()
        trees = environment.rollouts(SEEDS)
        assert [tree.seed for tree in trees] == list(SEEDS)
        for tree, seed in zip(trees, SEEDS, strict=True):
            assert tree.context == environment.context_of(seed)
            assert tree.children, "nothing was said"

    def test_exchanges_follow_their_dialogues(self, grow: Callable[..., Environment]) -> None:
        for tree in grow().rollouts(SEEDS):
            for path in tree.paths():
                context = tree.context
                for node in path:
                    assert node.context.prompt == context.prompt
                    assert node.context.turns == context.turns, "a context is not what was said"
                    context = node.dialogue

    def test_exchanges_have_tokens_scores_and_rewards(
        self, grow: Callable[..., Environment]
    ) -> None:
        for node in _nodes(grow().rollouts(SEEDS)):
            assert node.valid, node.failure
            assert len(node.probe_tokens) == len(node.probe_logprobs) > 0
            assert node.prompt_tokens
            assert math.isfinite(node.reward)
            assert node.reward == pytest.approx(sum(node.rewards.values()))
            assert node.score == LetterScorer().score([node.dialogue])[0]
            node.trajectory().check()

    def test_rewards_differ(self, grow: Callable[..., Environment]) -> None:
        assert len({node.reward for node in _nodes(grow().rollouts(SEEDS))}) > 1

    def test_equal_seeds_give_equal_trees(self, grow: Callable[..., Environment]) -> None:
        environment = grow()
        first = environment.rollouts(SEEDS)
        environment.rollouts((7,))
        assert environment.rollouts(SEEDS) == first == grow().rollouts(SEEDS)

    def test_what_is_said_depends_on_the_seed_of_the_tree_alone(
        self, grow: Callable[..., Environment]
    ) -> None:
        environment = grow()
        together = environment.rollouts(SEEDS)
        alone = [environment.rollouts([seed])[0] for seed in SEEDS]
        for one, other in zip(together, alone, strict=True):
            assert [(n.probe, n.response) for n in one.nodes()] == [
                (n.probe, n.response) for n in other.nodes()
            ]

    def test_evaluations_are_one_dialogue_a_prompt(self, grow: Callable[..., Environment]) -> None:
        trees = grow().eval_rollouts(PROMPTS, [3] * len(PROMPTS))
        assert [tree.context.prompt for tree in trees] == [row["prompt"] for row in PROMPTS]
        assert all(len(list(tree.paths())) == 1 for tree in trees)

    def test_exchanges_without_a_score_have_failed(self, grow: Callable[..., Environment]) -> None:
        for node in _nodes(grow(_Refuses()).rollouts(SEEDS)):
            assert not node.valid
            assert node.reward == 0.0

    def test_what_it_cannot_do_is_refused(self, grow: Callable[..., Environment]) -> None:
        with pytest.raises(ConfigError):
            grow().context_of(-1)
        with pytest.raises(ConfigError):
            grow(prompts=()).rollouts([0])


def _nodes(trees: Sequence[RolloutTree]) -> list[RolloutNode]:
    found = [node for tree in trees for node in tree.nodes()]
    assert found, "nothing was said"
    return found


class TestDialogueEnvironment(DialogueEnvironmentContract):
    """The contract for every ``--plugrl-dialogue-environment``."""

    __test__ = True
