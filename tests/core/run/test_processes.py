"""Runs in processes of their own that are killed, signalled, starved and hung."""

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import time
from pathlib import Path

import forking
import kills
import pytest
import torch
from waiting import DEADLINE

from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.folder import summarize
from plugrl.core.run.records.records import read_jsonl

DRIVER = str(Path(__file__).with_name("run_driver.py"))


def start(mode, root, *rest):
    command = [DRIVER, mode, root, *rest]
    pipe = subprocess.PIPE
    return forking.Process(command, stdout=pipe, stderr=pipe, libraries=kills.LIBRARIES)


def until(process, word):
    for line in process.stdout:
        if line.strip() == word:
            return
    raise AssertionError(process.stderr.read())


def finish(process):
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out.split(), err.strip().splitlines()


def the_run(root):
    (folder,) = [p for p in root.glob("*/*") if not p.name.startswith(".")]
    return folder


def status(folder):
    return json.loads((folder / "status.json").read_text())


@pytest.mark.parametrize("kills_at_least", kills.tiers([3], [10]))
def test_killed_at_any_moment_of_a_checkpoint_a_whole_one_is_found(tmp_path, kills_at_least):
    process = start("big", tmp_path)
    folder = Path(process.stdout.readline().strip())
    half_written, before = 0, -1
    # More kills if none of them fell into the writing of a checkpoint.
    for attempt in range(100):
        if attempt >= kills_at_least and half_written:
            break
        if attempt:
            process = start("big", tmp_path, folder)
        until(process, str(before + 2))
        time.sleep(random.Random(attempt).random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert summarize(folder).state == "killed"
        names = [p.name for p in (folder / "checkpoints").iterdir()]
        half_written += any(name.startswith(".tmp-") for name in names)
        found = checkpoint.latest(folder / "checkpoints")
        assert found == checkpoint.candidates(folder / "checkpoints")[0]
        state = checkpoint.load(found)
        before = state["trainer"]["done"]
        assert state["run"]["step"] == before
        steps = [r["step"] for r in read_jsonl(folder / "metrics.jsonl")]
        assert steps[:before] == list(range(1, before + 1))
    assert half_written >= 1
    torch.manual_seed(0)
    expected = torch.zeros(200_000)
    for _ in range(before):
        expected = expected + torch.rand(200_000)
    assert torch.equal(state["trainer"]["weights"], expected)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code", "state"),
    [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")],
)
def test_one_signal_saves_and_exits_and_the_run_resumes(tmp_path, number, code, state):
    process = start("endless", tmp_path)
    until(process, "3")
    process.send_signal(number)
    returned, _, err = finish(process)
    folder = the_run(tmp_path)
    assert returned == code
    assert err[0].startswith(f"{number.name}: stopping at the end of this step")
    assert err[-1] == f"plugrl resume {shlex.quote(str(folder))}"
    assert status(folder)["state"] == state
    last = checkpoint.load(checkpoint.latest(folder / "checkpoints"))["run"]["step"]
    assert last == status(folder)["step"] >= 3
    resumed = start("endless", tmp_path, folder)
    until(resumed, str(last + 1))
    resumed.send_signal(signal.SIGTERM)
    assert finish(resumed)[0] == 143


@pytest.mark.integration
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once_even_inside_a_long_call(tmp_path, number, code):
    process = start("deaf", tmp_path)
    until(process, "deaf")
    process.send_signal(number)
    assert process.stderr.readline().startswith(f"{number.name}: stopping at the end of this step")
    process.send_signal(number)
    # The call would take longer than this waits.
    returned, _, err = finish(process)
    assert returned == code
    assert err[-2:] == [
        f"{number.name} again: stopped at once",
        f"plugrl resume {shlex.quote(str(the_run(tmp_path)))}",
    ]
    assert status(the_run(tmp_path))["state"] in ("terminated", "interrupted")


@pytest.mark.integration
def test_a_hung_phase_prints_phase_and_stacks_and_exits_1(tmp_path):
    process = start("hang", tmp_path)
    returned, _, err = finish(process)
    folder = the_run(tmp_path)
    assert returned == 1
    assert err[0].startswith("error: phase 'rollout' after step 2 passed its deadline of 4 s")
    assert any("run_driver.py" in line and "in work" in line for line in err)
    assert err[-1] == f"plugrl resume {shlex.quote(str(folder))}"
    assert status(folder)["state"] == "failed"
    log = (folder / "log.txt").read_text()
    assert "passed its deadline" in log
    assert "in work" in log


@pytest.mark.integration
def test_a_call_that_keeps_the_interpreter_lock_ends_too():
    code = (
        "from plugrl.core.run.deadlines import Deadlines\n"
        "with Deadlines(print, grace=1.0).phase('rollout', 0.3):\n"
        "    sum(range(10**11))\n"
    )
    command = ["-c", code]
    ended = forking.run(command, libraries=kills.LIBRARIES)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Timeout (0:00:01.")
    assert 'File "<string>", line 3' in ended.stderr


@pytest.mark.integration
def test_two_processes_cannot_own_one_run(tmp_path):
    first = start("endless", tmp_path)
    until(first, "1")
    folder = the_run(tmp_path)
    returned, _, err = finish(start("short", tmp_path, folder))
    assert returned == 2
    assert err == [
        f"error: the run {folder} is in use by process {first.pid} on {os.uname().nodename}; "
        "wait until it ends or stop it first"
    ]
    assert summarize(folder).state == "running"
    first.kill()
    first.communicate()
    assert finish(start("short", tmp_path, folder))[0] == 0


@pytest.mark.integration
def test_a_file_size_limit_is_a_full_disk(tmp_path):
    returned, _, err = finish(start("limited", tmp_path))
    folder = the_run(tmp_path)
    assert returned == 1
    assert err[-2].startswith("error: cannot save the checkpoint: ")
    assert err[-1] == f"plugrl resume {shlex.quote(str(folder))}"
    assert list((folder / "checkpoints").iterdir()) == []
    assert status(folder)["state"] == "failed"


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.integration
def test_a_full_disk_ends_the_run_and_the_checkpoint_before_stays(small_disk):
    # Two checkpoints of 0.8 MB fit, the third does not.
    returned, _, err = finish(start("big", small_disk))
    folder = the_run(small_disk)
    assert returned == 1
    assert err[-2].startswith("error: cannot save the checkpoint: ")
    assert "free some space" in err[-2]
    assert err[-1] == f"plugrl resume {shlex.quote(str(folder))}"
    names = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert names == ["step-00000001", "step-00000002"]
    assert checkpoint.load(checkpoint.latest(folder / "checkpoints"))["run"]["step"] == 2


@pytest.mark.integration
def test_a_disk_without_room_for_the_folder_leaves_none(small_disk):
    (small_disk / "filler").write_bytes(b"x" * (2 * 2**20 - 4 * 4096))
    returned, _, err = finish(start("short", small_disk))
    assert returned == 1
    assert err[-1].startswith("error: cannot make the run folder: no space left for ")
    assert list(small_disk.glob("*/*")) == list(small_disk.glob("*/.tmp*")) == []


@pytest.mark.integration
def test_a_run_on_a_full_disk_is_not_resumed_and_keeps_what_it_has(small_disk):
    assert start("plain", small_disk).wait(DEADLINE) == 0
    folder = the_run(small_disk)
    before = (folder / "status.json").read_text()
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    returned, _, err = finish(start("endless", small_disk, folder))
    assert returned == 1
    assert err[-1].startswith("error: cannot write the status of the run: no space left for ")
    assert (folder / "status.json").read_text() == before
