"""The kit fails on components that break the contract: each of its tests can fail."""

import os
import re

import forking
import pytest

from plugrl.testing.suite.test_evaluator import EvaluatorContract
from plugrl.testing.suite.test_scorer import ScorerContract
from plugrl.testing.suite.test_trainer import TrainerContract

BROKEN = '''
import itertools
import sys
from pathlib import Path
from plugrl import Capabilities, EvaluationRunResult, Evaluator, Score, Scorer, Trainer
from plugrl.core.config.schemas.schema import described
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

class WritesHere(Good):
    """Leaves a file in the working directory."""
    def train(self):
        Path("stray.txt").write_text("x")
        super().train()

@dataclass
class Bare:
    total_train_steps: int = described(2, "steps")

class BareConfig(Good):
    """Its options have no docstring."""
    Config = Bare

class NoDataclass(Good):
    """Its options are no dataclass."""
    class Config:
        """Options."""

class WrongExample(Good):
    """Asks the kit for a section that does not exist."""
    conformance = {**Good.conformance, "no_such_section": {}}

class Late(Good):
    """Tells hooks about rollouts of a step that is over."""
    def train(self):
        super().train()
        self.run.hooks.call(
            "plugrl_rollouts_collected", run=self.run, step=1, trajectories=[], metrics={}
        )

class Deaf(Good):
    """Goes on when it is asked to stop."""
    def train(self):
        while self.step < self.config.total_train_steps:
            self.step += 1
            try:
                self.run.end_step(self.step, {"train/step": self.step})
            except Exception:
                continue

class Vague(Good):
    """Says what it can in another form."""
    capabilities = {"resume": True}

class NoResume(Good):
    """Keeps no state and says so."""
    capabilities = Capabilities(resume=False)
    def state_dict(self):
        return {}

class Loud(Good):
    """Has a name in capital letters."""

class Where:
    """Exported here, defined there."""
    class Inner(Good):
        """Defined in another class."""

ReExported = Where.Inner

if "pytest" in sys.modules:
    class OnlyHere(Good):
        """Exists in the process of the tests alone."""

class GoodEvaluator(Evaluator):
    """Compares."""
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(float(evaluation_target.final_answer == data["answer"]))

class Raises(GoodEvaluator):
    """Cannot read an empty answer."""
    def evaluate(self, data, evaluation_target):
        evaluation_target.final_answer[0]
        return super().evaluate(data, evaluation_target)

class Refuses(Raises):
    """Cannot read an empty answer and says so."""
    conformance = {"refuses": "an empty answer has no first letter"}

class Silent(GoodEvaluator):
    pass

class NotFinite(GoodEvaluator):
    """Has no number for long answers."""
    def evaluate(self, data, evaluation_target):
        if len(evaluation_target.final_answer) > 1000:
            return EvaluationRunResult(float("nan"))
        return super().evaluate(data, evaluation_target)

class NoOptions(GoodEvaluator):
    """Its options are no dataclass."""
    class Config:
        """Options."""

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

class Shifted(GoodEvaluator):
    """Gives every answer of a batch the judgement of the one before."""
    def evaluate_batch(self, items):
        judged = [self.evaluate(*item) for item in items]
        return judged[-1:] + judged[:-1]

class GoodScorer(Scorer):
    """Finds the letter d."""
    def score(self, dialogues):
        return [Score(float("d" in text)) for text in self.texts(dialogues)]

class SilentScorer(GoodScorer):
    pass

class OptionsScorer(GoodScorer):
    """Its options are no dataclass."""
    class Config:
        """Options."""

class ConstantScorer(GoodScorer):
    """Finds everything harmless."""
    def score(self, dialogues):
        return [0.0] * len(dialogues)

class FailsScorer(GoodScorer):
    """Has no score for some texts."""
    def score(self, dialogues):
        texts = self.texts(dialogues)
        return [Score(float("d" in text)) if text else Score(failure="no text") for text in texts]

class RefusesScorer(FailsScorer):
    """Has no score for some texts and says so."""
    conformance = {"refuses": "there is nothing to score"}

class ShiftedScorer(GoodScorer):
    """Gives every dialogue of a list the score of the one before."""
    def score(self, dialogues):
        found = super().score(dialogues)
        return found[-1:] + found[:-1] if len(found) > 2 else found

class ChangesScorer(GoodScorer):
    """Writes into the row of the data."""
    def score(self, dialogues):
        for dialogue in dialogues:
            dialogue.item["seen"] = True
        return super().score(dialogues)
'''

NEED_A_RUN = {
    "test_the_example_is_valid",
    "test_it_trains",
    "test_hooks_are_called_in_order",
    "test_it_stops_when_asked",
    "test_equal_seeds_give_equal_numbers",
    "test_it_writes_inside_its_run_folder",
    "test_resumed_it_equals_the_uninterrupted_run",
}
TRAINERS = {
    "Good": set(),
    "NoResume": set(),
    "ReExported": set(),
    "Loud": {"test_metadata_names_it"},
    "OnlyHere": {"test_a_new_process_finds_the_same"},
    "Undocumented": {"test_it_is_a_documented_component"},
    "BareConfig": {"test_its_config_is_a_documented_dataclass"},
    "NoDataclass": {
        "test_its_config_is_a_documented_dataclass",
        "test_an_unknown_key_is_refused",
        *NEED_A_RUN,
    },
    "WrongExample": NEED_A_RUN,
    "NoSteps": {
        "test_it_trains",
        "test_it_stops_when_asked",
        "test_resumed_it_equals_the_uninterrupted_run",
    },
    "Vague": {
        "test_it_says_what_it_can",
        "test_it_stops_when_asked",
        "test_resumed_it_equals_the_uninterrupted_run",
    },
    "Late": {"test_hooks_are_called_in_order"},
    "Deaf": {"test_it_stops_when_asked"},
    "Random": {
        "test_equal_seeds_give_equal_numbers",
        "test_resumed_it_equals_the_uninterrupted_run",
    },
    "Forgets": {"test_resumed_it_equals_the_uninterrupted_run"},
    "Writes": {"test_it_writes_inside_its_run_folder"},
    "WritesHere": {"test_it_writes_inside_its_run_folder"},
}
EVALUATORS = {
    "GoodEvaluator": set(),
    "Refuses": set(),
    "Raises": {"test_any_answer_gets_a_finite_reward"},
    "NotFinite": {"test_any_answer_gets_a_finite_reward"},
    "Silent": {"test_it_is_a_documented_component"},
    "NoOptions": {
        "test_an_unknown_key_is_refused",
        "test_a_right_answer_beats_a_wrong_one",
        "test_any_answer_gets_a_finite_reward",
        "test_equal_answers_get_equal_rewards",
        "test_it_leaves_the_problem_as_it_was",
        "test_a_batch_is_judged_like_its_answers",
    },
    "Constant": {"test_a_right_answer_beats_a_wrong_one"},
    "Changes": {"test_it_leaves_the_problem_as_it_was"},
    "Moody": {"test_equal_answers_get_equal_rewards"},
    "Shifted": {"test_a_batch_is_judged_like_its_answers"},
}
SCORERS = {
    "GoodScorer": set(),
    "RefusesScorer": set(),
    "SilentScorer": {"test_it_is_a_documented_component"},
    "OptionsScorer": {
        "test_an_unknown_key_is_refused",
        "test_what_went_wrong_scores_higher",
        "test_any_dialogue_gets_a_finite_score",
        "test_a_list_is_scored_like_its_dialogues_in_any_order",
        "test_it_leaves_the_dialogue_as_it_was",
    },
    "ConstantScorer": {"test_what_went_wrong_scores_higher"},
    "FailsScorer": {"test_any_dialogue_gets_a_finite_score"},
    "ShiftedScorer": {"test_a_list_is_scored_like_its_dialogues_in_any_order"},
    "ChangesScorer": {"test_it_leaves_the_dialogue_as_it_was"},
}


def entry_name(cls: str) -> str:
    return cls if cls == "Loud" else cls.lower()


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """The failed tests of the kit by component, from one run over all of them."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken_parts.py").write_text(BROKEN)
    info = folder / "broken_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-parts\nVersion: 1.0\n")
    parts = {"trainer": TRAINERS, "evaluator": EVALUATORS, "scorer": SCORERS}
    (info / "entry_points.txt").write_text(
        "".join(
            f"[plugrl.{kind}s]\n"
            + "".join(f"{entry_name(cls)} = broken_parts:{cls}\n" for cls in classes)
            for kind, classes in parts.items()
        )
    )
    options = [
        f"--plugrl-{kind}={entry_name(cls)}" for kind, classes in parts.items() for cls in classes
    ]
    done = forking.run(
        ["-m", "pytest", "--pyargs", "plugrl.testing.suite", "-rfE", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert " passed" in done.stdout, done.stdout + done.stderr
    found = {cls: set() for classes in parts.values() for cls in classes}
    names = {entry_name(cls): cls for cls in found}
    for test, name in re.findall(r"^(?:FAILED|ERROR) \S+::(test_\w+)\[(\w+)", done.stdout, re.M):
        found[names[name]].add(test)
    return found


@pytest.mark.integration
@pytest.mark.parametrize("cls", [*TRAINERS, *EVALUATORS, *SCORERS])
def test_the_kit_finds_what_is_broken_and_nothing_else(failures, cls):
    assert failures[cls] == {**TRAINERS, **EVALUATORS, **SCORERS}[cls]


@pytest.mark.parametrize(
    ("contract", "parts"),
    [(TrainerContract, TRAINERS), (EvaluatorContract, EVALUATORS), (ScorerContract, SCORERS)],
)
def test_each_check_is_seen_to_fail(contract, parts):
    checks = {name for name in vars(contract) if name.startswith("test_")}
    assert checks <= set().union(*parts.values())
