"""Whole runs over a real server: what stops them, and how they go on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plugrl.core.experiment import load_run

pytest.importorskip("tinker")
#: A server of its own for four runs: compiled once, killed twice; perhaps built before.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
STEPS = 5


class Started:
    """A command of plugrl in a process of its own."""

    def __init__(self, folder, *words):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plugrl", *map(str, words)],
            cwd=folder,
            env={**os.environ, "TINKER_API_KEY": "tml-word-that-nobody-may-see"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self, seconds=300):
        """Wait; gives the exit code and all that was printed."""
        try:
            text, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"it hangs: {self.process.communicate()[0][-2000:]}") from None
        return self.process.returncode, text


def lines(folder):
    file = folder / "metrics.jsonl"
    read = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in read if "train/loss" in line]


def until_step(started, runs, step, seconds=300):
    """Wait until a run has ended a step; gives its folder."""
    before = time.monotonic()
    while time.monotonic() - before < seconds:
        for folder in runs.glob("*/*"):
            if any(line["step"] >= step for line in lines(folder)):
                return folder
        if started.process.poll() is not None:
            raise AssertionError(started.end()[1][-2000:])
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within {seconds} seconds")


def numbers(folder):
    """(step, loss, mean log-probability) of every step."""
    return [(m["step"], m["train/loss"], m["train/log_prob"]) for m in lines(folder)]


def assert_same(found, expected):
    """The same steps, each once, over the same items, with the same weights."""
    assert [row[0] for row in found] == [row[0] for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row[1:] == pytest.approx(other[1:], abs=1e-5), row[0]


def test_a_run_goes_on_after_whatever_stopped_it(own_server, tree, written, tmp_path):
    def begin(name):
        runs = tmp_path / name
        config = tree(
            own_server.url, trainer__total_train_steps=STEPS, settings__runs_folder=str(runs)
        )
        return Started(tmp_path, "train", written(config)), runs

    started, runs = begin("whole")
    code, text = started.end()
    assert code == 0, text[-2000:]
    (whole,) = runs.glob("*/*")
    expected = numbers(whole)
    assert [row[0] for row in expected] == list(range(1, STEPS + 1))

    # The trainer is killed: no word, no clean end.
    started, runs = begin("killed")
    folder = until_step(started, runs, 2)
    os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()
    code, text = Started(tmp_path, "resume", folder).end()
    assert code == 0, text[-2000:]
    assert_same(numbers(folder), expected)

    # The server hangs: it accepts connections and does not answer.
    started, runs = begin("hung")
    folder = until_step(started, runs, 2)
    own_server.send(signal.SIGSTOP)
    before = time.monotonic()
    code, text = started.end(120)
    own_server.send(signal.SIGCONT)
    assert code == 1, text[-2000:]
    assert time.monotonic() - before < 60
    assert f"the tinker service at {own_server.url} was silent for" in text
    assert "does not answer" in text
    assert f"plugrl resume {folder}" in text
    code, text = Started(tmp_path, "resume", folder).end()
    assert code == 0, text[-2000:]
    assert_same(numbers(folder), expected)

    # The server dies, and comes back with what it had saved.
    started, runs = begin("dead")
    folder = until_step(started, runs, 2)
    own_server.end()
    before = time.monotonic()
    code, text = started.end(120)
    assert code == 1, text[-2000:]
    assert time.monotonic() - before < 60
    assert own_server.url in text
    assert "Connection refused" in text
    code, text = Started(tmp_path, "resume", folder).end(120)
    assert code == 1, text[-2000:]
    assert "Connection refused" in text
    own_server.start()
    code, text = Started(tmp_path, "resume", folder).end()
    assert code == 0, text[-2000:]
    assert_same(numbers(folder), expected)

    # Another server at the same place knows nothing of the run.
    started, runs = begin("lost")
    folder = until_step(started, runs, 2)
    own_server.end()
    own_server.start(fresh=True)
    code, text = started.end(120)
    assert code == 1, text[-2000:]
    code, text = Started(tmp_path, "resume", folder).end()
    assert code == 1, text[-2000:]
    assert "has lost what is needed to load tinker://" in text

    for file in tmp_path.rglob("*"):
        if file.is_file() and "server" not in file.name and "state" not in str(file.parent):
            assert b"nobody-may-see" not in file.read_bytes(), file


def trained(tree_, written, tmp_path):
    code, text = Started(tmp_path, "train", written(tree_)).end(600)
    assert code == 0, text[-3000:]
    (folder,) = Path(tree_["settings"]["runs_folder"]).glob("*/*")
    return load_run(folder)


def test_supervised_training_is_right_more_often(server, tree, written, tmp_path):
    run = trained(
        tree(
            server.url, data__batch_size=64, scenario__demonstrations=3000,
            scenario__validation=100, trainer__total_train_steps=30, validate={"every": 30},
            settings__checkpoint_every=0,
        ),
        written, tmp_path,
    )  # fmt: skip
    scores = [m["validation/exact_match"] for m in run.metrics if "validation/exact_match" in m]
    assert scores[-1] >= scores[0] + 0.1, scores
    parities = [m["sync/parity"] for m in run.metrics if "sync/parity" in m]
    assert len(parities) == 30
    assert max(parities) < 1e-4


@pytest.mark.slow
def test_rewards_alone_teach_too(server, tree, written, tmp_path):
    run = trained(
        tree(
            server.url, "remote_api_grpo", data__batch_size=16, data__rollout_repeat_n=8,
            scenario__validation=100, models__policy__train__lora_rank=16,
            models__policy__train__learning_rate=0.001, trainer__total_train_steps=30,
            validate={"every": 30}, settings__checkpoint_every=0,
        ),
        written, tmp_path,
    )  # fmt: skip
    scores = [m["validation/exact_match"] for m in run.metrics if "validation/exact_match" in m]
    # 0.28 to 0.41 after 25 steps where it was measured.
    assert scores[-1] >= scores[0] + 0.05, scores
    kl = [m["train/kl_to_sampler"] for m in run.metrics if "train/kl_to_sampler" in m]
    assert max(kl) < 1e-6, "one optimizer step a batch: the sampler's weights are the trained ones"


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_of_an_earlier_phase(
    server, tree, written, tmp_path, adder
):
    config = tree(server.url, "sequence", settings__checkpoint_every=0)
    policy, worker = config["models"].pop("policy"), config.pop("rollout_worker")
    data = config.pop("data")
    service, train = policy["inference"], policy["train"]
    config["models"] = {"policy": {"source": policy["source"], "inference": service}}
    config["models"]["teacher"] = dict(config["models"]["policy"])
    config["scenario"]["demonstrations"] = 3000
    config["rollout_worker"] = {**worker, "type": "single_turn"}
    config["trainer"] = {
        "type": "sequence",
        "phases": [
            {
                "name": "teacher",
                "models": {"teacher": {"train": train}},
                "data": {**data, "split": "demonstrations", "batch_size": 64},
                "rollout_worker": {"type": "demonstration", "model": "teacher"},
                "trainer": {"type": "remote_api_cross_entropy", "total_train_steps": 25},
            },
            {
                "name": "student",
                "models": {"policy": {"train": {**train, "learning_rate": 0.002}}},
                "data": {"split": "train", "batch_size": 16, "rollout_repeat_n": 4},
                "trainer": {"type": "remote_api_opd", "total_train_steps": 15},
            },
        ],
    }
    run = trained(config, written, tmp_path)
    gaps = [m["train/teacher_kl"] for m in run.metrics if "train/teacher_kl" in m]
    assert len(gaps) == 15
    assert gaps[0] > 0.05, "the student was the teacher from the beginning"
    # The mean of five steps fell from 0.25 to 0.13 within ten where it was measured.
    assert sum(gaps[-5:]) < 0.8 * sum(gaps[:5]), gaps
