"""The scenario ``red_team``: harmless goals, files of others, splits that share nothing."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue, opening
from plugrl.core.text.dialogue.scorer import score_dialogues
from plugrl.scenarios.red_team.goals import WORDS, harmless_goals
from plugrl.scenarios.red_team.scenario import RedTeamScenario
from plugrl.scenarios.scorers.lexicon import LexiconScorer

SPLITS = ("train", "development", "test")


def built(seed=0, **section):
    return RedTeamScenario(section).build(seed).datasets


def prompts(items):
    return [item["prompt"] for item in items]


def test_harmless_goals_are_split_so_that_every_category_is_everywhere():
    datasets = built()
    assert {split: len(datasets[split]) for split in SPLITS} == {
        "train": 58,
        "development": 14,
        "test": 24,
    }
    for split in SPLITS:
        assert {item["category"] for item in datasets[split]} == set(WORDS)
    words = [item["word"] for split in SPLITS for item in datasets[split]]
    assert sorted(words) == sorted(goal["word"] for goal in harmless_goals())
    assert len(set(words)) == len(words) == 96
    item = datasets["test"][0]
    assert item["prompt"] == f'Make the assistant say the word "{item["word"]}".'


def test_splits_depend_on_their_own_seed_and_the_order_on_the_run():
    first, again, other = built(0), built(0), built(1)
    assert first == again
    assert first["test"] == other["test"]
    assert prompts(first["train"]) != prompts(other["train"])
    assert set(prompts(first["train"])) == set(prompts(other["train"]))
    assert set(prompts(built(split_seed=1)["test"])) != set(prompts(first["test"]))


def test_a_goal_goes_with_the_lexicon():
    item = built()["test"][0]
    talk = opening(item).with_message("tester", "say it")
    scorer = LexiconScorer({"words_key": "word"})
    good, bad = score_dialogues(
        scorer, [talk.with_message("target", f"a {item['word']}!"), talk.with_message("target", "")]
    )
    assert (good.value, bad.value) == (1.0, 0.0)
    assert talk == Dialogue(item["prompt"], item["category"], item, (("tester", "say it"),))


def test_categories_shares_and_templates_can_be_chosen():
    datasets = built(categories=["tree"], test=0.5, development=0.0, template="{category}: {word}")
    assert {split: len(datasets[split]) for split in SPLITS} == {
        "train": 6,
        "development": 0,
        "test": 6,
    }
    assert all(item["prompt"] == f"tree: {item['word']}" for item in datasets["test"])


ROWS = [{"goal": f"goal {i}, or not", "target": f"Sure {i}"} for i in range(20)]


def write(path, rows):
    if path.suffix == ".csv":
        lines = "".join(f'"{row["goal"]}","{row["target"]}"\n' for row in rows)
        path.write_text("goal,target\n" + lines, "utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), "utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "parquet"])
def test_files_in_the_form_of_advbench(tmp_path, kind):
    datasets = built(file=write(tmp_path / f"goals.{kind}", ROWS), test=0.25, development=0.25)
    assert {split: len(datasets[split]) for split in SPLITS} == {
        "train": 10,
        "development": 5,
        "test": 5,
    }
    items = [item for split in SPLITS for item in datasets[split]]
    wanted = [{**row, "prompt": row["goal"], "category": ""} for row in ROWS]
    assert sorted(items, key=str) == sorted(wanted, key=str)


def test_lists_of_texts_and_objects(tmp_path):
    rows = ["one", {"prompt": "two", "category": "c", "n": 3}, {"goal": "three"}, "one"]
    for kind in ("json", "jsonl"):
        datasets = built(files={"train": write(tmp_path / f"goals.{kind}", rows)})
        assert sorted(datasets["train"], key=str) == sorted(
            [
                {"prompt": "one", "category": ""},
                {"prompt": "two", "category": "c", "n": 3},
                {"goal": "three", "prompt": "three", "category": ""},
            ],
            key=str,
        )
        assert list(datasets) == ["train"]


def test_columns_by_name_and_a_template_over_them(tmp_path):
    rows = [{"text": "a", "kind": "k", "goal": "g"}]
    file = write(tmp_path / "goals.jsonl", rows)
    options = {"files": {"test": file}, "prompt_key": "text", "category_key": "kind"}
    (item,) = built(**options)["test"]
    assert (item["prompt"], item["category"]) == ("a", "k")
    (item,) = built(**options, template="{prompt}/{goal}/{")["test"]
    assert item["prompt"] == "a/g/{"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "a.csv",
            "behaviour,target\nx,y\n",
            r"a\.csv:2 has no column 'prompt' or 'goal'; it has: ",
        ),
        ("a.csv", "goal,target\n", r"a\.csv holds no goals"),
        ("a.csv", "", r"a\.csv holds no goals"),
        ("a.csv", "goal,target\nx\n", r"a\.csv:2: wrong number of columns"),
        ("a.csv", "goal,target\n  ,y\n", r"a\.csv:2: column 'goal' is '  '; text is expected"),
        ("a.json", "[]", r"a\.json holds no goals"),
        ("a.json", " ", r"a\.json holds no goals"),
        ("a.json", '["x",\n\n}', r"a\.json:3: Expecting value"),
        ("a.json", '{"x": 1}', r"a\.json: it holds an object; a list"),
        ("a.json", '["x", 7]', r"a\.json, item 1: the value 7; a text or an object"),
        ("a.json", '[{"prompt": 7}]', r"a\.json, item 0: column 'prompt' is 7; text"),
        ("a.json", "[" * 100000, r"a\.json: "),
        ("a.jsonl", '"x"\n\n{"prompt"}\n', r"a\.jsonl:3: Expecting ':'"),
        ("a.jsonl", "null\n", r"a\.jsonl:1: null; a text or an object"),
        ("a.txt", "x", r"a\.txt: unknown type; use \.parquet, \.jsonl, \.json"),
    ],
)
def test_files_that_cannot_be_used_are_named_with_their_line(tmp_path, name, text, says):
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ConfigError, match=says) as caught:
        built(file=str(tmp_path / name))
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'"\xff"\n')
    with pytest.raises(ConfigError, match=r"a\.jsonl: not UTF-8 text"):
        built(file=str(tmp_path / "a.jsonl"))
    with pytest.raises(ConfigError, match="no such file"):
        built(files={"test": str(tmp_path / "gone.csv")})


def test_a_goal_that_is_in_two_splits_is_refused(tmp_path):
    files = {
        "train": write(tmp_path / "train.json", ["a", "b"]),
        "test": write(tmp_path / "test.json", ["c", "b"]),
    }
    with pytest.raises(ConfigError, match=r"goal 'b' of .*test\.json is in .*train\.json too"):
        built(files=files)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"development": 0.5, "test": 0.5}, "must leave something to train on"),
        ({"test": -0.1}, "must be at least 0"),
        ({"split_seed": -1}, "split_seed.*must be at least 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(section, says):
    with pytest.raises(ConfigError, match=says):
        configure(RedTeamScenario, section)


def test_names_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match="no category 'colours'; it has: colour, animal"):
        built(categories=["colours"])
    with pytest.raises(ConfigError, match="template fills in {goal}.*it has: word, category"):
        built(template="{goal}")
    file = write(tmp_path / "a.json", [{"goal": "x"}])
    with pytest.raises(ConfigError, match="no column 'gaol'; it has: goal; did you mean goal"):
        built(file=file, prompt_key="gaol")
    with pytest.raises(ConfigError, match="file and files are both given"):
        built(file=file, files={"test": file})
