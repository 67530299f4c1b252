"""``plugrl eval RUN red_team``: a report of a trained tester that goes on where it was cut off."""

import json
import signal

import forking
import kills
import pytest

import plugrl
from plugrl.testing import tiny
from plugrl.trainers.kit import RED_TEAM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of one run, for tests that leave it as it is."""
    made = tmp_path_factory.mktemp("trained")
    return plugrl.train(tiny.config("harness", made, RED_TEAM)).folder


def files_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.integration
def test_a_report_of_the_test_split_that_goes_on(call, folder, tmp_path):
    before = files_of(folder)
    words = ("eval", folder, "red_team", "red_team.eval_attempts=2", "--json")
    code, out, err = call(*words, "--output", "new/report")
    assert code == 0, err
    found = json.loads(out)
    assert found["folder"] == "new/report"
    report = json.loads((tmp_path / "new/report/report.json").read_text())
    overall = report["overall"]
    # A quarter of the twelve trees, twice each.
    assert (report["prompts"], overall["dialogues"], overall["scored"]) == (3, 6, 6)
    assert list(report["by_category"]) == ["tree"]
    assert found["metrics"]["red_team/success_rate"] == overall["success_rate"]
    low, high = overall["interval"]
    assert low <= overall["success_rate"] <= high
    assert [turn["turn"] for turn in report["per_turn"]] == [1, 2]
    assert "Red-teaming of" in (tmp_path / "new/report/report.html").read_text()
    assert files_of(folder) == before
    # Half of the dialogues are gone, and come back as they were.
    journal = tmp_path / "new/report/dialogues.jsonl"
    text = journal.read_text()
    journal.write_text("".join(text.splitlines(keepends=True)[:4]) + '{"item": ')
    code, again, err = call(*words, "--output", "new/report")
    assert (code, json.loads(again)) == (0, found), err
    assert sorted(journal.read_text().splitlines()) == sorted(text.splitlines())
    # Without a folder the numbers are the same, and nothing is written.
    code, out, _ = call(*words)
    assert json.loads(out)["metrics"] == found["metrics"]
    assert "folder" not in json.loads(out)


def test_a_report_as_a_table_and_of_another_split(call, folder):
    code, out, err = call(
        "eval",
        folder,
        "red_team",
        "red_team.eval_split=train",
        "red_team.eval_attempts=4",
        "--output",
        "r",
    )
    assert code == 0, err
    # Of twelve trees eight are trained on.
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["red_team/dialogues"] == "32"
    assert "wrote r" in err
    code, out, err = call("eval", folder, "red_team", "--output", "r")
    assert (code, out) == (2, "")
    assert "holds another evaluation (prompts differs)" in err
    assert len(err.strip().splitlines()) == 1
    code, _, err = call("eval", folder, "red_team", "--checkpoint", "0", "--output", "r")
    assert code == 2
    assert "checkpoint" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("redteam",), "write validation for episodes in the run's own environment, red_team for"),
        (("red_team", "red_team.eval_split=gone"), "no split 'gone'; it has: development, test"),
        (("red_team", "--output", "problems.jsonl"), "problems.jsonl is a file; name a folder"),
        (("red_team", "red_team.scorer.patterns=['(']"), "is no regular expression"),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(call, folder, tmp_path, words, said):
    (tmp_path / "problems.jsonl").touch()
    code, out, err = call("eval", folder, *words)
    assert (code, out) == (2, ""), err
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.integration
def test_other_trainers_of_testers_have_it_too(call, tmp_path):
    made = tiny.merged(RED_TEAM, {"trainer": {"eval_every": 1}})
    folder = plugrl.train(tiny.config("hf_ast", tmp_path, made)).folder
    code, out, err = call("eval", folder, "red_team", "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"]["red_team/dialogues"] == 3.0


def test_a_file_or_recipe_of_that_name_is_not_meant(call, folder, tmp_path):
    (tmp_path / "red_team.yaml").write_text("models: {}\n")
    code, _, err = call("eval", folder, "red_team")
    assert code == 0, err


def test_other_trainers_have_no_such_report(call, tmp_path):
    folder = plugrl.train(tiny.config("self_hosted_grpo", tmp_path)).folder
    code, _, err = call("eval", folder, "red_team")
    assert code == 2
    assert "red_team: no such file or recipe" in err


KILLER = """
import os
import signal
from pathlib import Path

from plugrl import Score, Scorer, register_scorer


@register_scorer("killer")
class Killer(Scorer):
    def score(self, dialogues):
        calls = Path("calls")
        calls.write_text(calls.read_text() + "." if calls.exists() else ".")
        if len(calls.read_text()) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return [Score(float("a" in text)) for text in self.texts(dialogues)]
"""


@pytest.mark.integration
def test_a_process_that_is_killed_loses_the_batch_that_it_was_in(folder, tmp_path):
    (tmp_path / "killer.py").write_text(KILLER, "utf-8")

    def evaluated(output):
        words = ["-p", "killer.py", "eval", str(folder), "red_team", "--json", "--output", output]
        words += ["red_team.eval_batch=2", "red_team.scorer=", "red_team.scorer=killer"]
        program = ["-m", "plugrl", *words, "red_team.eval_attempts=3"]
        done = forking.run(program, cwd=tmp_path, libraries=kills.LIBRARIES)
        return done.returncode, done.stdout

    assert evaluated("report")[0] == -signal.SIGKILL
    journal = tmp_path / "report" / "dialogues.jsonl"
    # What it is about, and two batches of two.
    assert len(journal.read_text().splitlines()) == 5
    code, out = evaluated("report")
    assert code == 0
    # Nine dialogues: three batches that are left, of two, two and one; each is scored once.
    assert (tmp_path / "calls").read_text() == "." * (3 + 3)
    _, whole = evaluated("whole")
    assert json.loads(out)["metrics"] == json.loads(whole)["metrics"]
    assert journal.read_text() == (tmp_path / "whole" / "dialogues.jsonl").read_text()
