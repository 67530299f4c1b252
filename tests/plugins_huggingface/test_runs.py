"""Whole runs over models and data sets of a hub, from `plugrl validate` to `plugrl push`.

The client reads its settings once in a process, so each command is one that has not imported it.
"""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios

import forking
import hub_files
import pytest
import yaml
from hub_server import TOKEN, hub_server
from safetensors.numpy import load_file
from waiting import DEADLINE

pytestmark = pytest.mark.integration

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SECRET = "word-that-nobody-may-read"
SHORT = [
    "trainer.total_train_steps=2", "data.batch_size=2", "data.rollout_repeat_n=2",
    "rollout_worker.max_response_length=8", "validate.every=1", "validate.data.limit=2",
    "models.policy.train.schedule.warmup_steps=1", f"environment.variables.MY_API_KEY={SECRET}",
]  # fmt: skip


#: What commands import, but for what reads the variables of the hub when it is imported.
LIBRARIES = """numpy torch torch._dynamo tensordict omegaconf pluggy rich.console typer
    typer._adapters yaml jinja2 safetensors.torch"""


class Shell:
    """Runs commands in one folder, whose caches are below it."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.env = {
            **os.environ, "HF_ENDPOINT": server.url, "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "0",
        }  # fmt: skip

    def __call__(self, *words, **env):
        return forking.run(
            ["-m", "plugrl", *words], cwd=self.folder, env=self.env | env, libraries=LIBRARIES
        )

    def config(self):
        (file,) = self.folder.glob("runs/gsm8k/*/config.yaml")
        return yaml.safe_load(file.read_text("utf-8"))


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    with hub_server() as server:
        server.model(MODEL, hub_files.model() | {"original/weights.bin": b"x" * 9000})
        server.data_set("openai/gsm8k", hub_files.data_set())
        yield Shell(server, tmp_path_factory.mktemp("hub"))


@pytest.fixture(scope="module")
def trained(shell):
    """The recipe, validated and then trained for two steps; and what the hub was asked before."""
    checked = shell("validate", "gsm8k")
    assert checked.returncode == 0, checked.stderr
    of_validate = list(shell.server.requests)
    done = shell("train", "gsm8k", *SHORT)
    assert done.returncode == 0, done.stderr
    return of_validate, done


def test_validate_downloads_no_weights(trained):
    paths = [path for _, path in trained[0]]
    assert any(path.endswith("config.json") for path in paths)
    assert any("train-00000" in path for path in paths)
    assert not any(".safetensors" in path for path in paths)


def test_the_run_keeps_the_commits(shell, trained):
    config, repos = shell.config(), shell.server.repos
    source = config["models"]["policy"]["source"]
    assert (source["path"], source["revision"]) == (MODEL, repos["model", MODEL].refs["main"])
    assert config["data"]["revision"] == repos["dataset", "openai/gsm8k"].refs["main"]
    assert "downloading model Qwen/Qwen2.5-0.5B-Instruct at" in trained[1].stderr
    assert not shell.server.asked("original/")
    assert not shell.server.asked("socratic")


def test_a_resumed_run_and_its_commands_use_the_pinned_commits(shell, trained, tmp_path):
    server = shell.server
    refs = server.repo("model", MODEL).refs["main"], server.repo("dataset", "openai/gsm8k").refs
    # The branches move on to what no run could use.
    server.model(MODEL, {"config.json": b"{}", "model.safetensors": b"other"})
    server.data_set(
        "openai/gsm8k", {"README.md": b"none", "main/train-00000-of-00001.parquet": b"0"}
    )
    moved = server.repo("model", MODEL).refs["main"]
    assert moved != refs[0]
    before = len(server.asked("/resolve/"))
    (run,) = shell.folder.glob("runs/gsm8k/*")
    config = (run / "config.yaml").read_text("utf-8")
    # As if it had been terminated after two of three steps.
    (run / "config.yaml").write_text(config.replace("total_train_steps: 2", "total_train_steps: 3"))
    status = json.loads((run / "status.json").read_text("utf-8"))
    (run / "status.json").write_text(json.dumps(status | {"state": "terminated"}))
    done = shell("resume", str(run))
    assert done.returncode == 0, done.stderr
    assert "done, 3 steps" in done.stdout
    for words in (
        ("sample", "latest", "hello", "--max-tokens", "2"),
        ("eval", "latest", "test"),
        ("export", "latest", str(tmp_path / "exported")),
    ):
        done = shell(*words, HF_HUB_OFFLINE="1")
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert len(server.asked("/resolve/")) == before
    assert not server.asked(moved)


def test_a_dry_run_lists_what_would_be_pushed(shell, trained):
    done = shell("push", "latest", "me/tiny", "--dry-run")
    assert done.returncode == 0, done.stderr
    listed = [line.split()[-1] for line in done.stdout.splitlines()]
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} < set(listed)
    assert [name for name in listed if name.startswith("run/")] == [
        "run/config.yaml", "run/curve.svg", "run/metrics.jsonl", "run/versions.json",
    ]  # fmt: skip
    assert ("model", "me/tiny") not in shell.server.repos


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        (["me/tiny"], {}, "model me/tiny: there is no token; set HF_TOKEN to one that may write, "
         "or run hf auth login"),
        (["tiny"], {"HF_TOKEN": TOKEN}, "'tiny' is no name on the hub; write owner/name"),
        (["me/tiny"], {"HF_TOKEN": "hf_" + "b" * 34}, "refuses the token (401); set a valid"),
        (["me/tiny"], {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set; unset"),
    ],
)  # fmt: skip
def test_a_push_that_cannot_be_made_is_one_line(shell, trained, words, env, says):
    done = shell("push", "latest", *words, **env)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert ("model", "me/tiny") not in shell.server.repos


def test_a_push_has_weights_records_and_a_card(shell, trained, tmp_path):
    server = shell.server
    done = shell("push", "latest", "me/pushed", HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert re.search(r"pushed policy of \S+ to http://\S+/me/pushed/commit/", done.stdout)
    repo = server.repos["model", "me/pushed"]
    assert repo.private
    files = repo.at("main")[1]
    assert not [name for name, content in files.items() if SECRET.encode() in content]
    assert shell("export", "latest", str(tmp_path / "same")).returncode == 0
    (tmp_path / "pushed.safetensors").write_bytes(files["model.safetensors"])
    ours, theirs = (
        load_file(tmp_path / "same/model.safetensors"),
        load_file(tmp_path / "pushed.safetensors"),
    )
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)
    card = files["README.md"].decode()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["base_model"] == MODEL
    assert metadata["datasets"] == ["openai/gsm8k"]
    assert "self_hosted_grpo" in metadata["tags"]
    assert "`test/correct` went from" in card
    assert "plugrl train run/config.yaml" in card
    assert "plugrl train gsm8k trainer.total_train_steps=2" in card
    assert yaml.safe_load(files["run/config.yaml"])["data"]["name"] == "openai/gsm8k"
    assert b'"transformers"' in files["run/versions.json"]


def test_a_push_to_a_branch_of_a_public_model(shell, trained):
    words = ("push", "latest", "me/public", "--public", "--revision", "seed-1")
    for _ in range(2):
        done = shell(*words, HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
    repo = shell.server.repos["model", "me/public"]
    assert not repo.private
    assert "model.safetensors" in repo.at("seed-1")[1]
    assert "model.safetensors" not in repo.at("main")[1]


def test_a_terminal_sees_a_bar_of_the_download(shell, tmp_path):
    """The client draws bars on a terminal alone."""
    shell.server.model("someone/else", hub_files.model())
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = forking.Process(
        ["-m", "plugrl", "train", "gsm8k", *SHORT, "trainer.total_train_steps=0",
         "validate.enabled=false", "models.policy.source.path=someone/else",
         "data.name=null", "data.subset=null", "data.data_files=[p.jsonl]", "data.map=null"],
        cwd=tmp_path, env=shell.env | {"HF_HOME": str(tmp_path / "hf")}, stderr=theirs,
        stdout=subprocess.DEVNULL, libraries=LIBRARIES,
    )  # fmt: skip
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait(DEADLINE) == 0, shown.decode()[-2000:]
    assert re.search(rb"1/1|100%", shown)


def test_what_plugrl_does_not_read_itself_is_read_by_datasets(shell, tmp_path):
    """Compressed files and repositories without a card, and the real form of save_to_disk."""
    import gzip

    server = shell.server
    rows = b'{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "2"}\n'
    named = b"---\nconfigs:\n- config_name: default\n  data_files: rows.jsonl.gz\n---\n"
    server.data_set("someone/zipped", {"README.md": named, "rows.jsonl.gz": gzip.compress(rows)})
    server.data_set("someone/bare", {"data/train-00000-of-00001.jsonl": rows})
    program = """
import sys
from plugrl.core.hub.hub import DataSetName, find_hub
from plugrl.core.text.data.files import read_files
import datasets
hub = find_hub()
for name in ("someone/zipped", "someone/bare"):
    print([dict(row) for row in hub.problems(DataSetName(name), "train")])
try:
    hub.problems(DataSetName("someone/bare"), "test")
except Exception as error:
    print(error)
table = datasets.Dataset.from_list([{"n": i, "who": {"x": [i]}} for i in range(5)])
table.save_to_disk("saved", num_shards=2)
print([dict(row) for row in read_files(["saved"])] == table.to_list())
datasets.DatasetDict({"a": table}).save_to_disk("several")
print(len(read_files(["several/a"])))
"""
    env = shell.env | {"HOME": str(tmp_path / "home")}
    done = forking.run(["-c", program], cwd=tmp_path, env=env, libraries=LIBRARIES)
    assert done.returncode == 0, done.stderr
    expected = "[{'prompt': 'a', 'answer': '1'}, {'prompt': 'b', 'answer': '2'}]"
    lines = done.stdout.splitlines()
    assert lines[:2] == [expected, expected]
    assert re.fullmatch(r"data set someone/bare: .*test.*", lines[2])
    assert lines[3:] == ["True", "5"]
    assert not (tmp_path / "home").exists()
