"""The contract of algorithms of red-teaming.

Run it with ``--plugrl-harness-algorithm NAME``, or subclass :class:`HarnessAlgorithmContract` with
an attribute ``plugrl_harness_algorithm``. An algorithm gives its section as
``conformance["config"]``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.tree import RolloutTree
from plugrl.testing.comparison import assert_equal_states
from plugrl.testing.contract import ComponentContract
from plugrl.testing.red_team import PROMPTS, LetterScorer, make_system

Grow = Callable[[], tuple[HarnessAlgorithm, list[RolloutTree]]]


class HarnessAlgorithmContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_harness_algorithm``."""

    kind = "harness_algorithm"

    @pytest.fixture
    def grow(self, cls: type[HarnessAlgorithm], section: Any) -> Grow:
        """An algorithm with small models, and trees that they made."""

        def grown() -> tuple[HarnessAlgorithm, list[RolloutTree]]:
            made = cls(section)
            made.system = system = make_system(values=made.needs_values)
            options = {
                "tree_width": max(cls.least_width, 3),
                "tree_depth": 2,
                **{name: system.config[name] for name in ("tester", "target", "baseline")},
            }
            environment = DialogueEnvironment(
                options, system=system, prompts=PROMPTS, scorer=LetterScorer()
            )
            environment.check(made)
            return made, environment.rollouts([0, 1, 2, 3])

        return grown

    def learn(
        self, made: HarnessAlgorithm, trees: list[RolloutTree]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        steps = [step for tree in trees for step in made.flatten(tree)]
        assert steps, "nothing is learned from trees whose rewards differ"
        return made.step(made.collate_fn(list(made.prepare(steps))))

    def test_the_loss_is_a_number_with_a_gradient(self, grow: Grow) -> None:
        made, trees = grow()
        loss, numbers = self.learn(made, trees)
        assert loss.shape == ()
        assert torch.isfinite(loss)
        for parameter in made.system.parameters():
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in made.system.parameters() if p.grad is not None]
        assert grads, "the loss does not depend on the tester"
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert sum(float(grad.abs().sum()) for grad in grads) > 0
        assert all(math.isfinite(value) for value in numbers.values())
        assert all(isinstance(name, str) for name in numbers)

    def test_equal_trees_give_equal_losses(self, grow: Grow) -> None:
        (one, first), (other, second) = grow(), grow()
        assert float(self.learn(one, first)[0].detach()) == pytest.approx(
            float(self.learn(other, second)[0].detach()), rel=1e-6
        )

    def test_a_tree_without_exchanges_has_no_steps(self, grow: Grow) -> None:
        made, trees = grow()
        assert list(made.flatten(RolloutTree(trees[0].context, seed=0))) == []

    def test_nothing_is_learned_from_exchanges_that_failed(self, grow: Grow) -> None:
        made, trees = grow()
        tree = copy.deepcopy(trees[0])
        for node in tree.nodes():
            node.failure = "the target did not answer"
        assert list(made.flatten(tree)) == []

    def test_it_leaves_trees_as_they_were(self, grow: Grow) -> None:
        made, trees = grow()
        before = copy.deepcopy(trees)
        self.learn(made, trees)
        assert trees == before

    def test_its_state_can_be_loaded(self, grow: Grow) -> None:
        made, trees = grow()
        self.learn(made, trees)
        state = copy.deepcopy(made.state_dict())
        other, _ = grow()
        other.load_state_dict(state)
        assert_equal_states(other.state_dict(), state)


class TestHarnessAlgorithm(HarnessAlgorithmContract):
    """The contract for every ``--plugrl-harness-algorithm``."""

    __test__ = True
