"""What is found out about a run of red-teaming before it begins."""

import re

import pytest
from testers import DEADLY

from plugrl import DialogueEnvironment, NoConfig
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.testing import tiny
from plugrl.trainers.harness import HarnessTrainer

ALGORITHMS = """
from testers import PolicyGradient

class Comparing(PolicyGradient):
    least_width = 2
    least_width_reason = "it compares ways to go on"

class Referring(PolicyGradient):
    needs_baseline = True

class Valuing(PolicyGradient):
    needs_values = True
"""


@pytest.fixture
def faults(tmp_path):
    """All that is wrong with a configuration, as lines."""

    def find(sections=None, name="harness", algorithm=None, scorer=None):
        base = tiny.config(name, tmp_path, HarnessTrainer.conformance)
        base["trainer"]["algorithm"] = DEADLY
        if algorithm is not None:
            file = tmp_path / "algorithms.py"
            file.write_text(ALGORITHMS)
            base["trainer"]["algorithm"] = {
                "custom_harness_algorithm_module_path": str(file),
                "custom_harness_algorithm_class_name": algorithm,
            }
        if scorer is not None:
            base["red_team"]["scorer"] = scorer
        try:
            prepare(tiny.merged(base, sections or {}))
        except ConfigError as error:
            return str(error)
        return ""

    return find


FROZEN = HarnessTrainer.conformance["models"]["target"]


def test_a_sound_configuration_has_no_faults(faults):
    assert faults() == faults(name="hf_ast") == ""


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        (
            {"red_team": {"tester": {"model": "testr"}}},
            "red_team.tester.model.*no model 'testr' in models; it has: tester, target.*"
            "did you mean tester",
        ),
        ({"red_team": {"target": {"model": "targt"}}}, "red_team.target.model.*did you mean targ"),
        ({"red_team": {"baseline": "basline"}}, "red_team.baseline.*no model 'basline'"),
        ({"red_team": {"baseline": "tester"}}, "red_team.baseline.*is trained; the baseline must"),
        ({"red_team": {"target": {"model": "tester"}}}, "red_team.target.model.*is trained"),
        ({"models": {"tester": {"train": None}}}, "models.tester.*the tester is not trained"),
        (
            {"models": {"tester": {"train": {"type": "fsdp"}}}},
            "models.tester.train.*has no differentiable.*such as models.NAME.train: local",
        ),
        (
            {"red_team": {"tester": {"max_new_tokens": 4096}}},
            "red_team.tester.max_new_tokens.*is 4096, and model 'tester' reads .* tokens",
        ),
        (
            {"red_team": {"target": {"max_new_tokens": 4096}}},
            "red_team.target.max_new_tokens.*is 4096, and model 'target' reads .* tokens",
        ),
        (
            {"models": {"tester": {"train": {"learning_rate": 0.5}}}},
            "models.tester.train.learning_rate.*has no effect.*set trainer.lr",
        ),
        (
            {"models": {"tester": {"train": {"schedule": {"warmup_steps": 3}}}}},
            "models.tester.train.schedule.*has no effect",
        ),
        (
            {"models": {"tester": {"train": {"grad_clip_norm": 3.0}}}},
            "models.tester.train.grad_clip_norm.*has no effect",
        ),
        ({"models": {"tester": {"train": {"betas": [0.5, 0.9]}}}}, "train.betas.*has no effect"),
        (
            {"models": {"tester": {"train": {"micro_batch_size": 2}}}},
            "train.micro_batch_size.*has no effect: a batch is one pass; set trainer.batch_size",
        ),
        (
            {"runtime_monitor": {"dump_steps": [1]}},
            "runtime_monitor.dump_steps.*has no effect: trainers of rollout trees",
        ),
        ({"scenario": None}, "scenario.*there is none"),
        ({"red_team": {"split": "trian"}}, "red_team.split.*no split 'trian'.*development"),
        ({"red_team": {"eval_split": "tst"}}, "red_team.eval_split.*no split 'tst'"),
        ({"red_team": {"prompt_key": "goal"}}, "red_team.prompt_key.*no column 'goal'"),
        ({"red_team": {"scorer": None}}, "red_team.scorer.*names no scorer"),
        ({"trainer": {"optimizer": "adamm"}}, "trainer.optimizer.*adamm"),
        ({"trainer": {"batch_sise": 3}}, "batch_sise.*did you mean.*batch_size"),
        ({"red_team": {"tree_widht": 3}}, "tree_widht.*did you mean.*tree_width"),
        ({"red_team": {"reward": {"fluency": 0.1}}}, "reward.fluency needs a baseline"),
        (
            {"red_team": {"tester": {"temperature": 0.0}}},
            "tester.temperature.* is 0; the tester must be",
        ),
    ],
)
def test_a_fault_is_named_with_its_setting(faults, sections, expected):
    assert re.search(expected, faults(sections))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("target", ""),
        ("tester", "red_team.scorer.model.*'tester' is trained; a judge must be frozen"),
        ("judg", "red_team.scorer.model.*no model 'judg' in models"),
    ],
)
def test_a_judge_is_a_frozen_model(faults, model, expected):
    found = faults(scorer={"type": "llm_judge", "model": model})
    assert re.search(expected, found) if expected else found == ""


@pytest.mark.parametrize(
    ("width", "depth", "refused"),
    [
        (10, 6, False),
        (10, 7, True),
        (1000, 10, True),
        (2, 10**9, True),
        (1, 10**6, False),
        (1, 10**7, True),
        (10**6, 1, False),
        (10**6 + 1, 1, True),
    ],
)
def test_a_tree_that_nobody_could_hold_is_refused(faults, width, depth, refused):
    found = faults({"red_team": {"tree_width": width, "tree_depth": depth}})
    expected = f"red_team.tree_width.* is {width} and tree_depth {depth}: .*more than 1,000,000"
    assert re.search(expected, found) if refused else found == ""


@pytest.mark.parametrize(
    ("algorithm", "sections", "expected"),
    [
        (
            "Comparing",
            {"red_team": {"tree_width": 1}},
            "red_team.tree_width.* is 1, and Comparing needs at least 2, because it compares",
        ),
        ("Referring", {}, "red_team.baseline.* is missing, and Referring needs it"),
        (
            "Valuing",
            {"models": {"tester": {"train": {"value_head": False}}}},
            "models.tester.train.value_head.* is false, and Valuing learns values; write true",
        ),
    ],
)
def test_what_an_algorithm_needs_is_looked_for(faults, algorithm, sections, expected):
    assert re.search(expected, faults(sections, algorithm=algorithm))
    fitting = {
        "models": {"baseline": FROZEN},
        "red_team": {"baseline": "baseline"},
    }
    assert faults(fitting, algorithm=algorithm) == ""


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"dev_split": "dev"}, "trainer.dev_split.*no split 'dev'; it has: dev"),
        ({"mixed_precision": "fp16"}, "trainer.mixed_precision.* is fp16, and the tester is on"),
        ({"warmup_steps": 2}, "warmup_steps.* is 2; it must be below training_steps, 2"),
        ({"schedule": "cosin"}, "trainer.schedule.*cosin"),
        ({"early_stopping_patience": 1, "eval_every": 0}, "needs eval_every above 0"),
    ],
)
def test_faults_of_hf_ast_are_found(faults, trainer, expected):
    found = faults({"trainer": trainer, "settings": {"device": "cpu"}}, name="hf_ast")
    assert re.search(expected, found)


class Bare(DialogueEnvironment):
    """Has no settings of its own."""

    Config = NoConfig


def test_an_environment_without_models_is_named(faults):
    own = {
        "custom_dialogue_environment_module_path": __file__,
        "custom_dialogue_environment_class_name": "Bare",
    }
    found = faults({"red_team": {**dict.fromkeys(RED_TEAM), **own}})
    assert "environment" in found
    assert "has no settings tester and target; derive its Config from that of plugrl.Dial" in found


RED_TEAM = HarnessTrainer.conformance["red_team"]
