"""Bad input through the command: one line, the right exit code, no half-written run."""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forking
import pytest
import yaml
from waiting import DEADLINE

from plugrl.cli import main

MODEL = {
    "model_type": "qwen3",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 16,
}

JUDGES = """
from plugrl import BaseEvaluationTarget, EvaluationRunResult, Evaluator

class Raising(Evaluator):
    def evaluate(self, data, evaluation_target):
        raise ZeroDivisionError("no units")

class Nan(Evaluator):
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(reward=float("nan"))

class WrongType(Evaluator):
    def evaluate(self, data, evaluation_target):
        return 1.0

class Sometimes(Evaluator):
    calls = 0

    def evaluate(self, data, evaluation_target):
        Sometimes.calls += 1
        if Sometimes.calls % 2:
            raise ZeroDivisionError("no units")
        return EvaluationRunResult(reward=1.0)
"""


def config(**sections):
    tree = {
        "experiment_name": "bad",
        "scenario": {
            "type": "arithmetic",
            "digits": 1,
            "validation": 4,
            "development": 4,
            "demonstrations": 4,
        },
        "models": {
            "policy": {
                "source": {"config": MODEL, "tokenizer": {"characters": "0123456789+="}},
                "train": {"type": "local"},
            }
        },
        "rollout_worker": {
            "max_prompt_length": 4,
            "max_response_length": 3,
            "evaluator": "exact_match",
        },
        "data": {"batch_size": 2, "rollout_repeat_n": 2},
        "validate": {"enabled": False},
        "trainer": {"type": "self_hosted_grpo", "total_train_steps": 2},
        "settings": {"torch_threads": 1, "progress": "none", "device": "cpu"},
    }
    return {**tree, **sections}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
    (tmp_path / "judges.py").write_text(JUDGES)
    return tmp_path


def plugrl(folder, *words, prefix=()):
    """Run a command: in this process, or after the words of ``prefix`` in a new one."""
    if prefix:
        command = [*prefix, sys.executable, "-m", "plugrl", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
            code = 0
        except SystemExit as end:
            code = end.code or 0
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def runs(folder):
    listed = plugrl(folder, "runs", "list", "--json")
    assert listed.returncode == 0, listed.stderr
    return json.loads(listed.stdout)


def refused(folder, *words, code=2, says=(), prefix=()):
    """Run a command that must fail with one error line; returns the line."""
    result = plugrl(folder, *words, prefix=prefix)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1, result.stderr
    for fragment in says:
        assert fragment in errors[0]
    return errors[0]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["exp2.yaml"], 2, ["exp2.yaml", "no such file"]),
        (["quickstrat"], 2, ["quickstrat", "quickstart"]),
        (
            ["exp.yaml", "data.batch_siz=4"],
            2,
            ["data.batch_siz (command line)", "unknown key", "batch_size"],
        ),
        (
            ["exp.yaml", "data.batch_size=many"],
            2,
            ["data.batch_size (command line)", "whole number", "'many'"],
        ),
        (
            ["exp.yaml", "trainer.type=self_hosted_grop"],
            2,
            ["trainer.type (command line)", "self_hosted_grop", "self_hosted_grpo"],
        ),
        (
            ["exp.yaml", "data.data_files=[none.jsonl]"],
            2,
            ["data.data_files[0] (command line)", "no such file", "none.jsonl"],
        ),
    ],
)
def test_a_wrong_configuration_starts_no_run(folder, words, code, says):
    refused(folder, "train", *words, code=code, says=says)
    assert runs(folder) == []
    assert not (folder / "runs").exists()


def test_yaml_syntax_is_one_line_with_its_line(folder):
    (folder / "exp.yaml").write_text("seed: 0\ndata: {batch_size: 2\ntrainer: x\n")
    refused(folder, "train", "exp.yaml", says=["exp.yaml:"])
    assert not (folder / "runs").exists()


def test_several_faults_are_one_report(folder):
    result = plugrl(folder, "train", "exp.yaml", "data.batch_siz=4", "seed=x")
    assert result.returncode == 2
    assert [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert "data.batch_siz (command line)" in result.stderr
    assert "seed (command line)" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_extra_is_named_with_its_installation(folder, monkeypatch):
    # A module that cannot be imported stands for one that is not installed.
    modules = ("tensorboard", "torch.utils.tensorboard")
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    line = refused(folder, "train", "exp.yaml", "trackers=[tensorboard]")
    assert 'pip install "plugrl[tensorboard]"' in line
    assert runs(folder) == []


@pytest.mark.parametrize(
    "content", [None, "a file", "", "{", "[]", '{"model_type": "no-such-model"}']
)
def test_an_unreadable_model_folder_is_named(folder, content):
    if content == "a file":
        (folder / "weights").write_text("")
    elif content == "":
        (folder / "weights").mkdir()
    elif content is not None:
        (folder / "weights").mkdir()
        (folder / "weights" / "config.json").write_text(content)
    tree = config(models={"policy": {"source": {"path": "weights"}, "train": {"type": "local"}}})
    (folder / "exp.yaml").write_text(yaml.safe_dump(tree))
    refused(folder, "train", "exp.yaml", says=["models.policy.source.path", "weights"])
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("d.jsonl", '{"question": "1+1=", "answer": "02"}\n', ["no column 'prompt'", "question"]),
        ("d.csv", "question,answer\n1+1=,02\n", ["no column 'prompt'", "question"]),
        ("d.jsonl", "", ["d.jsonl", "holds no problems"]),
        ("d.csv", "", ["d.csv", "holds no problems"]),
        ("d.csv", "prompt,answer\n", ["d.csv", "holds no problems"]),
        ("d.jsonl", '{"prompt": \n', ["d.jsonl:1"]),
        ("d.jsonl", '["1+1="]\n', ["d.jsonl:1", "object"]),
        ("d.parquet", "no parquet", ["d.parquet"]),
        ("d.txt", "1+1=", ["d.txt", "unknown type", ".parquet"]),
    ],
)
def test_bad_data_is_named_and_starts_nothing(folder, name, text, says):
    (folder / name).write_text(text)
    refused(folder, "train", "exp.yaml", f"data.data_files=[{name}]", says=says)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "12345=", "answer": "1"}\n', ["prompt of 6 tokens", "=4"]),
        ('{"prompt": "1*1=", "answer": "1"}\n', ["no character '*'", "characters"]),
        ('{"prompt": "", "answer": "1"}\n', ["empty prompt"]),
        ('{"prompt": "1+1=", "answer": "1"}\n{"x": 1}\n', [":2 has no column 'prompt'"]),
    ],
)
def test_bad_problems_fail_the_run(folder, text, says):
    (folder / "d.jsonl").write_text(text)
    refused(folder, "train", "exp.yaml", "data.data_files=[d.jsonl]", code=1, says=says)
    assert [run["state"] for run in runs(folder)] == ["failed"]
    assert not list(folder.glob("runs/*/*/checkpoints/step-*"))


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        ("Raising", "Raising raised ZeroDivisionError: no units"),
        ("Nan", "Nan returned reward nan"),
        ("WrongType", "WrongType returned float"),
    ],
)
def test_an_evaluator_that_never_judges_ends_the_run_by_name(folder, judge, says):
    refused(
        folder,
        "train",
        "exp.yaml",
        f"rollout_worker.evaluator_module_path=judges.py:{judge}",
        "trainer.total_train_steps=20",
        code=1,
        says=["no reward was valid in 3 steps in a row", "max_invalid_steps", says],
    )
    (run,) = runs(folder)
    assert run["state"] == "failed"
    assert says in run["error"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("trainer.total_train_steps=1", "no reward was valid in any of 1 steps"),
        ("validate.enabled=true", "none of the 4 attempts of validation is valid"),
    ],
)
def test_a_short_run_without_one_judgement_is_not_done(folder, word, says):
    judge = "rollout_worker.evaluator_module_path=judges.py:Raising"
    says = [says, "Raising raised ZeroDivisionError: no units"]
    refused(folder, "train", "exp.yaml", judge, word, code=1, says=says)
    (run,) = runs(folder)
    assert run["state"] == "failed"
    # The last step is saved; taking it up again must not turn the run into a done one.
    resumed = plugrl(folder, "resume", run["path"])
    assert resumed.returncode == 1, resumed.stderr
    assert runs(folder)[0]["state"] == "failed"


def test_an_evaluator_that_fails_sometimes_is_counted(folder):
    result = plugrl(
        folder, "train", "exp.yaml", "rollout_worker.evaluator_module_path=judges.py:Sometimes"
    )
    assert result.returncode == 0, result.stderr
    (run,) = runs(folder)
    assert run["state"] == "done"
    lines = (folder / run["path"] / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    # Every second call of four a step fails.
    assert [line["rollout/invalid"] for line in steps if "rollout/invalid" in line] == [0.5, 0.5]
    assert [line["rollout/reward"] for line in steps if "rollout/reward" in line] == [1.0, 1.0]


@pytest.mark.integration
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="drops the rights of root"
)
def test_an_unwritable_run_folder_is_one_line(folder):
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # Other users may not enter the folders of tmp_path.
    with tempfile.TemporaryDirectory() as name:
        open_to_all = Path(name)
        open_to_all.chmod(0o755)
        shutil.copy(folder / "exp.yaml", open_to_all)
        command = [*prefix, sys.executable, "-c", "import plugrl"]
        if subprocess.run(command, check=False, cwd=open_to_all, capture_output=True).returncode:
            pytest.skip("another user cannot start this Python")
        refused(
            open_to_all,
            "train",
            "exp.yaml",
            says=["cannot make the run folder", "not writable"],
            prefix=prefix,
        )
        assert [path.name for path in open_to_all.iterdir()] == ["exp.yaml"]


def test_a_runs_folder_that_is_a_file_is_one_line(folder):
    (folder / "taken").write_text("mine")
    says = ["cannot make the run folder", "taken", "settings.runs_folder"]
    refused(folder, "train", "exp.yaml", "settings.runs_folder=taken", says=says)
    assert (folder / "taken").read_text() == "mine"
    assert runs(folder) == []


@pytest.mark.integration
def test_a_second_process_on_one_run_is_refused_and_harms_nothing(folder):
    command = ["-m", "plugrl", "train", "exp.yaml", "trainer.total_train_steps=100000"]
    first = forking.Process(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        limit = time.monotonic() + DEADLINE
        while not list(folder.glob("runs/*/*/metrics.jsonl")):
            assert first.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.2)
        (run,) = runs(folder)
        refused(folder, "resume", run["path"], says=[str(first.pid)])
        assert first.poll() is None
        assert runs(folder)[0]["state"] == "running"
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(DEADLINE) == 143
    assert runs(folder)[0]["state"] == "terminated"


def test_what_is_no_run_is_not_resumed(folder):
    (folder / "empty").mkdir()
    for name in ("empty", "missing"):
        refused(folder, "resume", name, says=[name])


@pytest.mark.integration
def test_a_process_ends_with_the_same_line_and_code(folder):
    words = ["exp.yaml", "rollout_worker.evaluator_module_path=judges.py:Raising"]
    done = forking.run(["-m", "plugrl", "train", *words, "trainer.total_train_steps=1"])
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert "Raising raised ZeroDivisionError: no units" in errors[0]
    assert "Traceback" not in done.stderr
    done = forking.run(["-m", "plugrl", "train", "exp.yaml", "data.batch_siz=4"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
