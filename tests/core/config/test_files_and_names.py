"""A component by name and one by file: the later layer wins, and one layer writes only one."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest

from plugrl.cli import main
from plugrl.core.config.schemas.schema import component
from plugrl.core.text.evaluate.evaluator import Evaluator
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.trainer import Trainer


def concrete(name: str, base: type) -> type:
    """A subclass whose abstract methods do nothing: these components are only configured."""
    methods = {method: lambda self, *_: None for method in base.__abstractmethods__}
    return type(name, (base,), {**methods, "__module__": __name__})


SingleTurn = concrete("SingleTurn", RolloutWorker)
Exact = concrete("Exact", Evaluator)
Near = concrete("Near", Evaluator)

MINE = """
from plugrl.core.text.evaluate.evaluator import Evaluator
from plugrl.core.trainer import Trainer

class Judge(Evaluator):
    def evaluate(self, data, evaluation_target): ...

class Free(Trainer):
    def train(self): ...
"""


class WorkerTrainer(Trainer):
    sections: ClassVar = {"rollout_worker": component("rollout_worker", "single_turn")}

    def train(self):
        return None


@pytest.fixture
def registry(registry):
    registry.register("trainer", "text", WorkerTrainer)
    registry.register("rollout_worker", "single_turn", SingleTurn)
    registry.register("evaluator", "exact", Exact)
    registry.register("evaluator", "near", Near)
    return registry


@pytest.fixture
def folder(files):
    path = files()
    (path / "mine.py").write_text(MINE)
    return path


NAME = "evaluator: exact"
FILE = "evaluator_module_path: mine.py:Judge"
KEYS = "evaluator: {custom_evaluator_module_path: mine.py, custom_evaluator_class_name: Judge}"
BY_NAME = "rollout_worker.evaluator=near"
BY_FILE = "rollout_worker.evaluator_module_path=mine.py:Judge"
NO_FILE = "rollout_worker.evaluator_module_path="


def evaluator(files, check, base, here, *overrides):
    """The evaluator of a file over a base, with overrides: its name and its section."""
    files(
        base=f"trainer: text\nrollout_worker: {{{base}}}\n",
        a=f"defaults: [base]\nrollout_worker: {{{here}}}\n",
    )
    validated = check("a.yaml", *overrides)
    record = validated.records.get("rollout_worker.evaluator")
    return record and record.name, validated.tree["rollout_worker"]["evaluator"]


WORKER_KEYS = "custom_evaluator_module_path: mine.py, custom_evaluator_class_name: Judge"


@pytest.mark.parametrize("file", [FILE, KEYS, WORKER_KEYS])
@pytest.mark.parametrize(
    ("base", "here", "overrides", "winner"),
    [
        ("FILE", "", [], "Judge"),
        ("FILE", NAME, [], "exact"),
        ("FILE", "evaluator: {type: exact}", [], "exact"),
        ("FILE", "", [BY_NAME], "near"),
        ("FILE", "", ["rollout_worker.evaluator.type=near"], "near"),
        (NAME, "FILE", [], "Judge"),
        (NAME, "FILE", [BY_NAME], "near"),
        (NAME, "", [BY_FILE], "Judge"),
        ("evaluator: {type: exact}", "FILE", [], "Judge"),
        ("FILE", NAME, [BY_FILE], "Judge"),
        (NAME, "FILE", [NO_FILE], "exact"),
        (NAME, "FILE", ["rollout_worker.evaluator.custom_evaluator_module_path=null"], "exact"),
        (NAME, "FILE", [NO_FILE, BY_NAME], "near"),
        ("FILE", "", [NO_FILE], None),
        ("FILE", "evaluator_module_path: null", [], None),
        ("FILE", NAME, ["rollout_worker.evaluator.type=null"], "Judge"),
        ("", "FILE", [BY_FILE], "Judge"),
    ],
)
def test_the_later_layer_wins(folder, files, check, file, base, here, overrides, winner):
    base, here = base.replace("FILE", file), here.replace("FILE", file)
    name, section = evaluator(files, check, base, here, *overrides)
    assert name == winner
    path = {
        "custom_evaluator_module_path": str(folder / "mine.py"),
        "custom_evaluator_class_name": "Judge",
    }
    expected = {"Judge": path, None: None}.get(winner, {"type": winner})
    assert section == expected


def test_a_misspelt_name_over_a_file_is_a_fault(folder, files, faults):
    files(a=f"trainer: text\nrollout_worker: {{{FILE}}}\n")
    assert faults("a.yaml", "rollout_worker.evaluator=exat") == [
        "rollout_worker.evaluator (command line): unknown evaluator 'exat'; did you mean exact?"
        " installed: exact, near"
    ]


PATHS = "custom_trainer_module_path: mine.py, custom_trainer_class_name: Free"


@pytest.mark.parametrize(
    ("base", "here", "overrides", "winner"),
    [
        ("{type: toy}", f"{{{PATHS}}}", [], "Free"),
        ("toy", f"{{{PATHS}}}", [], "Free"),
        ("{type: toy}", f"{{type: null, {PATHS}}}", [], "Free"),
        (f"{{{PATHS}}}", "{type: toy}", [], "toy"),
        (f"{{{PATHS}}}", "toy", [], "toy"),
        (f"{{{PATHS}}}", "{}", ["trainer=toy"], "toy"),
        (f"{{{PATHS}}}", "{}", ["trainer.type=toy"], "toy"),
        ("toy", f"{{{PATHS}}}", ["trainer.custom_trainer_module_path="], "toy"),
        ("toy", f"{{{PATHS}}}", ["trainer.custom_trainer_module_path=null"], "toy"),
        (
            "toy",
            "toy",
            [
                "trainer.custom_trainer_module_path=mine.py",
                "trainer.custom_trainer_class_name=Free",
            ],
            "Free",
        ),
    ],
)
def test_trainers_too(folder, files, check, base, here, overrides, winner):
    files(base=f"trainer: {base}\n", a=f"defaults: [base]\ntrainer: {here}\n")
    validated = check("a.yaml", *overrides)
    assert validated.records["trainer"].name == winner
    assert ("type" in validated.tree["trainer"]) == (winner == "toy")
    assert ("custom_trainer_module_path" in validated.tree["trainer"]) == (winner == "Free")
    assert check(validated.tree).tree == validated.tree


def test_options_of_the_name_before_are_refused_like_those_of_another_type(folder, files, faults):
    files(base="trainer: {type: toy, steps: 3}\n", a=f"defaults: [base]\ntrainer: {{{PATHS}}}\n")
    assert faults("a.yaml") == ["trainer.steps (base.yaml:1): unknown key"]


def test_a_later_phase_wins_over_the_run(folder, files, check):
    files(
        a=f"rollout_worker: {{{FILE}}}\n"
        "trainer:\n  type: phases\n  phases:\n"
        "    - {name: one, trainer: text}\n"
        "    - {name: two, trainer: text, rollout_worker: {evaluator: exact}}\n"
        "    - {name: three, trainer: text, rollout_worker: {evaluator: exact}}\n"
    )
    by_file = (
        "trainer.phases[2].rollout_worker.evaluator=null",
        "trainer.phases[2].rollout_worker.evaluator_module_path=mine.py:Judge",
    )
    phases = check("a.yaml", *by_file).phases
    names = [phase.records["rollout_worker.evaluator"].name for _, phase in phases]
    assert names == ["Judge", "exact", "Judge"]


@pytest.mark.parametrize(
    ("text", "overrides", "line"),
    [
        (
            f"trainer:\n  type: toy\n  {PATHS.replace(', ', chr(10) + '  ')}\n",
            [],
            "trainer.custom_trainer_module_path (a.yaml:3): picks the trainer, and so does"
            " trainer.type (a.yaml:2); write one of them",
        ),
        (
            "trainer: text\nrollout_worker:\n  evaluator: exact\n"
            "  evaluator_module_path: mine.py:Judge\n",
            [],
            "rollout_worker.evaluator_module_path (a.yaml:4): is the same as"
            " rollout_worker.evaluator (a.yaml:3); write it in one place only",
        ),
        (
            "trainer: text\nrollout_worker: {}\n",
            [BY_NAME, BY_FILE],
            "rollout_worker.evaluator_module_path (command line): picks the evaluator, and so does"
            " rollout_worker.evaluator (command line); write one of them",
        ),
        (
            "trainer: text\nrollout_worker: {}\n",
            [BY_FILE, BY_NAME],
            "rollout_worker.evaluator_module_path (command line): picks the evaluator, and so does"
            " rollout_worker.evaluator (command line); write one of them",
        ),
    ],
)
def test_one_layer_writes_one_of_them(folder, files, faults, text, overrides, line):
    files(a=text)
    assert faults("a.yaml", *overrides) == [line]


def test_the_default_worker_of_the_guides_gives_way_to_a_file(folder, files, check):
    (folder / "w.py").write_text(
        "from tests.core.config.test_files_and_names import SingleTurn\n"
        "class Worker(SingleTurn): ...\n"
    )
    files(
        a="trainer: text\nrollout_worker: {type: nexau, custom_rollout_worker_module_path: w.py,"
        " custom_rollout_worker_class_name: Worker}\n"
    )
    assert check("a.yaml").records["rollout_worker"].name == "Worker"


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "rollout_worker.evaluator_module_path=none.py:Judge",
            "rollout_worker.evaluator_module_path (command line): no such file: none.py"
            " (looked beside the file that names it, then in the working directory)",
        ),
        (
            "rollout_worker.evaluator_module_path=mine.py",
            "rollout_worker.evaluator_module_path (command line):"
            " must be file.py:ClassName, not 'mine.py'",
        ),
    ],
)
def test_a_wrong_file_is_blamed_on_who_wrote_it(folder, files, faults, word, line):
    files(a=f"trainer: text\nrollout_worker: {{{FILE}}}\n")
    assert faults("a.yaml", word) == [line]


def test_a_wrong_class_is_blamed_on_who_wrote_it(folder, files, registry, capsys):
    files(a=f"trainer: self_hosted_grpo\nrollout_worker: {{{FILE}}}\n")
    with pytest.raises(SystemExit):
        main(["validate", "a.yaml", "rollout_worker.evaluator_module_path=mine.py:Jugde"])
    error = capsys.readouterr().err
    assert "rollout_worker.evaluator_module_path (command line): " in error
    assert "did you mean Judge?" in error
    assert "custom_evaluator" not in error


def test_show_has_only_the_winner(folder, files, capsys):
    files(
        a="trainer: {type: self_hosted_grpo, total_train_steps: 1}\nscenario: arithmetic\n"
        "models: {policy: {source: {config: {model_type: qwen3}}, train: local}}\n"
        f"rollout_worker: {{{FILE}, max_prompt_length: 4, max_response_length: 3}}\n"
    )
    words = ["config", "show", "a.yaml", "rollout_worker.evaluator=exact_match"]
    with pytest.raises(SystemExit):
        main([*words, "--origin", "--json"])
    rows = {row["key"]: row["origin"] for row in json.loads(capsys.readouterr().out)}
    assert rows["rollout_worker.evaluator.type"] == "command line"
    assert not any("custom_evaluator" in key for key in rows)


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (
            "evaluator=exat",
            "evaluator (command line): unknown evaluator 'exat'; did you mean exact?"
            " installed: exact, near",
        ),
        (
            "evaluator_module_path=none.py:Judge",
            "evaluator_module_path (command line): no such file: none.py"
            " (looked beside the file that names it, then in the working directory)",
        ),
        (
            "evaluator_module_path=none.py",
            "evaluator_module_path (command line): must be file.py:ClassName, not 'none.py'",
        ),
    ],
)
def test_a_phase_names_its_own_keys(folder, files, faults, word, line):
    files(
        a=f"rollout_worker: {{{FILE}}}\n"
        "trainer:\n  type: phases\n  phases:\n    - {name: one, trainer: text}\n"
    )
    where = "trainer.phases[0].rollout_worker"
    assert faults("a.yaml", f"trainer.phases.0.rollout_worker.{word}") == [f"{where}.{line}"]
