"""Every setting whose value is the name of something is looked up before the run."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare

TASK = {
    "scenario": {
        "type": "arithmetic",
        "digits": 1,
        "validation": 5,
        "development": 5,
        "demonstrations": 6,
    }
}
JUDGE = {"evaluator": {"type": "llm_judge", "model": "polcy"}}

#: Field, the sections that misspell a name, where the fault is, and what is meant.
TEXT: list[tuple[str, dict[str, Any], str, str]] = [
    ("DataConfig.prompt_key", {"data": {"prompt_key": "promt"}}, "data.prompt_key", "prompt"),
    ("DataConfig.answer_key", {"data": {"answer_key": "anser"}}, "data.answer_key", "answer"),
    ("DataConfig.keep", {"data": {"keep": {"lable": [0, 1]}}}, "data.keep.lable", "label"),
    (
        "CurriculumConfig.column",
        {"data": {"curriculum": {"column": "lable"}}},
        "data.curriculum.column",
        "label",
    ),
    (
        "ValidateConfig.data_source_key",
        {"validate": {"data_source_key": "lable"}},
        "validate.data_source_key",
        "label",
    ),
    (
        "TrajectoryPoolConfig.key_list",
        {"trajectory_pool": {"key_list": ["lable"]}},
        "trajectory_pool.key_list[0]",
        "label",
    ),
    (
        "RolloutWorkerConfig.model",
        {"rollout_worker": {"model": "polcy"}},
        "rollout_worker.model",
        "policy",
    ),
    ("LlmJudgeConfig.model", {"rollout_worker": JUDGE}, "rollout_worker.evaluator.model", "policy"),
    (
        "ExactMatchConfig.answer_key",
        {"rollout_worker": {"evaluator": {"type": "exact_match", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    (
        "MathConfig.answer_key",
        {"rollout_worker": {"evaluator": {"type": "math", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    (
        "RegexConfig.answer_key",
        {"rollout_worker": {"evaluator": {"type": "regex", "pattern": "a", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    (
        "LlmJudgeConfig.answer_key",
        {
            "rollout_worker": {
                "evaluator": {
                    "type": "llm_judge",
                    "model": "policy",
                    "answer_key": "anser",
                    "template": "{question} {answer} {reference}",
                }
            }
        },
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    (
        "LlmJudgeConfig.question_key",
        {
            "rollout_worker": {
                "evaluator": {"type": "llm_judge", "model": "policy", "question_key": "promt"}
            }
        },
        "rollout_worker.evaluator.question_key",
        "prompt",
    ),
    (
        "CodeConfig.tests_key",
        {"rollout_worker": {"evaluator": {"type": "code", "tests_key": "anser", "unsafe": True}}},
        "rollout_worker.evaluator.tests_key",
        "answer",
    ),
    (
        "KlConfig.model",
        {"trainer": {"algorithm": {"kl": {"model": "polcy", "loss": {"coefficient": 0.1}}}}},
        "trainer.algorithm.kl.model",
        "policy",
    ),
    (
        "TrajectoryTrainerConfig.stop_at",
        {"trainer": {"stop_at": {"rollout/rewrd": 1}}},
        "trainer.stop_at.rollout/rewrd",
        "rollout/reward",
    ),
    (
        "ValidateConfig.score",
        {"validate": {"score": "validation/rewrd"}},
        "validate.score",
        "validation/reward",
    ),
    (
        "ValidateConfig.pass_metric",
        {"validate": {"pass_metric": "exact_mach"}},
        "validate.pass_metric",
        "exact_match",
    ),
    (
        "SettingsConfig.deadlines",
        {"settings": {"deadlines": {"rolout": 1}}},
        "settings.deadlines.rolout",
        "rollout",
    ),
]


def faults(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    return list(caught.value.faults)


@pytest.mark.parametrize(("field", "sections", "path", "meant"), TEXT, ids=[row[0] for row in TEXT])
def test_a_misspelt_name_is_found_and_told(config, field, sections, path, meant):
    found = [fault for fault in faults(config(**sections)) if fault.startswith(f"{path} (")]
    assert found
    assert all(f"did you mean {meant}?" in fault for fault in found)
    assert not any("\n" in fault for fault in found)


@pytest.mark.parametrize(
    ("section", "key", "path"),
    [
        ("data", {"split": "trian"}, "data.split"),
        ("validate", {"data": {"splits": ["validatoin"]}}, "validate.data.splits[0]"),
    ],
)
def test_a_misspelt_split_is_found_and_told(config, section, key, path):
    tree = config(**TASK)
    tree["data"].pop("data_files")
    tree["validate"]["data"] = {}
    tree[section] |= key
    (found,) = [fault for fault in faults(tree) if fault.startswith(f"{path} (")]
    assert found.endswith(f"did you mean {'train' if section == 'data' else 'validation'}?")
