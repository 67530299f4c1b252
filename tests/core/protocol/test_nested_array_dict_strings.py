"""Strings, files and refusals of nested dictionaries, by hand."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile

import numpy as np
import pytest
from tensordict import TensorDict

from plugrl import NestedArrayDict, RunError, UsageError
from plugrl.core.protocol import nested_array_dict as module

LONG = "é" * 5000


@pytest.fixture
def episode():
    """Two steps of three agents."""
    said = [["Is it?", LONG, None], ["", "end\0", "Yes.\nNo."]]
    return NestedArrayDict(
        {
            "round": np.array([0, 1]),
            "question": ["why", "how"],
            "agents": {"said": said, "reward": np.array([[0.0, 1, 2], [3, 4, 5]])},
        },
        2,
    )


def said(tree):
    return tree["agents", "said"].tolist()


def test_strings_of_any_length_and_none_are_kept(episode):
    assert said(episode) == [["Is it?", LONG, None], ["", "end\0", "Yes.\nNo."]]
    assert episode["question"].tolist() == ["why", "how"]
    assert episode["agents", "said"].dtype == np.dtypes.StringDType(na_object=None)
    episode["agents", "said"][0, 0] = "longer than it was"
    assert said(episode)[0][0] == "longer than it was"


@pytest.mark.parametrize(
    "given",
    [
        np.array(["a", "bc"]),
        np.array(["a", "bc"], dtype=object),
        np.array(["a", "bc"], dtype=np.dtypes.StringDType()),
        ["a", "bc"],
        ("a", "bc"),
    ],
)
def test_strings_come_in_any_form(given):
    tree = NestedArrayDict({"s": given}, 2)
    assert tree["s"].tolist() == ["a", "bc"]
    assert tree["s"].dtype == NestedArrayDict({"s": [None, "x"]}, 2)["s"].dtype


def test_arrays_are_kept_not_copied(episode):
    rows, words = np.zeros((2, 3)), episode["question"]
    tree = NestedArrayDict({"rows": rows, "words": words}, 2)
    assert tree["rows"] is rows
    assert tree["words"] is words


def test_indexing(episode):
    assert said(episode[0]) == ["Is it?", LONG, None]
    assert said(episode[-1:]) == [["", "end\0", "Yes.\nNo."]]
    assert said(episode[[1, 0, 1]])[2] == ["", "end\0", "Yes.\nNo."]
    assert said(episode[np.array([False, True])]) == [["", "end\0", "Yes.\nNo."]]
    assert episode[None, 1]["question"].tolist() == ["how"]
    assert episode[0]["question"].shape == ()
    assert episode[0]["question"][()] == "why"
    episode[0]["agents", "said"][2] = "seen through the view"
    assert said(episode)[0][2] == "seen through the view"


@pytest.mark.parametrize("index", [1, np.int32(1), slice(1, 2), (..., 1), (None, -1), slice(None)])
def test_places_and_slices_are_views(episode, index):
    episode[index]["round"][...] = 7
    assert episode["round"][1] == 7
    for part in (*episode.split(1), *episode.unbind(), *episode.chunk(2)):
        part["question"][...] = "new"
    assert episode["question"].tolist() == ["new", "new"]


def test_assignment(episode):
    episode[0] = episode[1]
    assert said(episode) == [["", "end\0", "Yes.\nNo."]] * 2
    assert episode["round"].tolist() == [1, 1]
    note = NestedArrayDict({"note": "new", "round": 7.9})
    episode[1] = note
    assert episode["note"].tolist() == ["", "new"]
    assert episode["round"].tolist() == [1, 7]
    episode.set_at_("question", "set", 0).set_("round", [5, 6])
    assert episode["question"].tolist() == ["set", "how"]
    assert episode["round"].tolist() == [5, 6]
    words = episode.select("question")
    words[...] = "all"
    assert episode["question"].tolist() == ["all", "all"]


def test_objects_hold_strings_where_numpy_has_no_type_for_them(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "STRING", np.dtype(object))
    tree = NestedArrayDict({"s": ["a", None], "n": [1, 2]}, 2)
    assert tree["s"].dtype == object
    tree[0] = NestedArrayDict({"s": "long", "t": "new"})
    joined = np.concatenate([tree, tree[[1]]])
    joined.save(tmp_path / "file")
    loaded = NestedArrayDict.load(tmp_path / "file")
    assert loaded["s"].tolist() == ["long", None, None]
    assert loaded["t"].tolist() == ["new", "", ""]
    assert (loaded == joined).all()
    with pytest.raises(UsageError, match="'s': strings and numbers do not mix"):
        tree.set_("s", [1, 2])
    with pytest.raises(UsageError, match="an entry is of type int"):
        tree.set("s", np.array(["a", 1], dtype=object))


def test_without_a_batch():
    tree = NestedArrayDict({"s": "a", "n": 3})
    assert tree[:]["s"][()] == tree[...]["s"][()] == tree.flatten()["s"][0] == "a"
    tree[:] = NestedArrayDict({"s": "b"})
    assert (tree["s"][()], tree["n"][()]) == ("b", 3)
    assert tree.flatten().shape == (1,)
    assert len(tree) == 0
    assert tree.numel() == 1


def test_nothing_is_written_when_one_entry_does_not_fit(episode):
    before = episode.clone()
    value = NestedArrayDict({"round": 9, "question": "other", "agents": {"reward": np.zeros(4)}})
    with pytest.raises(UsageError, match=r"reward.*\(4,\).*\(3,\)"):
        episode[0] = value
    value = NestedArrayDict({"new": 1, "round": 9, "question": 3})
    with pytest.raises(UsageError, match="'question'"):
        episode[0] = value
    assert episode.keys() == before.keys()
    assert (episode == before).all()


def test_shapes(episode):
    tree = NestedArrayDict({"s": [["a", "b", "c"], ["d", None, "f"]]}, (2, 3))
    assert tree.reshape(-1)["s"].tolist() == ["a", "b", "c", "d", None, "f"]
    assert tree.permute(1, 0)["s"].tolist() == [["a", "d"], ["b", None], ["c", "f"]]
    assert tree.transpose(0, 1).contiguous().flatten()["s"].tolist() == [
        "a",
        "d",
        "b",
        None,
        "c",
        "f",
    ]
    assert tree.unsqueeze(1).squeeze(1).unflatten(1, (3, 1)).shape == (2, 3, 1)
    assert [part["s"].tolist() for part in tree.split([1, 2], 1)][0] == [["a"], ["d"]]
    assert [part["s"].shape for part in tree.chunk(2, 1)] == [(2, 2), (2, 1)]
    assert tree[:1].expand(2, 3)["s"].tolist() == [["a", "b", "c"]] * 2
    assert tree.gather(1, [[2, 0], [1, 1]])["s"].tolist() == [["c", "a"], [None, None]]
    assert [step["question"][()] for step in episode] == ["why", "how"]


def test_stack_and_concatenate(episode):
    for stacked in (np.stack([episode, episode], 1), NestedArrayDict.stack([episode, episode], -1)):
        assert stacked.shape == (2, 2)
        assert stacked["question"].tolist() == [["why", "why"], ["how", "how"]]
    longer = np.concatenate([episode, episode[:1]])
    assert longer["question"].tolist() == ["why", "how", "why"]
    assert (NestedArrayDict.cat([episode, episode[:1]]) == longer).all()
    assert NestedArrayDict.stack([longer]).shape == (1, 3)
    with pytest.raises(TypeError, match="no implementation"):
        np.vstack([episode, episode])


def test_comparing(episode):
    other = episode.clone()
    assert (episode == other).all()
    assert not (episode != other).any()
    other["agents", "said"][0, 2] = ""
    assert (episode == other)["agents", "said"].tolist() == [[True, True, False], [True] * 3]
    assert (episode == "why")["question"].tolist() == [True, False]
    assert not (episode == "why")["round"].any()
    assert (episode == 1)["round"].tolist() == [False, True]
    assert not (episode == 1)["question"].any()


def test_functions_and_copies(episode):
    lengths = episode.select("question").apply(lambda words: np.strings.str_len(words))
    assert lengths["question"].tolist() == [3, 3]
    for other in (copy.deepcopy(episode), pickle.loads(pickle.dumps(episode)), episode.clone()):
        assert (other == episode).all()
        other["question"][0] = "changed"
    assert copy.copy(episode)["question"] is episode["question"]
    assert episode["question"][0] == "why"
    assert "question: Array((2,), str)" in repr(episode)
    assert "batch_size=(2,)" in repr(episode)


def test_tensordict_takes_numbers_alone(episode):
    numbers = episode.exclude("question", ("agents", "said"))
    tensordict = numbers.to_tensordict()
    assert tensordict["agents", "reward"].tolist() == [[0.0, 1, 2], [3, 4, 5]]
    tensordict["round"][0] = 5
    assert episode["round"][0] == 5
    assert numbers.expand(4, 2).to_tensordict().shape == (4, 2)
    with pytest.raises(UsageError, match=r"^key \('agents', 'said'\) is no tensor; exclude it"):
        episode.exclude("question").to_tensordict()
    with pytest.raises(UsageError, match="'a' is no tensor.*longdouble"):
        NestedArrayDict({"a": np.longdouble(1)}).to_tensordict()
    with pytest.raises(UsageError, match="'s' holds a NonTensorData, not a tensor"):
        NestedArrayDict.from_tensordict(TensorDict({"s": "text"}))


def test_files(episode, tmp_path):
    episode.set(("agents", "none"), {})
    episode["agents"].batch_size = (2, 3)
    episode.set("odd key.$/\n", np.array([1 + 2j, 3]))
    episode.set("nothing", NestedArrayDict({"s": np.full((2, 0), "")}, 2))
    episode.save(tmp_path / "episode")
    loaded = NestedArrayDict.load(tmp_path / "episode")
    assert repr(loaded) == repr(episode)
    assert loaded.keys(True) == episode.keys(True)
    assert loaded["agents"].batch_size == (2, 3)
    assert said(loaded) == said(episode)
    assert (loaded == episode).all()
    loaded["agents", "said"][0, 0] = "can be written"
    loaded["round"][0] = 1
    assert [path.name for path in tmp_path.iterdir()] == ["episode"]


def test_views_are_saved_as_they_are_seen(episode, tmp_path):
    view = episode["agents"].expand(4, 2)[::2]
    view.save(tmp_path / "view.npz")
    assert (NestedArrayDict.load(tmp_path / "view.npz") == view).all()


def test_damaged_files_are_refused(episode, tmp_path):
    file = tmp_path / "file"
    with pytest.raises(UsageError, match="no such file"):
        NestedArrayDict.load(file)
    episode.save(file)
    whole = file.read_bytes()
    for content in (b"", b"text", whole[:-30], whole[: len(whole) // 2], pickle.dumps({})):
        file.write_bytes(content)
        check_unreadable(file)
    with file.open("wb") as stream:
        np.savez(stream, a=np.zeros(2))
    check_unreadable(file)
    with file.open("wb") as stream:
        np.savez(stream, tree=np.array([{"an": "object"}], dtype=object))
    check_unreadable(file)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format": 2'),
        ('"batch_size": [2]', '"batch_size": [3]'),
        ('"array": "array0"', '"array": "array9"'),
        ('"strings": "array1"', '"strings": "array0"'),
    ],
)
def test_files_that_do_not_fit_together_are_refused(episode, tmp_path, old, new):
    episode.save(tmp_path / "file")
    with np.load(tmp_path / "file") as stored:
        parts = dict(stored)
    text = parts["tree"].tobytes().decode()
    assert old in text
    json.loads(text.replace(old, new))
    parts["tree"] = np.frombuffer(text.replace(old, new).encode(), np.uint8)
    with (tmp_path / "file").open("wb") as stream:
        np.savez(stream, **parts)
    check_unreadable(tmp_path / "file")


def check_unreadable(file):
    with pytest.raises(RunError) as refused:
        NestedArrayDict.load(file)
    assert "no whole file that NestedArrayDict.save wrote" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "pickle.load" not in str(refused.value)


def test_a_file_that_cannot_be_written_leaves_the_old_one(episode, tmp_path):
    episode.save(tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(RunError, match="cannot save"):
        episode.save(tmp_path)
    with pytest.raises((RunError, UsageError), match="cannot save"):
        episode.save(tmp_path / "file" / "inside")
    assert (tmp_path / "file").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert zipfile.is_zipfile(tmp_path / "file")
