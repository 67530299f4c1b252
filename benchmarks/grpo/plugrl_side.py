"""plugrl's side of the benchmark: an ordinary configuration, given to ``plugrl.train``."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task

import plugrl
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

GIVEN = task.arguments()
STEPS = task.Steps(GIVEN)
LENGTHS = task.lengths(GIVEN)


@plugrl.register_trainer("timed_grpo")
class TimedGrpo(SelfHostedGrpoTrainer):
    """Notes when a step ends, in the thread that makes it; trackers have threads of their own."""

    def _end_step(self, step: int, metrics: dict[str, float]) -> None:
        super()._end_step(step, metrics)
        if step > 0:
            phases = {n: v for n, v in metrics.items() if n.startswith("time/")}
            STEPS.end(metrics["rollout/response_length"], phases)


@plugrl.register_evaluator("character_codes")
class CharacterCodes(plugrl.Evaluator):
    """The reward that both sides use."""

    def evaluate(
        self, data: Mapping[str, Any], evaluation_target: plugrl.BaseEvaluationTarget
    ) -> plugrl.EvaluationRunResult:
        return plugrl.EvaluationRunResult(reward=task.reward(evaluation_target.final_answer))


@functools.lru_cache
def full_length(sampling: Any, limit: int) -> Any:
    """``sampling``, for answers of ``limit`` tokens."""
    return dataclasses.replace(sampling, min_new_tokens=limit, max_new_tokens=limit)


@plugrl.register_rollout_worker("full_length")
class FullLengthWorker(SingleTurnRolloutWorker):
    """Answers of exactly as many tokens as TRL's side has."""

    async def rollout(self, task: Any) -> plugrl.Trajectory:
        task.sampling = full_length(task.sampling, next(LENGTHS))
        return await super().rollout(task)


def configuration(given: Any) -> dict[str, Any]:
    """The experiment; what is not named keeps its default: guards, parity probe, run folder."""
    on_device = given.device == "cuda"
    wish = {"true": True, "false": False}.get(given.compile, "auto")
    adapter = {"adapter": {"r": given.lora, "alpha": given.lora}} if given.lora else {}
    return {
        "experiment_name": "grpo_cpu",
        "models": {
            "policy": {
                "source": {
                    "path": str(given.folder / "model"),
                    "dtype": "bfloat16" if on_device else "float32",
                },
                "inference": {"compile": wish},
                **adapter,
                "train": {
                    "type": "local",
                    "learning_rate": task.LEARNING_RATE,
                    "weight_decay": 0.0,
                    "compile": wish,
                },
            }
        },
        "data": {
            "data_files": [str(given.folder / "prompts.jsonl")],
            "batch_size": given.prompts,
            "rollout_repeat_n": given.samples,
        },
        "rollout_worker": {
            "type": "full_length",
            "max_response_length": given.tokens,
            "evaluator": "character_codes",
        },
        "validate": {"enabled": False},
        # Random weights of 1.7 billion parameters and more round by 0.03 in bfloat16.
        "weight": {"parity_tolerance": 0.1 if on_device else None},
        "trainer": {
            "type": "timed_grpo",
            "total_train_steps": given.warm_up + given.steps,
        },
        "settings": {
            "runs_folder": str(given.folder / "runs"),
            "torch_threads": given.threads,
            "device": given.device,
        },
    }


if __name__ == "__main__":
    plugrl.train(configuration(GIVEN))
    STEPS.report()
