"""The contract of rollout workers.

Run it with ``--plugrl-rollout-worker NAME``, or subclass :class:`RolloutWorkerContract` with an
attribute ``plugrl_rollout_worker``. A worker gives as ``conformance``: ``config``, its section;
``data``, one problem; ``reply``, a function from the text of a prompt to the answer of the model,
which has one token a letter and a chat template; and ``models``, the names that it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationRunResult,
    Evaluator,
)
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import NOT_SAMPLED, WRITTEN, Trajectory
from plugrl.testing.contract import ComponentContract
from plugrl.testing.scripts import ScriptedService

#: The version of the weights that sample.
VERSION = 3
Run = Callable[..., list[Trajectory]]


class _Judge(Evaluator):
    """Rewards long answers, or fails."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__({})
        self._fails = fails

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: BaseEvaluationTarget
    ) -> EvaluationRunResult:
        if self._fails:
            raise RuntimeError("the kit's evaluator fails here")
        return EvaluationRunResult(reward=1.0 + len(evaluation_target.final_answer) / 100)


class RolloutWorkerContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_rollout_worker``."""

    kind = "rollout_worker"
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"prompt": "ab", "answer": "a"},
        "reply": lambda prompt: prompt[-1:] + "b",
        "models": ("policy",),
    }

    @pytest.fixture
    def service(self, example: Mapping[str, Any]) -> ScriptedService:
        return ScriptedService(example["reply"], VERSION)

    @pytest.fixture
    def run(
        self,
        make: Callable[[], RolloutWorker],
        service: ScriptedService,
        example: Mapping[str, Any],
    ) -> Run:
        """Attempts a problem as a run does: several at once, in lockstep."""

        def attempt(
            rows: Sequence[Mapping[str, Any]] | None = None,
            *,
            worker: RolloutWorker | None = None,
            fails: bool = False,
            is_val: bool = False,
            length: int = 64,
        ) -> list[Trajectory]:
            worker = make() if worker is None else worker
            worker.evaluator = _Judge(fails)
            prompts = [
                Prompt(data, index, index % 2, f"group-{index // 2}", index // 2)
                for index, data in enumerate(rows or [example["data"]] * 2)
            ]
            services = dict.fromkeys(example["models"], service)
            lockstep = LockstepRollouts(worker, services, 0)
            return lockstep.collect(
                prompts, step=1, sampling=SamplingParams(max_new_tokens=length), is_val=is_val
            )

        return attempt

    def test_an_attempt_gives_valid_trajectories(
        self, run: Run, example: Mapping[str, Any]
    ) -> None:
        found = run()
        assert len(found) >= 2, "an attempt gives at least one trajectory"
        for trajectory in found:
            assert trajectory.valid, trajectory.failure
            assert any(trajectory.loss_mask), "nothing of the attempt is trained"
            assert trajectory.model in example["models"]

    def test_trajectories_belong_to_their_attempt(self, run: Run) -> None:
        for is_val in (False, True):
            found = run(is_val=is_val)
            assert {(t.group_id, t.run_id) for t in found} == {("group-0", 0), ("group-0", 1)}
            assert {t.is_val for t in found} <= {is_val}

    def test_what_is_trained_is_what_was_sampled(self, run: Run, service: ScriptedService) -> None:
        for trajectory in run():
            if trajectory.finish_reason == WRITTEN:
                continue
            pieces = _trained_pieces(trajectory)
            # Whatever is trained in a row is one answer, or the end of one that follows its prompt.
            for start, tokens in pieces:
                assert any(
                    prompt == trajectory.tokens[:start] and completion.tokens == tokens
                    for prompt, completion in service.given
                ), f"tokens {start} to {start + len(tokens)} are no answer to the tokens before"

    def test_log_probabilities_and_versions_are_those_of_the_sampler(
        self, run: Run, service: ScriptedService
    ) -> None:
        for trajectory in run():
            if trajectory.finish_reason == WRITTEN:
                continue
            assert trajectory.logprobs is not None
            assert trajectory.versions is not None
            for start, tokens in _trained_pieces(trajectory):
                end = start + len(tokens)
                known = [c.logprobs for p, c in service.given if p == trajectory.tokens[:start]]
                assert trajectory.logprobs[start:end] in known
                assert trajectory.versions[start:end] == [VERSION] * len(tokens)
            for bit, version in zip(trajectory.loss_mask, trajectory.versions, strict=True):
                assert bit or version in (NOT_SAMPLED, VERSION)

    def test_an_attempt_repeats(self, run: Run) -> None:
        assert _numbers(run()) == _numbers(run())

    def test_attempts_do_not_mix(
        self, run: Run, make: Callable[[], RolloutWorker], example: Mapping[str, Any]
    ) -> None:
        # A worker is used for all attempts of a run, many at once.
        alone = _numbers(run([example["data"]]))
        worker = make()
        together = run([example["data"]] * 4, worker=worker)
        first = [t for t in together if (t.group_id, t.run_id) == ("group-0", 0)]
        assert _numbers(first) == alone
        assert _numbers(run([example["data"]], worker=worker)) == alone

    def test_an_attempt_without_a_judgement_is_invalid(self, run: Run) -> None:
        found = run(fails=True)
        asked = [t for t in found if t.finish_reason != WRITTEN]
        assert not any(t.valid and t.reward for t in asked), "a reward that nobody gave"
        if any(t.reward for t in run()):
            assert not any(t.valid for t in asked), "a failed judgement counts as a reward of 0"

    def test_answers_may_be_cut_off(self, run: Run) -> None:
        for trajectory in run(length=1):
            assert trajectory.valid, trajectory.failure


def _trained_pieces(trajectory: Trajectory) -> list[tuple[int, list[int]]]:
    """Where each row of trained tokens begins, and its tokens."""
    pieces: list[tuple[int, list[int]]] = []
    for place, (token, bit) in enumerate(zip(trajectory.tokens, trajectory.loss_mask, strict=True)):
        if not bit:
            continue
        if pieces and pieces[-1][0] + len(pieces[-1][1]) == place:
            pieces[-1][1].append(token)
        else:
            pieces.append((place, [token]))
    return pieces


def _numbers(trajectories: Sequence[Trajectory]) -> list[tuple[Any, ...]]:
    return [
        (t.tokens, t.loss_mask, t.logprobs, t.versions, t.reward, t.valid, t.metrics)
        for t in trajectories
    ]


class TestRolloutWorker(RolloutWorkerContract):
    """The contract for every ``--plugrl-rollout-worker``."""

    __test__ = True
