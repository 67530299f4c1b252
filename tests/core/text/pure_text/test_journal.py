"""Finished rollouts are found again, whatever a kill leaves of the file."""

import json

import numpy as np
import pytest
from written_rollouts import chat, rollouts

from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.text.staged.files import RunFiles
from plugrl.core.text.staged.journal import RolloutJournal, as_plain, from_plain

ORIGIN = {"models": {"policy": "a"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rollouts" / "iteration-0001.jsonl"


def test_records_are_there_for_the_next_process(path):
    journal = RolloutJournal(path, ORIGIN)
    journal.add((3, 0), {"text": "ä"})
    journal.add((4, 1), {"text": "b"})
    again = RolloutJournal(path, ORIGIN)
    assert len(again) == 2
    assert again.get((3, 0))["text"] == "ä"
    assert again.get((4, 1))["text"] == "b"
    assert again.get((4, 0)) is None


def test_at_whatever_byte_a_kill_cuts_it_whole_records_stay_and_new_ones_follow(path):
    journal = RolloutJournal(path, ORIGIN)
    ends = []
    for number in range(3):
        journal.add((number, 0), {"value": number})
        ends.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        cut = RolloutJournal(path, ORIGIN)
        assert len(cut) == sum(end <= size for end in ends), size
        cut.add((9, 0), {"value": 9})
        after = RolloutJournal(path, ORIGIN)
        assert len(after) == len(cut)
        assert after.get((9, 0))["value"] == 9
        for line in path.read_bytes().splitlines():
            json.loads(line)


@pytest.mark.parametrize("damage", [b'{"brok', b"\xff\x00", b"7", b"{}", b'{"turn": 1}'])
def test_a_damaged_line_costs_its_own_attempt_alone(path, caplog, damage):
    journal = RolloutJournal(path, ORIGIN)
    for number in range(4):
        journal.add((number, 0), {"value": number})
    lines = path.read_bytes().splitlines()
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    left = RolloutJournal(path, ORIGIN)
    assert [left.get((number, 0)) is not None for number in range(4)] == [True, False, True, True]
    assert "line 3 is damaged; the attempts of such lines, 1 in all, are played again" in (
        caplog.text
    )
    left.add((1, 0), {"value": 1})
    again = RolloutJournal(path, ORIGIN)
    assert [again.get((number, 0))["value"] for number in range(4)] == [0, 1, 2, 3]


def test_without_its_first_line_a_journal_is_set_aside(path, caplog):
    RolloutJournal(path, ORIGIN).add((0, 0), {"value": 1})
    content = b"{" + path.read_bytes()
    path.write_bytes(content)
    assert len(RolloutJournal(path, ORIGIN)) == 0
    assert "damaged first line" in caplog.text
    assert path.with_name("iteration-0001.1.jsonl").read_bytes() == content


def test_rollouts_of_other_models_are_set_aside(path, caplog):
    RolloutJournal(path, ORIGIN).add((0, 0), {"value": 1})
    other = RolloutJournal(path, {"models": {"policy": "b"}})
    assert len(other) == 0
    other.add((0, 0), {"value": 2})
    assert "set aside as iteration-0001.1.jsonl" in caplog.text
    assert (
        RolloutJournal(path.with_name("iteration-0001.1.jsonl"), ORIGIN).get((0, 0))["value"] == 1
    )
    assert len(RolloutJournal(path, ORIGIN)) == 0
    assert len(list(path.parent.glob("*.jsonl"))) == 2


def test_rollouts_are_the_same_after_json():
    before = rollouts(
        [{"y": 1, "rounds": [{"prover": (chat("q"), "ünicode \n", 2, 1 / 3)}]}],
        small=np.array([[1.1, float("inf")]], np.float32),
    )
    before["nothing"] = np.array([[None, "x"]], object)
    after = from_plain(json.loads(json.dumps(as_plain(before))))
    assert isinstance(after, NestedArrayDict)
    assert after.batch_size == before.batch_size
    assert bool((after == before).all())
    assert after["small"].dtype == np.float32
    assert after["nothing"][0, 0] is None


def test_an_intent_is_written_once_also_after_half_a_line(tmp_path):
    files = RunFiles(tmp_path)
    files.intend("a-iteration-1-policy", 0)
    file = tmp_path / "jobs.jsonl"
    with file.open("a") as cut:
        cut.write('{"job": "a-iter')
    RunFiles(tmp_path).intend("a-iteration-1-policy", 0)
    RunFiles(tmp_path).intend("a-iteration-2-policy", 1)
    whole = [line for line in file.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["job"][-18:] for line in whole] == [
        "iteration-1-policy",
        "iteration-2-policy",
    ]
