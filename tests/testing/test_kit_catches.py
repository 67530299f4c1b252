"""The kit fails on components that break the contract: each of its tests can fail."""

import os
import re
import subprocess
import sys

import pytest

BROKEN = '''
import itertools
from plugrl import Capabilities, EvaluationRunResult, Evaluator, Trainer
from plugrl.core.config.schema import described
from dataclasses import dataclass

@dataclass
class Config:
    """Options."""
    total_train_steps: int = described(2, "steps")

class Good(Trainer):
    """Counts."""
    Config = Config
    def __init__(self, config):
        super().__init__(config)
        self.step = 0
    def train(self):
        while self.step < self.config.total_train_steps:
            self.step += 1
            self.run.end_step(self.step, {"train/step": self.step})
    def state_dict(self):
        return {"step": self.step}
    def load_state_dict(self, state):
        self.step = state["step"]

for_section = {name: None for name in ("models", "data", "validate", "rollout_worker")}
Good.conformance = for_section

class Undocumented(Good):
    Config = Config
Undocumented.__doc__ = None

class NoSteps(Good):
    """Ends no step."""
    def train(self):
        return None

class Random(Good):
    """Another number each time."""
    def train(self):
        import time
        self.run.end_step(1, {"train/x": time.perf_counter()})
        self.run.end_step(2, {"train/x": time.perf_counter()})

class Forgets(Good):
    """Saves no state."""
    def train(self):
        total = 0
        for step in (1, 2):
            total += step
            if step > self.step:
                self.run.end_step(step, {"train/total": total * (1 + self.step)})
            self.step = max(self.step, step)
    def state_dict(self):
        return {"step": self.step, "noise": id(self)}

class Writes(Good):
    """Leaves a file beside the runs."""
    def train(self):
        (self.run.folder.parents[2] / "stray.txt").write_text("x")
        super().train()

class GoodEvaluator(Evaluator):
    """Compares."""
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(float(evaluation_target.final_answer == data["answer"]))

class Raises(GoodEvaluator):
    """Cannot read an empty answer."""
    def evaluate(self, data, evaluation_target):
        evaluation_target.final_answer[0]
        return super().evaluate(data, evaluation_target)

class Constant(GoodEvaluator):
    """Likes everything."""
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(1.0)

class Changes(GoodEvaluator):
    """Writes into the problem."""
    def evaluate(self, data, evaluation_target):
        data["seen"] = True
        return super().evaluate(data, evaluation_target)

counter = itertools.count()
class Moody(GoodEvaluator):
    """Another reward each time."""
    def evaluate(self, data, evaluation_target):
        right = evaluation_target.final_answer == data["answer"]
        return EvaluationRunResult(float(right) + next(counter) * 1e-6)
'''

EXPECTED = {
    "good": set(),
    "undocumented": {"test_it_is_a_documented_trainer"},
    "nosteps": {"test_it_trains", "test_resumed_it_equals_the_uninterrupted_run"},
    "random": {
        "test_equal_seeds_give_equal_numbers",
        "test_resumed_it_equals_the_uninterrupted_run",
    },
    "forgets": {"test_resumed_it_equals_the_uninterrupted_run"},
    "writes": {"test_it_writes_inside_its_run_folder"},
    "goodevaluator": set(),
    "raises": {"test_any_answer_gets_a_finite_reward"},
    "constant": {"test_a_right_answer_beats_a_wrong_one"},
    "changes": {"test_it_leaves_the_problem_as_it_was"},
    "moody": {"test_equal_answers_get_equal_rewards"},
}
EVALUATORS = ("goodevaluator", "raises", "constant", "changes", "moody")


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The failed tests of the kit by component, from one run over all of them."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_parts.py").write_text(BROKEN)
    info = folder / "broken_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 1.0\n")
    classes = {name.lower(): name for name in re.findall(r"^class (\w+)\(", BROKEN, re.M)}
    lines = {"plugrl.trainers": [], "plugrl.evaluators": []}
    for name in EXPECTED:
        group = "plugrl.evaluators" if name in EVALUATORS else "plugrl.trainers"
        lines[group].append(f"{name} = broken_parts:{classes[name]}")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "\n".join(rows) + "\n" for group, rows in lines.items())
    )
    options = [
        f"--plugrl-{'evaluator' if name in EVALUATORS else 'trainer'}={name}" for name in EXPECTED
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--pyargs", "plugrl.testing.suite", "-rfE", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = {name: set() for name in EXPECTED}
    for test, name in re.findall(r"^(?:FAILED|ERROR) \S+::(test_\w+)\[(\w+)", done.stdout, re.M):
        found[name].add(test)
    assert " passed" in done.stdout, done.stdout + done.stderr
    return found


@pytest.mark.integration
@pytest.mark.parametrize("name", EXPECTED)
def test_the_kit_finds_what_is_broken_and_nothing_else(failures, name):
    assert failures[name] == EXPECTED[name]
