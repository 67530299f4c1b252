"""The scenario ``code_validation`` with files of the form of APPS."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.registry import register_sandbox
from plugrl.core.sandbox.jobs import Runner
from plugrl.core.sandboxes import LocalSandbox
from plugrl.scenarios.code_validation.scenario import CodeValidationScenario

FILE = Path(__file__).parent / "apps" / "problems.jsonl"
SECTION = {"data_files": [str(FILE)], "validation": 2, "truth_seconds": 100.0}
#: Each test of a program takes a process.
ONE_TEST = {**SECTION, "max_tests": 1}


def _written(tmp_path, **changes):
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    rows[0].update(changes)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {**ONE_TEST, "data_files": [str(path)]}


@pytest.fixture(scope="module")
def items():
    task = CodeValidationScenario(SECTION)
    return [item for split in task.build(0).datasets.values() for item in split]


def test_programs_are_labelled_by_what_they_do_and_not_by_where_they_stand(items):
    by_problem = {name: [i for i in items if i["problem"] == name] for name in ("11", "12", "13")}
    # No solution of problem 14 passes its test.
    assert sum(map(len, by_problem.values())) == len(items) == 6
    for own in by_problem.values():
        assert sorted(item["label"] for item in own) == [0, 1]
    texts = {item["solution"]: item["label"] for item in items}
    assert texts["def double_all(values):\n    return [value ** 2 for value in values]"] == 0
    assert texts["def double_all(values):\n    return [value * 2 for value in values]"] == 1
    assert "def double_all(values):\n    return [value + value for value in values]" not in texts
    (first,) = (item for item in by_problem["11"] if item["label"] == 1)
    assert "#" not in first["solution"]


def test_what_is_wrong_is_told_where_a_mutant_was_made(items):
    wrong = {item["problem"]: item for item in items if item["label"] == 0}
    assert wrong["12"]["change"] == ""
    assert wrong["12"]["passed"] == 0.5
    assert " -> " in wrong["11"]["change"]
    assert 0.05 <= wrong["11"]["passed"] < 1


def test_a_difficulty_picks_problems():
    task = CodeValidationScenario({**ONE_TEST, "difficulty": "interview"})
    assert {i["problem"] for split in task.build(0).datasets.values() for i in split} == {
        "11", "13"
    }  # fmt: skip
    with pytest.raises(ConfigError, match="has no problem of difficulty 'hard'"):
        CodeValidationScenario({**SECTION, "difficulty": "hard"}).build(0)
    with pytest.raises(ConfigError, match="1 problems have right and wrong programs"):
        CodeValidationScenario({**ONE_TEST, "difficulty": "introductory"}).build(0)


def test_a_look_at_a_file_runs_no_program():
    found = CodeValidationScenario({**SECTION, "truth_seconds": 1e-6}).preview(0)
    assert found["train"][0]["problem"] == "11"


def test_a_file_is_run_again_when_it_has_changed_and_not_before(tmp_path, monkeypatch):
    section = _written(tmp_path)
    first = CodeValidationScenario(section).build(0).datasets
    with monkeypatch.context() as patch:
        patch.setattr(Runner, "script", lambda *_: pytest.fail("a program was run"))
        assert CodeValidationScenario(section).build(0).datasets == first
    # Now each program of the first problem fails a test.
    changed = _written(tmp_path, input_output=json.dumps({"inputs": ["1"], "outputs": ["no"]}))
    again = CodeValidationScenario(changed).build(0).datasets
    assert {i["problem"] for items in again.values() for i in items} == {"12", "13"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"solutions": "print(1)"}, r"solutions of .*rows.jsonl:1 is no list of programs"),
        ({"solutions": None}, r"rows.jsonl:1 has no solutions"),
        ({"input_output": json.dumps({"inputs": ["1"], "outputs": []})}, "not as many outputs"),
        ({"buggy_solutions": [3]}, "buggy_solutions of .* is no list"),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        CodeValidationScenario(_written(tmp_path, **changes)).build(0)


class Open(LocalSandbox):
    """As on a system whose kernel confines nothing."""

    def fault(self):
        return "here nothing is limited"


def test_programs_of_files_run_where_they_are_confined(tmp_path, registry):
    register_sandbox("open")(Open)
    section = {**_written(tmp_path), "sandbox": "open"}
    with pytest.raises(ConfigError, match="here nothing is limited; to let .* unsafe: true"):
        CodeValidationScenario(section).build(0)
    found = CodeValidationScenario({**section, "unsafe": True}).build(0).datasets
    assert found == CodeValidationScenario(_written(tmp_path)).build(0).datasets


@pytest.mark.integration
def test_processes_with_other_hash_seeds_make_the_same_data():
    code = (
        "import json, sys; from plugrl.scenarios.code_validation.bank import PROBLEMS; "
        "from plugrl.scenarios.code_validation.examination import examine_problems; "
        "from plugrl.scenarios.code_validation.scenario import CodeValidationScenario as S; "
        "found = examine_problems(PROBLEMS[8:12], 2, 0.05, 100.0); "
        "print(json.dumps(dict(S(json.loads(sys.argv[1])).build(5).datasets)), found)"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, json.dumps(SECTION)],
            env={"PYTHONHASHSEED": seed, "PATH": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("Program(") > 30


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="data file nowhere.jsonl: No such file"):
        CodeValidationScenario({"data_files": ["nowhere.jsonl"]}).build(0)
