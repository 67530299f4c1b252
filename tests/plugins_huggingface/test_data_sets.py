"""Data sets of the hub: subsets and splits, the files that are fetched, and addresses of files."""

import json

import hub_files
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import DataSetName
from plugrl.core.text.data.files import first_problem, read_files
from plugrl.plugins.huggingface import data_sets

NAME = "someone/problems"
MAIN = DataSetName(NAME, "main")
FILES = hub_files.data_set()
#: A card that names two files of other formats, and no subset by that word.
PLAIN = {
    "README.md": b"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
    b"    path: [a.jsonl, 'more/*.json']\n  - split: test\n    path: t.csv\n---\n",
    "a.jsonl": b'{"q": 1}\n{"q": 2}\n',
    "more/b.json": b'[{"q": 3}]',
    "more/c.json": b'{"q": 4}\n{"q": 5}\n',
    "t.csv": b"q\n6\n",
    "large.bin": b"x" * 9000,
}


def card(*configs):
    return f"---\nconfigs: {json.dumps(list(configs))}\n---\n".encode()


def config(name, path="a.jsonl", **more):
    return {"config_name": name, "data_files": [{"split": "train", "path": path}], **more}


def test_a_split_of_a_subset_is_read_and_nothing_else_fetched(hub, server):
    server.data_set(NAME, FILES)
    rows = hub.problems(MAIN, "train")
    assert list(map(dict, rows)) == hub_files.word_problems(16, 0)
    assert rows[3].place == f"{NAME}/main/train-00000-of-00001.parquet, row 3"
    assert not server.asked("socratic")
    assert not server.asked("test-")


def test_files_of_several_formats_in_the_order_of_their_names(hub, server):
    server.data_set(NAME, PLAIN)
    data = DataSetName(NAME)
    assert [row["q"] for row in hub.problems(data, "train")] == [1, 2, 3, 4, 5]
    assert list(map(dict, hub.problems(data, "test"))) == [{"q": "6"}]
    assert not server.asked("large.bin")


def test_the_commit_is_that_of_the_revision(hub, server, forget):
    first = server.data_set(NAME, PLAIN)
    second = server.data_set(NAME, {"a.jsonl": b'{"q": 7}\n'})
    assert hub.commit(DataSetName(NAME)) == second
    assert hub.commit(DataSetName(NAME, revision=first)) == first
    assert [row["q"] for row in hub.problems(DataSetName(NAME, revision=first), "train")][0] == 1


@pytest.mark.parametrize(
    ("files", "subset", "split", "says"),
    [
        (FILES, "mian", "train",
         f"data set {NAME} has no subset 'mian'; it has: main, socratic; did you mean main?"),
        (FILES, None, "train", "has several subsets; choose one of: main, socratic"),
        (FILES, "main", "tset",
         f"data set {NAME} (main) has no split 'tset'; it has: train, test; did you mean test?"),
        ({"problems.py": b"1/0"}, None, "train",
         f"data set {NAME} is made by a program of its own (problems.py), and code of the hub is "
         "never run; take a copy with data files"),
        ({"README.md": card(config("a", "no-*"))}, None, "train",
         f"data set {NAME}: its card names no-* for split 'train', and there are no such files; "
         "name others in data_files"),
        ({"README.md": b"---\nx: [\n---\n"}, None, "train", "its README.md cannot be read"),
    ],
)  # fmt: skip
def test_what_a_data_set_lacks_is_one_line(hub, server, files, subset, split, says):
    server.data_set(NAME, files)
    with pytest.raises(ConfigError) as caught:
        hub.problems(DataSetName(NAME, subset), split)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_subset_is_chosen_by_name_by_default_or_alone(hub, server):
    files = {"a.jsonl": b'{"q": 1}\n', "b.jsonl": b'{"q": 2}\n'}
    for configs, number in (
        ([config("x"), config("default", "b.jsonl")], 2),
        ([config("x"), config("y", "b.jsonl", default=True)], 2),
        ([config("x")], 1),
    ):
        name = f"someone/{number}-{len(configs)}-{configs[-1]['config_name']}"
        server.data_set(name, files | {"README.md": card(*configs)})
        assert hub.problems(DataSetName(name), "train")[0]["q"] == number


def test_a_data_set_that_is_not_there_and_a_gated_one(hub, server):
    with pytest.raises(ConfigError, match="has no data set someone/problems, or it is private"):
        hub.commit(MAIN)
    server.data_set(NAME, FILES, gated=True)
    with pytest.raises(
        ConfigError, match=f"gated; accept its conditions at {server.url}/datasets/"
    ):
        hub.commit(MAIN)


def test_the_first_problem_needs_no_large_download(hub, server, forget, monkeypatch):
    server.data_set(NAME, FILES)
    assert hub.first_problem(MAIN, "train") == hub_files.word_problems(16, 0)[0]
    monkeypatch.setattr(data_sets, "SMALL", 10)
    # What is in the cache costs nothing.
    assert hub.first_problem(MAIN, "train") is not None
    assert hub.first_problem(MAIN, "test") is None
    assert not server.asked("test-")


def test_the_cache_serves_a_data_set_offline(hub, server, set_up, forget):
    commit = server.data_set(NAME, FILES)
    hub.fetch(MAIN, "train")
    before = len(server.requests)
    set_up(HF_HUB_OFFLINE=True)
    for revision in (None, commit):
        forget()
        assert len(hub.problems(DataSetName(NAME, "main", revision), "train")) == 16
    with pytest.raises(ConfigError, match="only in part, and HF_HUB_OFFLINE is set"):
        hub.problems(MAIN, "test")
    assert len(server.requests) == before


def test_addresses_of_files(hub, server):
    commit = server.data_set(NAME, PLAIN)
    address = f"hf://datasets/{NAME}/more/*.json"
    assert [item["q"] for item in read_files([address, f"hf://datasets/{NAME}/a.jsonl"])] == [
        3, 4, 5, 1, 2,
    ]  # fmt: skip
    assert hub.pinned(address) == f"hf://datasets/{NAME}@{commit}/more/*.json"
    assert [item["q"] for item in read_files([hub.pinned(address)])] == [3, 4, 5]
    assert first_problem(address) == {"q": 3}


def test_an_address_names_a_branch(hub, server):
    server.data_set(NAME, PLAIN)
    server.data_set(NAME, {"a.jsonl": b'{"q": 8}\n'}, branch="refs/convert")
    address = f"hf://datasets/{NAME}@refs%2Fconvert/a.jsonl"
    assert list(map(dict, read_files([address]))) == [{"q": 8}]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (f"hf://datasets/{NAME}/no.jsonl", "has no file no.jsonl; it has, among others: .gitatt"),
        ("hf://datasets/someone/none/a.jsonl", "has no data set someone/none"),
        ("hf://someone/problems/a.jsonl", "is written hf://datasets/owner/name/file"),
        (f"hf://datasets/{NAME}", "is written hf://datasets/owner/name/file"),
        (f"hf://datasets/{NAME}@v9/a.jsonl", "has no revision 'v9'"),
    ],
)
def test_addresses_that_mean_nothing(hub, server, address, says):
    server.data_set(NAME, PLAIN)
    with pytest.raises(ConfigError) as caught:
        read_files([address])
    assert says in str(caught.value)
