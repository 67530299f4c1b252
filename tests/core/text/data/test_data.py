"""Prompts from files, their order and position."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.text.data.files import read_files
from plugrl.core.text.data.loader import PromptLoader, problems, require_column

ITEMS = [{"prompt": str(i)} for i in range(5)]


def test_every_file_type_gives_the_same_problems(tmp_path):
    rows = [{"prompt": "a,b", "answer": "007"}, {"prompt": "é", "answer": ""}]
    jsonl, csv, parquet = (tmp_path / f"d.{kind}" for kind in ("jsonl", "csv", "parquet"))
    jsonl.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    csv.write_text('prompt,answer\n"a,b",007\né,\n', encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), parquet)
    assert read_files([jsonl]) == read_files([csv]) == read_files([parquet]) == rows
    assert read_files([jsonl, csv]) == rows + rows


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("d.jsonl", b'{"prompt": 1}\n{oops\n', "d.jsonl:2"),
        ("d.jsonl", b"[1]\n", "d.jsonl:1: an object"),
        ("d.jsonl", b"\xff\xfe", "not UTF-8"),
        ("d.csv", b"prompt,answer\nonly\n", "d.csv:2: wrong number of columns"),
        ("d.csv", b"prompt\na,b\n", "d.csv:2: wrong number of columns"),
        ("d.csv", b'prompt,x\n"a\nb",1\nc\n', "d.csv:4: wrong number of columns"),
        ("d.csv", b"prompt,prompt\na,b\n", "d.csv:1: two columns are named 'prompt'"),
        ("d.parquet", b"no parquet", "d.parquet"),
        ("d.txt", b"text", "unknown type; use .parquet, .jsonl, .json, .csv, .arrow"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        read_files([tmp_path / name])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone.jsonl: No such file"):
        read_files([tmp_path / "gone.jsonl"])


def test_where_problems_come_from():
    scenario = ScenarioInstance(name="toy", datasets={"train": ITEMS, "empty": []})
    section = {"data_files": [], "type": "auto"}
    assert problems(section, "train", scenario) == ITEMS
    with pytest.raises(ConfigError, match="holds no problems"):
        problems(section, "empty", scenario)
    with pytest.raises(ConfigError, match="no split 'test'; it has: empty, train"):
        problems(section, "test", scenario)
    with pytest.raises(ConfigError, match="set data.data_files, data.name or a scenario"):
        problems(section, "train", None)


def test_a_missing_column_lists_the_ones_there_are():
    with pytest.raises(ConfigError, match=r"problem 1 has no column 'prompt'.*it has: question"):
        require_column([{"prompt": "a"}, {"question": "b"}], "prompt", "data.prompt_key")


def indices(batch):
    return [prompt.index for prompt in batch]


def test_each_epoch_holds_every_problem_once_in_another_order():
    loader = PromptLoader(ITEMS, batch_size=5, seed=1)
    epochs = [indices(loader.next_batch()) for _ in range(4)]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_equal_seeds_give_equal_orders_and_others_do_not():
    def order(seed):
        loader = PromptLoader([{}] * 100, batch_size=100, seed=seed)
        return indices(loader.next_batch())

    assert order(3) == order(3)
    assert order(3) != order(4)


def test_unshuffled_batches_cross_epochs():
    loader = PromptLoader(ITEMS, batch_size=3, shuffle=False)
    assert [indices(loader.next_batch()) for _ in range(4)] == [
        [0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1],
    ]  # fmt: skip


def test_attempts_share_a_group_and_differ_in_run():
    loader = PromptLoader(ITEMS, batch_size=2, repeat=3, shuffle=False)
    batch = loader.next_batch()
    assert [(p.group_id, p.run_id) for p in batch] == [
        ("0/0", 0), ("0/0", 1), ("0/0", 2), ("0/1", 0), ("0/1", 1), ("0/1", 2),
    ]  # fmt: skip


def test_a_problem_that_comes_twice_is_two_groups():
    loader = PromptLoader(ITEMS[:1], batch_size=2, shuffle=False)
    assert len({p.group_id for p in loader.next_batch()}) == 2


@pytest.mark.parametrize("batches", range(6))
def test_a_saved_position_goes_on_exactly(batches):
    straight = PromptLoader(ITEMS, batch_size=2, seed=5)
    for _ in range(batches):
        straight.next_batch()
    resumed = PromptLoader(ITEMS, batch_size=2, seed=5)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for _ in range(5):
        assert straight.next_batch() == resumed.next_batch()


def test_other_data_is_refused_on_resume():
    loader = PromptLoader(ITEMS, batch_size=2)
    with pytest.raises(ConfigError, match="made with 9 problems and there are now 5"):
        loader.load_state_dict(loader.state_dict() | {"items": 9})
    changed = PromptLoader([*ITEMS[:-1], {"prompt": "other"}], batch_size=2)
    with pytest.raises(ConfigError, match="the problems differ from those"):
        changed.load_state_dict(loader.state_dict())


def test_a_problem_that_comes_again_draws_other_numbers():
    loader = PromptLoader(ITEMS, batch_size=12, repeat=2)
    batch = loader.next_batch()
    assert len({(prompt.turn, prompt.run_id) for prompt in batch}) == 24


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_byte_order_mark_and_windows_lines_are_read(tmp_path, kind):
    path = tmp_path / f"d.{kind}"
    text = {"jsonl": '{"prompt": "a"}\r\n', "csv": "prompt\r\na\r\n"}[kind]
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_files([path]) == [{"prompt": "a"}]


def test_long_fields_and_line_ends_of_another_system(tmp_path):
    long = "x" * 200_000
    (tmp_path / "d.csv").write_bytes(f"\ufeffprompt,answer\r\n{long},1\r\n".encode())
    (tmp_path / "d.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps({"prompt": long, "answer": "1"}).encode() + b"\r\n\r\n"
    )
    expected = [{"prompt": long, "answer": "1"}]
    assert read_files([tmp_path / "d.csv"]) == read_files([tmp_path / "d.jsonl"]) == expected


class Thing:
    """Its text holds its address."""


def test_what_tells_data_apart_is_no_address_and_no_order_of_sets():
    def fingerprint(*words):
        item = {"prompt": "p", "tags": set(words), "thing": Thing()}
        return PromptLoader([item], batch_size=1).state_dict()["fingerprint"]

    assert fingerprint("a", "b", "c") == fingerprint("c", "b", "a")
    assert fingerprint("a", "b") != fingerprint("a", "c")


@pytest.mark.parametrize("batch_size", [1, 2, 4, 7, 12])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_position_of_three_epochs_goes_on_exactly(batch_size, shuffle):
    def new():
        return PromptLoader(ITEMS, batch_size=batch_size, repeat=2, shuffle=shuffle, seed=5)

    straight = new()
    states, batches = [], []
    for _ in range(15 // batch_size + 2):
        states.append(json.loads(json.dumps(straight.state_dict())))
        batches.append(straight.next_batch())
    for number, state in enumerate(states):
        resumed = new()
        resumed.load_state_dict(state)
        assert [resumed.next_batch() for _ in batches[number:]] == batches[number:]
    groups = [p.group_id for batch in batches for p in batch if p.run_id == 0]
    assert len(set(groups)) == len(groups)


def test_problems_know_their_places_in_files(tmp_path):
    import pickle

    import pyarrow
    import pyarrow.parquet

    from plugrl.core.text.data.files import place_of_problem

    lines = tmp_path / "d.jsonl"
    lines.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n')
    table = tmp_path / "d.csv"
    table.write_text('prompt,answer\n"a\nb",1\nc,2\n')
    columns = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", "b"]}), columns)
    items = read_files([lines, table, columns])
    places = [f"{lines}:1", f"{lines}:3", f"{table}:3", f"{table}:4"]
    places += [f"{columns}, row 0", f"{columns}, row 1"]
    assert [place_of_problem(item, 0) for item in items] == places
    sent = pickle.loads(pickle.dumps(items[0]))
    assert (sent, place_of_problem(sent, 0)) == ({"prompt": "a"}, places[0])
    assert place_of_problem({"prompt": "a"}, 5) == "problem 5"
