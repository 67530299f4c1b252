"""Samples of a run of any length fit into one file, spread over its steps."""

import json

import pytest

from plugrl.core.run.records.records import RunRecords, read_jsonl
from plugrl.core.run.records.sample_file import SampleFile

#: A record of this form has 47 bytes, and 13 more in a thinned file.
TEXT = "x" * 10


def write(file, steps, each=2):
    for step in steps:
        for number in range(each):
            file.append({"step": step, "number": number, "text": TEXT})


def steps_of(path):
    return [record["step"] for record in read_jsonl(path)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollouts.jsonl"


def test_a_short_file_has_everything(path):
    write(SampleFile(path, 10_000), range(1, 51))
    assert steps_of(path) == [step for step in range(1, 51) for _ in range(2)]
    assert "every" not in path.read_text()


@pytest.mark.parametrize("stride", [1, 4])
def test_a_long_one_has_whole_steps_the_same_distance_apart(path, stride):
    # Stages of staged trainers sample in every fourth step alone.
    file, largest = SampleFile(path, 4000), 0
    told = range(1, 1 + 5000 * stride, stride)
    for step in told:
        write(file, [step])
        largest = max(largest, path.stat().st_size)
    assert 1500 < path.stat().st_size <= largest <= 4000
    found = steps_of(path)
    kept = sorted(set(found))
    assert found == [step for step in kept for _ in range(2)]
    (distance,) = {b - a for a, b in zip(kept, kept[1:], strict=False)}
    every = distance // stride
    assert every & (every - 1) == 0
    assert kept[0] == 1
    assert told[-1] - kept[-1] < distance
    assert {record["every"] for record in read_jsonl(path)} == {every}


def test_one_step_that_is_too_long_is_cut_and_the_next_ones_go_on(path):
    file = SampleFile(path, 1000)
    write(file, [1], each=500)
    assert 1000 <= path.stat().st_size < 1100
    write(file, range(2, 100), each=3)
    # Its 22 records, which say by now that the file was thinned.
    assert path.stat().st_size <= 22 * (47 + 20)
    assert steps_of(path) == [1] * 22


def test_a_resumed_run_goes_on_thinning(path):
    write(SampleFile(path, 4000), range(1, 1000))
    before = steps_of(path)
    write(SampleFile(path, 4000), range(1000, 2000))
    after = steps_of(path)
    assert path.stat().st_size <= 4000
    assert after == sorted(after)
    assert set(after) & set(range(1, 1000)) <= set(before)
    assert after[-1] > 1800


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(SampleFile.__init__, "__defaults__", (4000,))
    made = RunRecords(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("checkpoint", [5, 30, 31, 500])
def test_a_resume_keeps_no_step_after_its_checkpoint(records, tmp_path, checkpoint):
    path = tmp_path / "samples" / "rollouts.jsonl"
    sizes = {}
    for step in range(1, 1001):
        for _ in range(2):
            records.sample("rollouts", {"step": step, "text": TEXT})
            records.sample("own", {"step": step})
        if step == checkpoint:
            sizes = records.sizes()
    before = steps_of(path)
    records.truncate(sizes, checkpoint)
    left = steps_of(path)
    # Of what thinning has left, everything up to the checkpoint.
    assert left == [step for step in before if step <= checkpoint]
    assert steps_of(tmp_path / "samples" / "own.jsonl")[-1] == checkpoint
    records.sample("rollouts", {"step": checkpoint + 1, "text": TEXT})
    assert steps_of(path)[-1] == checkpoint + 1


@pytest.mark.parametrize("checkpoint", [0, 7, 20])
def test_a_file_that_was_never_thinned_is_cut_to_the_byte(records, tmp_path, checkpoint):
    path = tmp_path / "samples" / "rollouts.jsonl"
    sizes, whole = records.sizes(), b""
    for step in range(1, 21):
        records.sample("rollouts", {"step": step, "text": TEXT})
        if step == checkpoint:
            sizes, whole = records.sizes(), path.read_bytes()
    records.truncate(sizes, checkpoint)
    assert path.read_bytes() == whole


def test_what_cannot_be_read_is_left_out_when_a_file_is_thinned(path):
    file = SampleFile(path, 1000)
    write(file, range(1, 5))
    with open(path, "ab") as raw:
        raw.write(b"\xff not json\n[1]\n")
    file.close()
    write(file, range(5, 40))
    assert all(isinstance(json.loads(line), dict) for line in path.read_bytes().splitlines())
