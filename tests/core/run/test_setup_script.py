"""``environment.setup_script``: what it exports reaches the run, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import forking
import pytest
import yaml
from waiting import DEADLINE

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.run.process import setup_script
from plugrl.core.run.process.setup_script import apply_setup_script, exported_variables

SECRET = "s3cret-value"
REMEDY = "correct it; plugrl validate --setup tries it without training"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def script(text: str) -> str:
    Path("b.sh").write_text(text, encoding="utf-8")
    return "b.sh"


def fault(text: str, seconds: float = 20.0) -> str:
    with pytest.raises(ConfigError) as caught:
        exported_variables(script(text), seconds)
    (line,) = caught.value.faults
    assert "\n" not in line
    return line.removeprefix("environment.setup_script b.sh ")


def gone(group: int) -> bool:
    """Whether a process group ends within two seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


# What counts.


def test_what_it_exports_and_nothing_else(monkeypatch, capfd):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("CHANGED", "1")
    text = """#!/bin/bash
echo hello
inner=2
export KEPT=1 CHANGED=$inner
export MANY=$'x\\ny='
export EMPTY=
for i in 1 2; do export LAST=$i; done
IFS=,
cd /
"""
    assert exported_variables(script(text)) == {
        "CHANGED": "2",
        "MANY": "x\ny=",
        "EMPTY": "",
        "LAST": "2",
    }
    assert capfd.readouterr() == ("", "hello\n")
    assert os.environ["CHANGED"] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "export A=1\nexit 0\n",
        "export A=1\nreturn\necho never\n",
        "set -a\nA=1\nset +a\n",
        "set -u\nexport A=1\n",
        "trap 'echo bye' EXIT\nexport A=1\n",
        "[ -f none ] && echo there\nif false; then echo; fi\nfalse || export A=1\n",
        "set +e\nfalse\nexport A=1\n",
        "env() { echo mine; }\nexport A=1\n",
    ],
)
def test_ways_to_write_and_to_end_it(text):
    assert exported_variables(script(text)) == {"A": "1"}


def test_bytes_functions_a_path_without_programs_and_what_is_unset(monkeypatch):
    monkeypatch.setenv("GONE", "1")
    text = "f() { echo hi; }\nexport -f f\nexport B=$'\\xff' PATH=/none\nunset GONE HOME\n"
    changes = exported_variables(script(text))
    assert changes.pop("BASH_FUNC_f%%").startswith("() {")
    home = {"HOME": None} if "HOME" in os.environ else {}
    assert changes == {"B": "\udcff", "PATH": "/none", "GONE": None, **home}


def test_what_the_shell_does_to_variables_of_its_own_is_no_change(monkeypatch):
    """A shell that is not interactive drops prompts, as an activated environment exports them."""
    own = {"PS1": "$ ", "PS2": "> ", "PS4": "+ ", "IFS": ",", "OPTIND": "3", "COLUMNS": "7"}
    for name, value in (own | {"SHELLOPTS": "braceexpand", "BASHOPTS": "cmdhist"}).items():
        monkeypatch.setenv(name, value)
    assert exported_variables(script("export PS1='(venv) $ ' A=1\n")) == {"A": "1"}


def test_a_process_takes_it_over_once(monkeypatch):
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("MADE", "0")
    path = script("echo x >> times\nexport MADE=1\nunset GONE\n")
    for _ in range(2):
        monkeypatch.setenv("MADE", "0")
        apply_setup_script(path)
        assert os.environ["MADE"] == "1"
        assert "GONE" not in os.environ
    assert Path("times").read_text(encoding="utf-8") == "x\n"
    script("echo x >> times\nexport MADE=22\n")
    apply_setup_script(path)
    assert (os.environ["MADE"], Path("times").read_text(encoding="utf-8")) == ("22", "x\nx\n")


# How it fails.


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "export A=1\necho one\necho two >&2\n\nexit 3\n",
            f"failed with exit code 3 in line 5; the last it printed: two; {REMEDY}",
        ),
        ("true\nfalse\ntrue\n", "failed with exit code 1 in line 2; correct it"),
        ("f() {\n  false\n}\ntrue\nf\n", "failed with exit code 1 in line 2"),
        ("true\nreturn 5\n", "failed with exit code 5 in line 2"),
        ("\nsource inner.sh\n", "failed with exit code 4 in line 3 of inner.sh"),
        ("exec true\n", "ended the shell before its variables could be read; write `return`"),
        ("kill -9 $$\n", f"failed with exit code -9; {REMEDY}"),
    ],
)
def test_a_script_that_fails_says_where(text, line):
    Path("inner.sh").write_text("true\n\nexit 4\n", encoding="utf-8")
    assert fault(text).startswith(line)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("export A=1\nif true; then\n", "line 3: syntax error: unexpected end of file"),
        ("\nno_such_command_here\n", "line 2: no_such_command_here: command not found"),
        ("set -u\necho $NOPE\n", "line 2: NOPE: unbound variable"),
    ],
)
def test_what_bash_says_of_it_is_told(text, end):
    assert fault(text).endswith(f"{end}; {REMEDY}")


def test_a_script_that_asks_gets_no_answer():
    assert fault("read -r answer\n").startswith("failed with exit code 1 in line 1")


def test_bytes_that_are_no_text_and_marks_that_steer_a_terminal(capfd):
    line = fault("printf '\\xff\\x1b[31mred\\n'\nexit 2\n")
    last = "the last it printed: \ufffd\\x1b[31mred"
    assert line == f"failed with exit code 2 in line 2; {last}; {REMEDY}"
    assert "\x1b" not in capfd.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize("loop", ["while :; do :; done", "sleep 100", "sleep 100 & wait"])
def test_a_script_without_end(loop):
    begin = time.monotonic()
    line = fault(f"echo $$ > pid\necho begun\n{loop}\n", 0.4)
    assert time.monotonic() - begin < 5
    assert line.startswith("ran longer than 0.4 seconds; the last it printed: begun; allow more")
    assert "settings.deadlines.setup_script" in line
    assert gone(int(Path("pid").read_text(encoding="utf-8")))


def test_a_script_that_prints_without_end(monkeypatch):
    monkeypatch.setattr(setup_script, "MOST", 100_000)
    assert fault("yes\n").startswith("printed more than 100,000 bytes; the last it printed: y")


def test_what_it_starts_in_the_background_goes_on():
    text = "(sleep 0.3; echo late; touch late) &\nexport A=1\n"
    begin = time.monotonic()
    assert exported_variables(script(text)) == {"A": "1"}
    assert time.monotonic() - begin < 0.3
    while not Path("late").exists():
        assert time.monotonic() - begin < 10
        time.sleep(0.02)


def test_without_bash(monkeypatch):
    monkeypatch.setenv("PATH", "/none")
    assert fault("true\n").startswith("needs bash and env, which are not on the PATH")


# In commands.

SEEN = """
import os, subprocess
from plugrl import Trainer

class Seen(Trainer):
    sections = {}

    def train(self):
        child = subprocess.check_output(["printenv", "FIRST"], text=True).strip()
        name = self.hyper_params.project_name
        print("SEEN", os.environ["FIRST"], os.environ["BOTH"], child, name)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass
"""
TREE = {
    "project_name": "${oc.env:MADE_BY_SCRIPT}",
    "environment": {"setup_script": "b.sh", "variables": {"BOTH": "variables"}},
    "trainer": {"custom_trainer_module_path": "seen.py", "custom_trainer_class_name": "Seen"},
}
EXPORTS = f"""echo x >> times
export FIRST=script BOTH=script MADE_BY_SCRIPT=name API_KEY={SECRET}
"""


def plugrl(*words: str) -> subprocess.CompletedProcess[str]:
    return forking.run(["-m", "plugrl", *words], env={**os.environ, "PYTHONPATH": ""})


@pytest.fixture
def config() -> Path:
    script(EXPORTS)
    Path("seen.py").write_text(SEEN, encoding="utf-8")
    Path("a.yaml").write_text(yaml.safe_dump(TREE), encoding="utf-8")
    return Path("a.yaml")


def test_a_run_has_its_variables_and_its_folder_does_not(config):
    done = plugrl("train", "a.yaml")
    assert done.returncode == 0, done.stderr
    assert "SEEN script variables script name" in done.stdout
    (run,) = Path("runs/experiment").iterdir()
    for path in run.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in done.stdout + done.stderr
    assert "sets: API_KEY, BOTH, FIRST, MADE_BY_SCRIPT" in done.stderr
    tree = yaml.safe_load((run / "config.yaml").read_text())
    assert tree["environment"]["setup_script"] == str(Path("b.sh").absolute())
    assert tree["project_name"] == "${oc.env:MADE_BY_SCRIPT}"


def test_validate_runs_it_only_when_it_is_asked_to(config):
    done = plugrl("validate", "a.yaml", "--json")
    assert done.returncode == 2
    (line,) = json.loads(done.stdout)["faults"]
    hint = "let environment.setup_script export it (plugrl validate --setup runs it)"
    assert hint in line
    assert not Path("times").exists()
    assert plugrl("validate", "a.yaml", "--setup").returncode == 0
    assert Path("times").exists()


def test_an_empty_path_is_no_script(config):
    words = ["environment.setup_script=''", "project_name=x"]
    assert (
        prepare("a.yaml", words, setup=True).validated.tree["environment"]["setup_script"] is None
    )
    assert not Path("times").exists()


def test_a_script_may_write_the_files_that_the_configuration_names(monkeypatch):
    monkeypatch.setenv("WHERE", "none")
    line = '{"prompt": "1+1=", "answer": "2"}'
    script(f"export WHERE=made.jsonl\necho '{line}' > made.jsonl\n")
    words = ["environment.setup_script=b.sh", "data.data_files=['${oc.env:WHERE}']"]
    with pytest.raises(ConfigError, match="no such file: none"):
        prepare("sft", words)
    tree = prepare("sft", words, setup=True).validated.tree
    assert tree["data"]["data_files"] == [str(Path("made.jsonl").absolute())]


@pytest.mark.integration
def test_a_folder_is_refused_at_its_key():
    Path("sub").mkdir()
    with pytest.raises(ConfigError, match="sub is a folder; name a file") as caught:
        prepare("quickstart", ["environment.setup_script=sub"])
    assert "environment.setup_script (command line): " in str(caught.value)
    for key, path, said in (
        ("agent_config", "sub", "is a folder; name a file"),
        ("agent_workspace", script("true\n"), "is no folder; name one"),
    ):
        words = [f"rollout_worker={{type: agent, {key}: {path}}}"]
        with pytest.raises(ConfigError, match=rf"rollout_worker\.{key} .*{said}"):
            prepare("quickstart", words)


def test_a_failure_before_the_run_leaves_no_run(config):
    script("export FIRST=1\nexit 3\n")
    done = plugrl("train", "a.yaml")
    assert done.returncode == 2
    where = f"error: environment.setup_script {Path('b.sh').absolute()}"
    assert done.stderr.splitlines() == [f"{where} failed with exit code 3 in line 2; {REMEDY}"]
    assert not Path("runs").exists()


def test_its_time_limit_is_a_deadline_of_the_settings(config):
    script("sleep 100\n")
    done = plugrl("train", "a.yaml", "settings.deadlines.setup_script=0.3")
    assert done.returncode == 2
    assert "ran longer than 0.3 seconds" in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_script_too(config, number, code):
    script("echo $$ > pid\nwhile :; do sleep 0.1; done\n")
    words = ["-m", "plugrl", "train", "a.yaml"]
    with forking.Process(words, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (
            Path("pid").exists() and Path("pid").read_text(encoding="utf-8")
        ):
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == code
    assert len(err.strip().splitlines()) == 1, err
    assert gone(int(Path("pid").read_text(encoding="utf-8")))


@pytest.mark.integration
def test_resume_and_sweep_have_its_variables(config):
    assert plugrl("train", "a.yaml").returncode == 0
    (run,) = Path("runs/experiment").iterdir()
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    done = plugrl("resume", str(run))
    assert "SEEN script variables script name" in done.stdout, done.stderr
    Path("times").unlink()
    done = plugrl("sweep", "a.yaml", "seed=1,2")
    assert done.stdout.count("SEEN script variables script name") == 2, done.stderr
    assert Path("times").read_text(encoding="utf-8") == "x\n"


JUDGE = """
import os
from plugrl import EvaluationRunResult, Evaluator

class Judge(Evaluator):
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(reward=float(os.environ["REWARD"]))
"""


@pytest.mark.integration
def test_worker_processes_and_eval_have_its_variables(monkeypatch):
    monkeypatch.delenv("REWARD", raising=False)
    script("export REWARD=0.25\n")
    Path("judge.py").write_text(JUDGE, encoding="utf-8")
    tree = {
        "defaults": ["common/adder", "_self_"],
        "environment": {"setup_script": "b.sh"},
        "models": {"policy": {"train": "local"}},
        "data": {"batch_size": 2, "rollout_repeat_n": 2},
        "rollout_worker": {"evaluator_module_path": "judge.py:Judge", "processes": 1},
        "validate": {"data": {"limit": 2}},
        "trainer": {"type": "self_hosted_grpo", "total_train_steps": 1},
    }
    Path("a.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    done = plugrl("train", "a.yaml")
    assert done.returncode == 0, done.stderr
    (run,) = Path("runs/experiment").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["rollout/reward"] == 0.25
    done = plugrl("eval", str(run), "validation", "--json")
    assert done.returncode == 0, done.stderr
    assert "0.25" in done.stdout
