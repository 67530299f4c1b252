"""Every remedy that the testing kit and the front of the package recommend is tried, and helps."""

from __future__ import annotations

import ast
import contextlib
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from remedies import MODEL, ROOMS, untried
from trials import Read, Trial, tiered_trials

import plugrl
from plugrl.api import data_section
from plugrl.core.experiment import prepare
from plugrl.results import RunResult

#: Texts that name no key, value or command.
REASONS = {
    "path must be text or a Path, not {}; write ": "of an object in code: tests/test_api.py",
    "the rows of data, of type {}, cannot be read": "of an object in code: tests/test_api.py",
    "a section holds itself; give plain values": "of an object in code: tests/test_api.py",
    "validation must be files, splits of the data set": "of an object in code: tests/test_api.py",
    "def add(a, b): return add": "a program that a sandbox runs",
    "def add(a, b): return a + b": "a program that a sandbox runs",
    "def add(a, b): return 10 ** 100000": "a program that a sandbox runs",
    "def f(x, y): return {": "a program that a sandbox runs",
    "def f(): return": "a program that a sandbox runs",
    "raise SystemExit(3)": "a program that a sandbox runs",
    "the fixture {} is now called {}; write {}": "of a test of users: tests/testing",
    "train() ended no step; call": "of the code of a trainer",
    "plugrl has no {}; write {}": "of an import in code",
    "model is of type {}; give a folder": "of an object in code: tests/test_api.py",
    "environment is of type {}; register it": "of an object in code: tests/test_api.py",
    "use random.Random(seed) or numpy.random.default_rng(seed)": "of the code of a scenario",
    "and load_state_dict did not bring it back": "of the code of a trainer",
}


class Taken:
    """What a run of two policies holds."""

    _shown = "runs/x"
    policies = {"a": 1, "b": 2}


def taken(name):
    if name is None:
        RunResult.policy.fget(Taken())
    assert Taken.policies[name]


def given_data(data):
    with TemporaryDirectory() as folder:
        data_section(data, folder)


def my_reward(prompts, completions):
    return [0.0 for _ in completions]


def saved(reward):
    """A configuration of a program, written to a file that is checked."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("a.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4, encoding="utf-8")
        text = "def my_reward(prompts, completions):\n    return [0.0 for _ in completions]\n"
        Path("rewards.py").write_text(text, encoding="utf-8")
        limits = {"max_prompt_length": 8, "max_response_length": 8}
        learner = plugrl.GRPO(MODEL["source"], "a.jsonl", reward, **limits)
        prepare(learner.save("run.yaml"))


def dictionary(text):
    return ast.literal_eval(text.replace("...", "'x'"))


#: What code says, and what it takes instead.
TRIALS = [
    Trial("a YAML file cannot hold a reward function; write it to a file and give", saved,
          my_reward, Read(r"give reward=(\{.*\})$", dictionary)),
    Trial("has not one policy, but {}; take policies[NAME]", taken, None,
          Read(r"but (\w+),", str)),
    *(
        Trial("data must be files, a data set of the hub, rows as mappings or a section",
              given_data, 3, Read(pattern, dictionary))
        for pattern in (r"write data=('[^']*')", r", data=('[^']*')", r"or data=(\[.*\])$")
    ),
]  # fmt: skip


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_of_code_helps(trial):
    trial.run()


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("", {each.says for each in TRIALS}, REASONS) == []


def test_every_room_has_a_module():
    asked = {
        room
        for file in Path(__file__).parent.glob("test_*.py")
        for room in re.findall(r'untried\(\s*"([^"]*)"', file.read_text(encoding="utf-8"))
    }
    assert asked == set(ROOMS)
