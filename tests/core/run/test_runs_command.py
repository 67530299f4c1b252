import json

import pytest
from typer.testing import CliRunner

from plugrl.commands.runs import app
from plugrl.core.errors import UsageError


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
    killed._ending._lock.release()
    root = tmp_path / "runs" / "toy"
    for name, text in (("z-empty", ""), ("z-list", "[]"), ("z-stateless", "{}")):
        (root / name).mkdir()
        (root / name / "status.json").write_text(text)
    (root / "z-headless").mkdir()
    (root / "z-headless" / "config.yaml").write_text("a: 1")
    (root / "notes").mkdir()
    (root / ".tmp-half").mkdir()
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
    assert "value" in call("show", "toy")
    with pytest.raises(UsageError, match="no run 'nothing'"):
        call("show", "nothing")


def test_no_runs_is_an_empty_list_and_a_wrong_folder_an_error(call):
    assert json.loads(call("list", "--json")) == []
    with pytest.raises(UsageError, match="no runs folder elsewhere"):
        call("list", "--runs-folder", "elsewhere")
