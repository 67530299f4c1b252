"""Runs on a cluster whose processes are killed again and again, for an hour."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from waiting import DEADLINE

from plugrl.core.experiment import load_run
from plugrl.testing import tiny
from plugrl.testing.suite.test_trainer import assert_equal_states, comparable_metrics

#: Seconds that the soak takes; fewer for a look.
SECONDS = float(os.environ.get("PLUGRL_SOAK_SECONDS", "3600"))
#: Of the draw of whom it hits and when.
SEED = int(os.environ.get("PLUGRL_SOAK_SEED", "0"))
WORKER = """
import asyncio

from plugrl.core.text.rollout.worker import trajectory_of


async def patient(task, worker):
    prompt = task.tokenizers["policy"].encode(task.prompt)
    completion = await task.ask("policy", prompt)
    await asyncio.sleep(3)
    trajectory = trajectory_of(task, "policy", prompt, completion)
    return worker.judge(task, trajectory, task.tokenizers["policy"].decode(completion.tokens))
"""
#: Whom the soak hits, by words of the command, and with what; an empty text: the driver.
VICTIMS = {
    "driver": ("", signal.SIGKILL),
    "actor": ("ray::Relay", signal.SIGKILL),
    "silent actor": ("ray::Relay", signal.SIGSTOP),
    "process": ("processes.process", signal.SIGKILL),
    "raylet": ("raylet/raylet ", signal.SIGKILL),
}


def children(session):
    """Number and command of the processes of a session and of all that they started."""
    done = subprocess.run(
        ["ps", "-wweo", "pid,ppid,sess,args", "--no-headers"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(None, 3) for line in done.stdout.splitlines()]
    return [(int(row[0]), row[3]) for row in rows if int(row[2]) == session]


def configuration(folder, how):
    folder.mkdir()
    (folder / "patient.py").write_text(WORKER)
    custom = {
        "custom_rollout_worker_module_path": str(folder / "patient.py"),
        "custom_rollout_worker_class_name": "patient",
    }
    tree = tiny.config("self_hosted_grpo", folder, {"rollout_worker": {**custom, **how}})
    tree["rollout_worker"].pop("type", None)
    tree["trainer"]["total_train_steps"] = 6
    tree["settings"] |= {"checkpoint_every": 1, "runs_folder": str(folder / "runs")}
    tree["settings"]["cluster"] = {"cpus": 4, "object_store_memory": 80}
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    return folder / "run.yaml"


def plugrl(*words, log):
    return subprocess.Popen(
        [sys.executable, "-m", "plugrl", *map(str, words)],
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def numbers(run):
    """What a run has measured, but for how often its workers were replaced."""
    rows = comparable_metrics(run)
    return [{k: v for k, v in row.items() if "/worker_" not in k} for row in rows]


def run_of(folder):
    return max((folder / "runs").glob("*/[0-9]*"))


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 20 * DEADLINE)
def test_kills_of_all_kinds_change_no_number(tmp_path):
    with open(tmp_path / "log", "w", encoding="utf-8") as log:
        whole = plugrl("train", configuration(tmp_path / "near", {"processes": 2}), log=log)
        assert whole.wait(5 * DEADLINE) == 0
        expected = load_run(run_of(tmp_path / "near"))
        draw, end = random.Random(SEED), time.monotonic() + SECONDS
        counts, number = dict.fromkeys(VICTIMS, 0), 0
        while time.monotonic() < end:
            number += 1
            folder = tmp_path / f"far-{number}"
            config = configuration(folder, {"executor": {"type": "ray", "workers": 2}})
            words = ["train", config]
            for victim in draw.sample(list(VICTIMS), len(VICTIMS)):
                driver = plugrl(*words, log=log)
                hit = strike(driver, victim, draw.uniform(0, 8))
                counts[victim] += hit
                print(f"run {number}: {victim} {'hit' if hit else 'was too late'}", flush=True)
                # It goes on, or ends in bounded time and is resumed.
                code = driver.wait(5 * DEADLINE)
                for pid, _ in children(driver.pid):
                    kill(pid)
                if code == 0:
                    break
                words = ["resume", run_of(folder)]
            else:
                assert plugrl(*words, log=log).wait(5 * DEADLINE) == 0
            found = load_run(run_of(folder))
            assert numbers(found) == numbers(expected)
            states = [run.checkpoint()["trainer"]["models"] for run in (found, expected)]
            assert_equal_states(*states)
    print(f"{number} runs; hit: {counts}")


def strike(driver, victim, seconds):
    """Hit a process of a run some seconds after its actors have started; 0: it was too late."""
    wanted = [words for words, _ in VICTIMS.values() if words]
    while driver.poll() is None:
        commands = [command for _, command in children(driver.pid)]
        if all(any(words in command for command in commands) for words in wanted):
            break
        time.sleep(0.1)
    time.sleep(seconds)
    words, number = VICTIMS[victim]
    chosen = [driver.pid] if not words else [p for p, c in children(driver.pid) if words in c]
    if driver.poll() is not None or not chosen:
        return 0
    kill(chosen[0], number)
    return 1


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
