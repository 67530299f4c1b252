import errno
import json
import math
import os
import shutil

import numpy as np
import pytest
import torch

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.run.atomic_writes import remove_unfinished
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.checkpoints.folder import checkpoint_folder, create_checkpoint_folder


def save(folder, step, **more):
    return checkpoint.save(folder, step, {"step": step, "w": torch.full((3,), float(step))}, **more)


def test_every_kind_of_value_comes_back_exactly(tmp_path):
    state = {
        "tensor": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4, dtype=torch.int64),
        "scalar": torch.tensor(True),
        "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "numpy_scalar": np.int64(-7),
        "tuple": (1, [2.5, None], "ä", b"\x00\xff"),
        "ints": {0: "zero", (1, 2): "pair"},
        "tag": {"$plugrl": "tensor", "name": "no tensor"},
        "numbers": [True, 0, 2**80, 0.1, -0.0, math.inf, -math.inf],
    }
    loaded = checkpoint.load(checkpoint.save(tmp_path, 1, state))
    for name in ("tensor", "empty", "scalar"):
        assert loaded[name].dtype == state[name].dtype
        assert torch.equal(loaded[name], state[name])
    assert loaded["array"].dtype == np.uint16
    assert loaded["array"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert isinstance(loaded["numpy_scalar"], np.int64)
    assert loaded["numpy_scalar"] == -7
    for name in ("tuple", "ints", "tag", "numbers"):
        assert loaded[name] == state[name]
    assert loaded["numbers"][0] is True
    assert math.copysign(1, loaded["numbers"][4]) == -1
    assert math.isnan(checkpoint.load(checkpoint.save(tmp_path, 2, {"x": math.nan}))["x"])


def test_shared_tensors_are_stored_once_and_views_keep_their_values(tmp_path):
    base = torch.arange(1000.0)
    tied = torch.nn.Parameter(torch.ones(100))
    state = {
        "a": tied,
        "b": tied,
        "view": base[10:12],
        "again": base[10:12],
        "grid": base.view(10, 100),
    }
    path = checkpoint.save(tmp_path, 1, {**state, "base": base, "t": base.view(10, 100).t()})
    loaded = checkpoint.load(path)
    assert loaded["a"] is loaded["b"]
    assert loaded["view"].tolist() == [10.0, 11.0]
    assert loaded["again"].tolist() == [10.0, 11.0]
    assert torch.equal(loaded["base"], base)
    assert torch.equal(loaded["grid"], base.view(10, 100))
    assert torch.equal(loaded["t"], base.view(10, 100).t())
    # 100 (once) + 2 (once) + 1000 + 1000 + 1000 floats, and a header.
    assert 12408 < (path / "tensors.safetensors").stat().st_size < 13500


def test_many_bytes_go_to_several_files(tmp_path, monkeypatch):
    def names(path):
        assert {file.name for file in path.iterdir()} == {*manifest(path)["files"], "manifest.json"}
        return sorted(name for name in manifest(path)["files"] if name != "state.json")

    def manifest(path):
        return json.loads((path / "manifest.json").read_text())

    monkeypatch.setattr(checkpoint, "_FILE_BYTES", 100)
    older = checkpoint.save(tmp_path, 1, {"a": torch.ones(25), "text": "b"})
    assert (names(older), manifest(older)["format"]) == (["tensors.safetensors"], 1)
    # 40 and 60 bytes, 4 which make it more than 100, 400 alone, 8 behind it.
    sizes = {"a": 10, "b": 15, "c": 1, "d": 100, "e": 2}
    state = {name: torch.arange(float(size)) for name, size in sizes.items()}
    newer = checkpoint.save(tmp_path, 2, state)
    files = [f"tensors{number}.safetensors" for number in ("-2", "-3", "-4", "")]
    # An older plugrl must not take the first file for all of them.
    assert (names(newer), manifest(newer)["format"]) == (files, 2)
    loaded = checkpoint.load(newer)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    for name in files:
        whole = (newer / name).read_bytes()
        (newer / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert checkpoint.latest(tmp_path) == older
        (newer / name).write_bytes(whole)
    assert checkpoint.latest(tmp_path) == newer


def test_optimizer_state_round_trips(tmp_path):
    def train(weights, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            (weights**2).sum().backward()
            optimizer.step()

    weights = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([weights], lr=0.1)
    train(weights, optimizer)
    state = {"weights": weights, "optimizer": optimizer.state_dict()}
    loaded = checkpoint.load(checkpoint.save(tmp_path, 3, state))
    other = torch.nn.Parameter(loaded["weights"])
    second = torch.optim.AdamW([other], lr=0.5)
    second.load_state_dict(loaded["optimizer"])
    train(weights, optimizer)
    train(other, second)
    assert torch.equal(weights, other)


def test_a_value_that_cannot_be_saved_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match=r"trainer\.parts\[1\]\.fn is a function"):
        checkpoint.save(tmp_path, 1, {"trainer": {"parts": [0, {"fn": save}]}})
    with pytest.raises(RunError, match=r"at words is a NumPy array of <U1"):
        checkpoint.save(tmp_path, 1, {"words": np.array(["a"])})
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_and_flipped_bit_of_the_newest_is_found(tmp_path):
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    for name in ("state.json", "tensors.safetensors", "manifest.json"):
        file = newest / name
        whole = file.read_bytes()
        damaged = [whole[:length] for length in range(0, len(whole) - 1, max(1, len(whole) // 20))]
        for position in range(0, len(whole), max(1, len(whole) // 20)):
            flipped = bytearray(whole)
            flipped[position] ^= 4
            damaged.append(bytes(flipped))
        for data in damaged:
            file.write_bytes(data)
            try:
                found = checkpoint.latest(tmp_path)
            except RunError:
                # A flipped bit can make the format a number from the future: upgrade plugrl.
                assert name == "manifest.json"  # noqa: PT017
                continue
            if found == newest:
                # The manifest is checked by meaning: another step or score is no damage to data.
                assert name == "manifest.json"
                assert checkpoint.load(newest)["step"] == 2
            else:
                assert found == older
        file.unlink()
        assert checkpoint.latest(tmp_path) == older
        file.write_bytes(whole)
    assert checkpoint.latest(tmp_path) == newest


def test_load_newest_sets_a_damaged_one_aside_and_warns(tmp_path, caplog):
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    (newest / "tensors.safetensors").write_bytes(b"")
    path, state = checkpoint.load_newest(tmp_path)
    assert (path.name, state["step"]) == ("step-00000001", 1)
    assert "tensors.safetensors is missing or cut short" in caplog.text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken-step-00000002", "step-00000001"]
    assert save(tmp_path, 2).name == "step-00000002"


def test_all_damaged_is_an_error_and_none_is_a_fresh_start(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    (save(tmp_path, 1) / "manifest.json").unlink()
    with pytest.raises(RunError, match="none of the 1 checkpoints"):
        checkpoint.load_newest(tmp_path)


def test_a_newer_format_is_not_skipped(tmp_path):
    save(tmp_path, 1)
    manifest = save(tmp_path, 2) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 3}))
    with pytest.raises(RunError, match="format 3 and this plugrl reads 2"):
        checkpoint.load_newest(tmp_path)


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    for step, score in ((1, 0.1), (2, 0.9), (3, None), (4, 0.5), (5, None)):
        save(tmp_path, step, score=score)
    checkpoint.prune(tmp_path, 2)
    kept = [path.name for path in checkpoint.candidates(tmp_path)]
    assert kept == ["step-00000005", "step-00000004", "step-00000002"]


def test_saving_a_step_twice_keeps_both_and_finds_the_second(tmp_path):
    save(tmp_path, 1)
    second = checkpoint.save(tmp_path, 1, {"step": 1, "second": True})
    assert checkpoint.latest(tmp_path) == second
    assert len(checkpoint.candidates(tmp_path)) == 2


@pytest.mark.parametrize("when", range(2))
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, when):
    save(tmp_path, 1)
    real, calls = checkpoint._write_synced, []

    def full(path, data):
        calls.append(path)
        if len(calls) > when:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoint, "_write_synced", full)
    with pytest.raises(RunError, match="no space left for .*step-00000002; free some space"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """A power cut cannot be tried here, but the order of what was asked of the system can."""
    events = []
    sync, rename = os.fsync, os.rename

    def synced(descriptor):
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def renamed(source, target):
        events.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    path = save(tmp_path, 3)
    number = events.index("renamed")
    hidden = {os.path.dirname(place) for place in events[:number]} - {str(tmp_path)}
    assert len(hidden) == 1
    (folder,) = hidden
    files = {f"{folder}/{name}" for name in os.listdir(path)}
    assert len(files) == 3
    assert set(events[:number]) == {folder, *files}
    # The folder last, when its files are in it.
    assert events[number - 1] == folder
    assert events[number + 1 :] == [str(tmp_path)]


def test_no_checkpoint_of_a_step_is_ever_written_over(tmp_path):
    paths = [save(tmp_path, 4) for _ in range(4)]
    assert [path.name for path in paths] == [f"step-00000004{x}" for x in ("", "-r2", "-r3", "-r4")]
    assert checkpoint.latest(tmp_path) == paths[-1]
    # A later step is newer than any repetition of an earlier one.
    newest = save(tmp_path, 5)
    assert checkpoint.candidates(tmp_path) == [newest, *reversed(paths)]
    assert [checkpoint.step_of(p) for p in checkpoint.candidates(tmp_path)] == [5, 4, 4, 4, 4]


def test_cleaning_leaves_checkpoints_alone(tmp_path):
    whole = save(tmp_path, 1)
    half = tmp_path / ".tmp-step-00000002-1-1"
    half.mkdir()
    aside = tmp_path / "broken-step-00000003"
    aside.mkdir()
    remove_unfinished(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([whole, aside])
    remove_unfinished(tmp_path / "none")


def test_a_copy_of_a_run_may_read_the_checkpoints_of_the_first_and_not_write_them(tmp_path):
    run, copy = tmp_path / "runs" / "one", tmp_path / "runs" / "two"
    run.mkdir(parents=True)
    create_checkpoint_folder(run, str(tmp_path / "elsewhere"))
    (path := tmp_path / "elsewhere" / "one").joinpath("x").mkdir()
    shutil.copytree(run, copy, symlinks=True)
    for each in (run, copy):
        assert checkpoint_folder(each).resolve() == path
    assert checkpoint_folder(run, owned=True).resolve() == path
    with pytest.raises(ConfigError, match="are those of the run one, of which it is a copy"):
        checkpoint_folder(copy, owned=True)


def test_a_run_that_is_being_made_has_its_checkpoints_under_its_name(tmp_path):
    run = tmp_path / "runs" / ".tmp-one"
    run.mkdir(parents=True)
    create_checkpoint_folder(run, str(tmp_path / "elsewhere"))
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["one"]
    assert list((tmp_path / "elsewhere" / "one").iterdir()) == []
