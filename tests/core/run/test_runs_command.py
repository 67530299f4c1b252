import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from plugrl.commands.runs import STATE_HELP, app
from plugrl.core.errors import UsageError
from plugrl.core.run.records.records import STATES, State


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        result = CliRunner().invoke(app, list(words))
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_list_knows_every_kind_of_folder(call, make_run, tmp_path):
    running = make_run()
    done = make_run()
    with done:
        done.end_step(1, {"value": 0.5})
    killed = make_run()
    killed._shutdown._lock.release()
    root = tmp_path / "runs" / "toy"
    for name, text in (("z-empty", ""), ("z-list", "[]"), ("z-stateless", "{}")):
        (root / name).mkdir()
        (root / name / "status.json").write_text(text)
    (root / "z-headless").mkdir()
    (root / "z-headless" / "config.yaml").write_text("a: 1")
    (root / "notes").mkdir()
    # What another process is still making.
    (root / ".tmp-half").mkdir()
    (root / ".tmp-half" / "config.yaml").write_text("a: 1")
    (tmp_path / "runs" / "file").write_text("")
    rows = {row["id"]: row for row in json.loads(call("list", "--json"))}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        running.id: "running", done.id: "done", killed.id: "killed", "z-empty": "broken",
        "z-list": "broken", "z-stateless": "broken", "z-headless": "broken",
    }  # fmt: skip
    assert rows["z-headless"]["error"] == "status.json cannot be read: No such file or directory"
    assert done.id in call("list")
    assert "killed" in call("list")
    assert [r["id"] for r in json.loads(call("list", "--state", "done", "--json"))] == [done.id]


def test_show_and_path(call, make_run):
    run = make_run()
    with run:
        run.end_step(1, {"value": 0.5})
    assert call("path", "latest") == f"{run.folder.relative_to(run.folder.parents[2])}\n"
    shown = json.loads(call("show", run.id, "--json"))
    assert shown["state"] == "done"
    assert shown["metrics"]["value"] == 0.5
    table = call("show", "toy")
    assert "value" in table
    # The moment of a step as a number of ten digits is for programs alone.
    assert "time/unix" in shown["metrics"]
    assert "time/unix" not in table
    with pytest.raises(UsageError, match="no run 'nothing'"):
        call("show", "nothing")


def test_no_runs_is_an_empty_list_and_a_wrong_folder_an_error(call):
    assert json.loads(call("list", "--json")) == []
    with pytest.raises(UsageError, match="no runs folder elsewhere"):
        call("list", "--runs-folder", "elsewhere")


HELD = """
import pathlib, time
from plugrl.core.run import folder
from plugrl.core.run.records.records import Status

made, lock = folder.create(pathlib.Path("runs"), "toy", lambda made: Status(made).write())
print(made.name, flush=True)
time.sleep(600)
"""


def test_a_run_that_was_killed_is_listed_and_asked_for_as_killed(call, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HELD], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        name = process.stdout.readline().strip()
        asked = {"running": [name], "killed": []}
        for state, ids in asked.items():
            assert [r["id"] for r in json.loads(call("list", "--state", state, "--json"))] == ids
        os.kill(process.pid, signal.SIGKILL)
    for words in ((), ("--state", "killed")):
        rows = json.loads(call("list", "--json", *words))
        assert [(row["id"], row["state"]) for row in rows] == [(name, "killed")]
    assert json.loads(call("list", "--state", "running", "--json")) == []


@pytest.mark.parametrize("state", sorted({*get_args(State), "killed", "broken"}))
def test_every_state_can_be_asked_for(call, state):
    assert json.loads(call("list", "--json", "--state", state)) == []
    assert re.search(rf"\b{state}\b", STATE_HELP)


def test_a_state_that_there_is_not_is_answered_with_those_there_are(call, make_run):
    with pytest.raises(UsageError, match="no state 'kiled'; did you mean killed"):
        call("list", "--state", "kiled")
    run = make_run()
    path = run.folder / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "asleep"}))
    [row] = json.loads(call("list", "--json"))
    assert row["state"] == "broken"
    assert "there is no state 'asleep'" in row["error"]


def test_the_docs_have_the_table_of_states():
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text("utf-8")
    table = page.partition("| State | Meaning |")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == STATES
    assert set(STATES) == {*get_args(State), "killed", "broken"}
