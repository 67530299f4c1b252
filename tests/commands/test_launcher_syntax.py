"""Command lines as launchers of clusters and Hydra spell them."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import forking
import pytest

from plugrl.commands._launcher_syntax import translate_words
from plugrl.core.errors import UsageError


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("recipe/my_task/my_task.yaml", "recipe/other.yml", "own/mine.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("defaults: [sft]\nexperiment_name: mine\n")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("train quickstart seed=1", "train quickstart seed=1"),
        ("train recipe=my_task/my_task seed=1", "train recipe/my_task/my_task.yaml seed=1"),
        ("train seed=1 recipe=other", "train recipe/other.yml seed=1"),
        ("train recipe=own/mine.yaml", "train own/mine.yaml"),
        ("train recipe=recipe/my_task/my_task.yaml", "train recipe/my_task/my_task.yaml"),
        ("train recipe=quickstart", "train quickstart"),
        ("train --config-path own --config-name mine", "train mine --config-path own"),
        ("train --config-path=own --config-name=mine a=b", "train mine --config-path own a=b"),
        ("train -cd own -cn mine", "train mine --config-path own"),
        ("validate recipe=other --json", "validate recipe/other.yml --json"),
        ("--debug train recipe=other", "--debug train recipe/other.yml"),
        ("-p no:x -p y train recipe=other", "-p no:x -p y train recipe/other.yml"),
        ("sweep a.yaml recipe=other", "sweep a.yaml recipe=other"),
        ("-m self-hosted -c a.yaml --run-nexrl", "launch -m self-hosted -c a.yaml --run-nexrl"),
        ("--mode=self-hosted -c=a.yaml", "launch --mode=self-hosted -c=a.yaml"),
        ("launch recipe=other --on ray", "launch recipe/other.yml --on ray"),
        ("launch a.yaml -m self-hosted", "launch a.yaml -m self-hosted"),
        ("runs list", "runs list"),
        ("--help", "--help"),
        ("", ""),
    ],
)
def test_what_names_a_configuration(line, meant):
    assert translate_words(line.split()) == meant.split()


URL = "service.inference_service.type=openai service.inference_service.base_url="


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("train -m self-hosted -c recipe/a.yaml --run-nexrl", "plugrl train recipe/a.yaml"),
        ("train --mode training-service --train-config a.yaml -r", "plugrl train a.yaml"),
        ("train --mode=self-hosted --train-config=a.yaml", "plugrl train a.yaml"),
        ("train -c 'a.yaml' -r -t exp-v2", "plugrl train 'a.yaml' experiment_name=exp-v2"),
        ("train -c a.yaml --inference-url my:8000", f"a.yaml {URL}http://my:8000/v1"),
        ("validate -c a.yaml --inference-url https://x/v1", f"a.yaml {URL}https://x/v1"),
        ("train -m self-hosted -c a.yaml seed=1", "plugrl train a.yaml seed=1"),
        ("train a.yaml --mode self-hosted", "plugrl train a.yaml"),
        ("train -m self-hosted", "plugrl train FILE"),
        ("train a.yaml --multirun seed=1,2", "plugrl sweep FILE KEY=A,B"),
        ("train a.yaml --cfg job", "plugrl config show FILE"),
    ],
)
def test_a_launcher_is_answered_with_the_command(line, answer):
    with pytest.raises(UsageError) as caught:
        translate_words(shlex.split(line))
    assert str(caught.value).endswith(answer.replace("'", ""))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train recipe=", "recipe= needs a value"),
        ("train --config-name", "--config-name needs a value"),
        ("train --config-name a recipe=b", "two configurations are named, a and b: write"),
    ],
)
def test_what_names_none_or_two(line, said):
    with pytest.raises(UsageError, match=said):
        translate_words(line.split())


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return forking.run(words)


def test_modules_of_the_same_names():
    done = python("-m", "plugrl.validator", "recipe=my_task/my_task", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["ok"] is True
    done = python("-m", "plugrl", "-m", "training-service", "-c", "recipe/other.yml", "-r")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    done = python("-m", "plugrl.main", "recipe=none/none")
    assert done.returncode == 2
    assert done.stderr.startswith("error: none/none: no such file or recipe")


@pytest.mark.integration
def test_training_by_the_name_of_a_recipe():
    words = ["recipe=my_task/my_task", "trainer.total_train_steps=1", "validate.enabled=false"]
    done = python("-m", "plugrl.main", *words)
    assert done.returncode == 0, done.stderr
    assert len(list(Path("runs/mine").iterdir())) == 1
