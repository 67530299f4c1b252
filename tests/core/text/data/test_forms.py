"""Forms of data besides JSONL, CSV and parquet: folders, Arrow, lists, patterns; maps of rows."""

import json

import pyarrow
import pytest

from plugrl.core.errors import ConfigError, PluginError
from plugrl.core.experiment import prepare
from plugrl.core.text.data.files import FileItem, first_problem, read_files
from plugrl.core.text.data.loader import problems
from plugrl.core.text.data.maps import load_map, map_rows
from plugrl.scenarios.data_maps.gsm8k import gsm8k
from plugrl.testing import tiny

ROWS = [{"prompt": "a", "n": [1, 2]}, {"prompt": "b", "n": []}, {"prompt": "c", "n": [3]}]


def write_arrow(path, rows, kind):
    table = pyarrow.Table.from_pylist(rows)
    with kind(str(path), table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write_batch(batch)


@pytest.mark.parametrize("kind", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_arrow_in_both_of_its_formats(tmp_path, kind):
    write_arrow(tmp_path / "a.arrow", ROWS, kind)
    found = read_files([tmp_path / "a.arrow"])
    assert list(map(dict, found)) == ROWS
    assert [item.place for item in found] == [f"{tmp_path / 'a.arrow'}, row {i}" for i in range(3)]


def test_a_file_that_is_no_arrow_is_named(tmp_path):
    (tmp_path / "a.arrow").write_bytes(b"no arrow at all")
    with pytest.raises(ConfigError, match=r"data file .*a\.arrow: ") as caught:
        read_files([tmp_path / "a.arrow"])
    assert "\n" not in str(caught.value)


def save_as_datasets_does(folder, parts):
    """What ``Dataset.save_to_disk`` of datasets 5 writes, as far as it is read."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(parts):05}.arrow" for i in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        write_arrow(folder / name, rows, pyarrow.ipc.new_stream)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def test_a_folder_of_save_to_disk(tmp_path):
    save_as_datasets_does(tmp_path / "saved", [ROWS[:2], ROWS[2:]])
    assert list(map(dict, read_files([tmp_path / "saved"]))) == ROWS
    assert first_problem(tmp_path / "saved") == ROWS[0]


def test_of_a_folder_with_splits_one_is_named(tmp_path):
    for split in ("train", "test"):
        save_as_datasets_does(tmp_path / "saved" / split, [ROWS])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError) as caught:
        read_files([tmp_path / "saved"])
    assert str(caught.value) == (
        f"data folder {tmp_path / 'saved'}: it holds the splits test, train; name one, such as "
        f"{tmp_path / 'saved' / 'test'}"
    )
    assert len(read_files([tmp_path / "saved" / "test"])) == 3


@pytest.mark.parametrize(
    ("state", "says"),
    [(None, "not one that save_to_disk of datasets writes; name its files, such as"),
     ("{", "state.json: "), ("{}", "state.json: ")],
)  # fmt: skip
def test_other_folders_are_refused(tmp_path, state, says):
    if state is not None:
        (tmp_path / "state.json").write_text(state)
    with pytest.raises(ConfigError) as caught:
        read_files([tmp_path])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_json_file_holds_a_list_or_an_object_a_line(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "lines.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "empty.json").write_text(" \n")
    found = read_files([tmp_path / "list.json"])
    assert list(map(dict, found)) == ROWS
    assert found[1].place == f"{tmp_path / 'list.json'}, item 1"
    assert list(map(dict, read_files([tmp_path / "lines.json"]))) == ROWS
    assert read_files([tmp_path / "empty.json"]) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"data": []}', "it holds an object; a list of objects is expected"),
     ('["a"]', "item 0: an object is expected"), ("[1", r"a\.json:1: Expecting")],
)  # fmt: skip
def test_other_json_is_refused(tmp_path, text, says):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_files([tmp_path / "a.json"])


def test_the_files_of_a_pattern_are_sorted(tmp_path):
    for number in (2, 10, 1):
        folder = tmp_path / ("deep" if number == 10 else ".")
        folder.mkdir(exist_ok=True)
        (folder / f"part-{number:02}.jsonl").write_text(json.dumps({"n": number}) + "\n")
    (tmp_path / "part-99.txt").write_text("x")
    found = read_files([tmp_path / "part-*.jsonl"])
    assert [item["n"] for item in found] == [1, 2]
    # By the whole path.
    assert [item["n"] for item in read_files([tmp_path / "**/part-??.jsonl"])] == [10, 1, 2]
    assert first_problem(tmp_path / "part-*.jsonl") == {"n": 1}
    with pytest.raises(ConfigError, match=r"no-\*\.jsonl: no file matches the pattern"):
        read_files([tmp_path / "no-*.jsonl"])


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path):
    (tmp_path / "a[1].jsonl").write_text('{"n": 1}\n')
    assert read_files([tmp_path / "a[1].jsonl"]) == [{"n": 1}]


def configured(tmp_path, *words, **data):
    tree = tiny.config("self_hosted_grpo", tmp_path, {"data": data})
    return prepare(tree, words, preflight=False).validated.tree


def test_patterns_and_maps_are_found_beside_their_file(tmp_path, monkeypatch):
    problem = json.dumps({"prompt": "ab", "answer": "a"}) + "\n"
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "a.jsonl").write_text(problem)
    (tmp_path / "m.py").write_text("def same(row):\n    return row\n")
    monkeypatch.chdir(tmp_path)
    data = configured(tmp_path, data_files=["parts/*.jsonl"], map="m.py:same")["data"]
    assert data["data_files"] == [str(tmp_path / "parts" / "*.jsonl")]
    assert data["map"] == f"{tmp_path / 'm.py'}:same"
    with pytest.raises(ConfigError, match=r"no such file: parts/\*\.csv"):
        configured(tmp_path, data_files=["parts/*.csv"])


MAPS = """
def drop(row):
    return None if row["prompt"] == "b" else {"prompt": row["prompt"] * 2}

def twice(row):
    return [row, {**row, "prompt": row["prompt"].upper()}]

def fails(row):
    return row["question"]

def number(row):
    return 3

def none():
    return None
"""


@pytest.fixture
def maps(tmp_path):
    (tmp_path / "maps.py").write_text(MAPS)
    return lambda name: load_map(f"{tmp_path / 'maps.py'}:{name}")


def test_a_map_changes_drops_and_multiplies_rows(maps):
    items = [FileItem(row, f"f:{i}") for i, row in enumerate(ROWS)]
    found = list(map_rows(items, maps("drop"), "data.map"))
    assert [(item["prompt"], item.place) for item in found] == [("aa", "f:0"), ("cc", "f:2")]
    found = list(map_rows(items, maps("twice"), "data.map"))
    assert "".join(item["prompt"] for item in found) == "aAbBcC"
    assert items[0] == ROWS[0]


def test_a_map_that_fails_is_named_with_the_row_and_its_line(maps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        list(map_rows([FileItem(ROWS[0], "d.jsonl:7")], maps("fails"), "data.map"))
    assert str(caught.value) == "data.map: d.jsonl:7: KeyError: 'question' at maps.py:9"
    with pytest.raises(ConfigError, match=r"d\.jsonl:7: the function gives int; a dict, a list of"):
        list(map_rows([FileItem(ROWS[0], "d.jsonl:7")], maps("number"), "data.map"))


def test_a_map_of_the_wrong_form_is_refused_with_the_right_one(maps):
    with pytest.raises(PluginError, match=r"write none\(row\) -> a row, a list of rows, or None"):
        maps("none")


@pytest.mark.parametrize(
    ("written", "says"),
    [("maps.py", "maps.py names no function; write maps.py:FUNCTION"),
     ("gsm9k", "did you mean gsm8k"), ("maps.py:absent", "absent")],
)  # fmt: skip
def test_maps_that_are_not_there(tmp_path, monkeypatch, maps, written, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, PluginError), match=says):
        load_map(written)


def test_held_out_problems_have_the_map_of_the_others_unless_they_name_one(maps, tmp_path):
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    file = [str(tmp_path / "d.jsonl")]
    general = {"data_files": file, "map": f"{tmp_path / 'maps.py'}:drop"}
    held_out = {"data_files": file, "map": None}
    own = {"data_files": file, "map": f"{tmp_path / 'maps.py'}:twice"}
    assert len(problems(general, "train", None)) == 2
    for section, number in ((held_out, 2), (own, 6)):
        found = problems(section, "x", None, section="validate.data", general=general)
        assert len(found) == number


def test_the_map_of_gsm8k():
    # The first problem of the data set.
    row = {
        "question": "Natalia sold clips to 48 of her friends in April, and then she sold half as "
        "many clips in May. How many clips did Natalia sell altogether in April and May?",
        "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = "
        "<<48+24=72>>72 clips altogether in April and May.\n#### 72",
    }
    found = gsm8k(row)
    assert found["answer"] == "72"
    assert found["prompt"][0]["role"] == "user"
    assert found["prompt"][0]["content"].startswith(row["question"] + "\n")
    assert "\\boxed{}" in found["prompt"][0]["content"]
    assert gsm8k({"question": "q", "answer": "x\n#### 1,234"})["answer"] == "1234"
    with pytest.raises(ValueError, match="holds no ####: '72'"):
        gsm8k({"question": "q", "answer": "72"})
