"""The page of a report: its data, what hostile text does to it, its size, and bad run folders."""

import json
import re
import time
from html.parser import HTMLParser

import pytest

from plugrl.core.run.report import samples
from plugrl.core.run.report.comparison import compare_runs
from plugrl.core.run.report.contents import RunContents
from plugrl.core.run.report.page import as_json, report_file, report_page
from plugrl.core.run.report.samples import Samples

BEGAN = 1_767_225_600.0

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)>",
    "</SCRIPT\n><svg/onload=alert(1)>",
    "\u202egnp.exe\u2066",
    "]]>&lt;/script&gt;\u2028\u2029\x00\x1b[2J",
    "lone \ud800 surrogate",
]


class Elements(HTMLParser):
    """The tags of a page in order, and the text of its data."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][1].get("type") == "application/json":
            self.data += data


def data_of(path):
    return json.loads(Elements(path.read_text("utf-8")).data.strip())


def test_a_report_holds_the_run(write_run, tmp_path):
    lines = [
        {"step": step, "time/unix": 1000 + step, "validation/reward": value, "phase": 1}
        for step, value in enumerate([0.1, 0.9, 0.5], 1)
    ]
    run = write_run(
        tmp_path / "exp" / "id1",
        lines,
        {"rollouts": [{"step": 1, "prompt": "2+2=", "answer": "4", "reward": 1.0}]},
        {"state": "done", "step": 3, "headline": {"metric": "validation/reward", "mode": "max"}},
        config__yaml="seed: 7\ntrainer: {type: t, phases: [{name: warm}]}\na: {b: 2}\nc: 1\n",
        config__input__yaml="seed: 0\na: {b: 2}\n",
        config__origins__json=json.dumps(
            {"origins": {"seed": "command line", "a.b": "x.yaml:2"}, "differing": ["seed"]}
        ),
        plugins__lock__json=json.dumps(
            [{"kind": "trainer", "name": "t", "used": True}, {"name": "u", "used": False}]
        ),
        environment__json=json.dumps({"python": "3.11", "packages": {"torch": "2.11"}}),
    )
    path = report_file([run])
    assert path == run / "report.html"
    (shown,) = data_of(path)["runs"]
    assert (shown["id"], shown["experiment"], shown["state"]) == ("id1", "exp", "done")
    assert shown["headline"] == {
        "metric": "validation/reward", "lower": False,
        "first": [1, 0.1], "last": [3, 0.5], "best": [2, 0.9],
    }  # fmt: skip
    assert shown["curves"]["metrics"]["validation/reward"]["y"] == [0.1, 0.9, 0.5]
    assert shown["phases"] == [{"step": 1, "name": "warm"}]
    assert shown["samples"]["rollouts"]["records"][0]["answer"] == "4"
    rows = {row["key"]: row for row in shown["config"]}
    assert rows["seed"] == {"key": "seed", "value": "7", "origin": "command line", "was": "0"}
    assert rows["a.b"] == {"key": "a.b", "value": "2", "origin": "x.yaml:2"}
    assert rows["c"] == {"key": "c", "value": "1"}
    assert [plugin["name"] for plugin in shown["plugins"]] == ["t"]
    assert shown["environment"] == {"python": "3.11", "torch": "2.11"}


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_model_leaves_its_element_or_steers_the_page(write_run, tmp_path, text):
    sample = {"step": 1, "prompt": text, "answer": text, text: text, "tokens": {"text": [text]}}
    run = write_run(
        tmp_path / "run",
        [{"step": 1, text: 1.0}],
        {"rollouts": [sample]},
        {"state": "failed", "step": 1, "error": text},
        log__txt=f"2026-01-01 00:00:00,000 WARNING plugrl: {text}\n".encode(
            "utf-8", "replace"
        ).decode(),
    )
    page = report_file([run]).read_text("utf-8")
    bare = report_file([write_run(tmp_path / "bare")]).read_text("utf-8")
    count = sum(tag == "script" for tag, _ in Elements(bare).tags)
    found = Elements(page)
    assert sum(tag == "script" for tag, _ in found.tags) == count == 3
    assert not {"img", "svg"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    data = found.data
    assert "<" not in data
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b\ud800]", data)
    (record,) = json.loads(data)["runs"][0]["samples"]["rollouts"]["records"]
    assert record["answer"] == record["prompt"] == record["tokens"]["text"][0]


def test_the_page_runs_its_own_scripts_and_loads_nothing():
    page = report_page([RunContents_of_nothing()])
    (policy,) = (a["content"] for t, a in Elements(page).tags if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for part in ("unsafe", "http", "*", "nonce"):
        assert part not in policy
    sources = [a for _, a in Elements(page).tags if {"src", "href"} & set(a)]
    assert sources == []


def RunContents_of_nothing():
    from pathlib import Path

    return RunContents(Path("nowhere/there")).read({"state": "running", "step": 0})


def test_json_in_the_page_is_the_value_again():
    value = {"a": "</script>", "b": ["\u2028", "é"], "c": 1.5, "d": None}
    assert json.loads(as_json(value)) == value
    assert json.loads(as_json({"a": [float("nan"), float("inf")]})) == {"a": [None, None]}


def test_the_page_of_a_run_that_goes_on_claims_only_what_it_knows(write_run, tmp_path):
    run = write_run(tmp_path / "exp" / "a b")
    contents = RunContents(run).read({"state": "running", "step": 3})
    before = time.time()
    page = report_page([contents], 17.0)
    plain = re.sub("<script.*?</script>|<style.*?</style>|<[^>]*>", "", page, flags=re.S)
    assert "running when this page was written" in plain
    assert (
        "If the process has ended without a word, plugrl report &#x27;a b&#x27; says so." in plain
    )
    data = json.loads(Elements(page).data)
    assert before <= data["written"] <= time.time()
    assert data["interval"] == 17
    ended = report_page([RunContents(run).read()])
    assert json.loads(Elements(ended).data)["interval"] is None
    assert "when this page was written" not in ended
    assert "without a word, plugrl" not in ended


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({}, "it has no metrics"),
        ({"metrics__jsonl": '{"step": 1, "a'}, "it has no metrics"),
        ({"metrics__jsonl": '{"step": 1, "a": 1}\n{dam\n'}, "1 line of metrics.jsonl could not"),
        ({"config__yaml": ": ["}, "it has no metrics"),
        ({"config__origins__json": "[]", "config__yaml": "a: 1"}, "it has no metrics"),
        (
            {"config__origins__json": '{"origins": 5, "differing": 5}', "config__yaml": "a: 1"},
            "it has no metrics",
        ),
        ({"plugins__lock__json": '{"a": 1}', "environment__json": "[1]"}, "it has no metrics"),
        ({"timeline__jsonl": "{}\nx\n", "log__txt": "\x00\xff"}, "it has no metrics"),
    ],
)
def test_a_damaged_run_has_a_page_that_says_so(write_run, tmp_path, files, note):
    run = write_run(tmp_path / "run", **files)
    (shown,) = data_of(report_file([run]))["runs"]
    assert any(each.startswith(note) for each in shown["notes"])


def test_a_run_that_was_killed_says_so(write_run, tmp_path):
    run = write_run(tmp_path / "run", [{"step": 4, "a": 1}], status={"state": "running", "step": 1})
    (shown,) = data_of(report_file([run]))["runs"]
    assert (shown["state"], shown["step"]) == ("killed", 4)
    (run / "status.json").write_text("{")
    (shown,) = data_of(report_file([run]))["runs"]
    assert (shown["state"], shown["error"][:27]) == ("broken", "status.json cannot be read:")


def test_several_runs_are_on_one_page_with_what_differs(write_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        write_run(
            tmp_path / "e" / f"r{seed}",
            [{"step": step, "train/loss": seed * loss} for step, loss in enumerate([4, 1, 2])],
            config__yaml=f"seed: {seed}\nb: [1, 2]\n",
        )
        for seed in (1, 2)
    ]
    path = report_file(runs)
    assert str(path) == "report.html"
    data = data_of(path)
    assert [run["seed"] for run in data["runs"]] == [1, 2]
    assert data["differences"] == [{"key": "seed", "values": ["1", "2"]}]
    # The headline is a loss, of which less is better.
    assert compare_runs(runs) == {
        "runs": [{"experiment": "e", "id": f"r{i}", "path": str(runs[i - 1])} for i in (1, 2)],
        "facts": {
            "state": ["done", "done"],
            "step": [3, 3],
            "headline": ["train/loss", "train/loss"],
            "first": [4, 8],
            "last": [2, 4],
            "best": [1, 2],
        },
        "metrics": {"train/loss": [2, 4]},
        "configuration": {"seed": ["1", "2"]},
    }


def test_samples_are_spread_over_the_steps_and_whole_within_one(write_run, tmp_path):
    records = [
        {"step": step, "attempt": n, "answer": "x" * 500} for step in range(64) for n in range(4)
    ]
    run = write_run(tmp_path / "run", samples={"rollouts": records})
    shown = Samples(run).read(40_000)["rollouts"]
    assert (shown["read"], shown["whole"]) == (256, True)
    steps = [record["step"] for record in shown["records"]]
    assert steps == sorted(steps)
    kept = sorted(set(steps))
    assert (kept[0], kept[-1]) == (0, 63)
    assert all(steps.count(step) == 4 for step in kept)
    assert len(json.dumps(shown["records"])) < 44_000
    assert max(b - a for a, b in zip(kept, kept[1:], strict=False)) <= 8


@pytest.mark.parametrize("letter", ["x", "<", "é", "\u2028", "\ud83d\ude00", "\x1b"])
def test_samples_take_the_page_no_further_than_its_budget(write_run, tmp_path, letter):
    texts = [{"step": step, "answer": letter * 2000} for step in range(1000)]
    run = write_run(tmp_path / "run", samples={"a": texts, "b": texts})
    bare = report_file([write_run(tmp_path / "bare")]).stat().st_size
    assert 500_000 < report_file([run]).stat().st_size - bare < 1_500_000


ODD = [
    '{"step": 1, "answer": NaN, "tokens": {"text": [null, 1, []], "logprob": [NaN, "\\ud800"]}}',
    '{"step": 1e400, "answer": "\\ud800"}',
    '{"step": 1' + "0" * 400 + ', "n": -9' + "9" * 30 + "}",
    '{"step": true, "a": {"": {"<": "</script>"}}}',
    '{"step": 2, "a": ' + "[" * 300 + "]" * 300 + "}",
    '{"step": 2, "a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"step": 2, "answer": "\\u0000\\u001b[31m"',
    "[]", "null", "\x00", "1e999",
]  # fmt: skip


def test_records_of_any_kind_leave_a_page(write_run, tmp_path):
    lines = "".join(f"{line}\n" for line in ODD)
    run = write_run(tmp_path / "run", metrics__jsonl='{"step": 1, "a": 1}\n' + lines)
    (run / "samples").mkdir()
    (run / "samples" / "own.jsonl").write_text(lines)
    (shown,) = data_of(report_file([run]))["runs"]
    records = shown["samples"]["own"]["records"]
    assert {"step": 1, "answer": None, "tokens": {
        "text": ["None", "1", "[]"], "logprob": [None, "\\ud800"],
    }} in records  # fmt: skip
    assert len(records) == 5
    assert shown["headline"] is None
    assert shown["curves"]["metrics"]["a"]["last"] == [1, 1]


def test_a_page_knows_of_how_many_tokens_it_shows_the_first(write_run, tmp_path):
    texts = [f" {i}" for i in range(1000)]
    tokens = {"count": 1200, "text": texts, "logprob": [-1.0] * 1000, "other": "x"}
    run = write_run(tmp_path / "run", samples={"rollouts": [{"step": 1, "tokens": tokens}]})
    (record,) = Samples(run).read(1_000_000)["rollouts"]["records"]
    assert record["tokens"] == {"count": 1200, "text": texts[:600], "logprob": [-1.0] * 600}


def test_a_page_makes_only_what_is_new_of_samples(write_run, tmp_path, monkeypatch):
    made = []
    for_page = samples._for_page
    monkeypatch.setattr(samples, "_for_page", lambda line: made.append(line) or for_page(line))
    path = tmp_path / "samples" / "rollouts.jsonl"
    path.parent.mkdir()
    reader = Samples(tmp_path)
    text, calls = "", []
    for step in range(200):
        # Two attempts of a step may be equal.
        text += f'{{"step": {step}, "answer": "{step:0500}"}}\n' * 2
        if step == 150:
            text = "".join(text.splitlines(keepends=True)[100:])
        path.write_text(text)
        found = reader.read(40_000)
        assert found == Samples(tmp_path).read(40_000)
        made.clear()
        reader.read(40_000)
        calls.append(len(made))
    # Those of the first step that no longer fits.
    assert max(calls) <= 2


def test_events_stand_at_their_steps(write_run, tmp_path):
    lines = [{"step": step, "time/unix": BEGAN + 10 * step, "a": 1.0} for step in (1, 2, 3)]
    lines[1]["train/loss"] = None

    def logged(seconds, rest):
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(BEGAN + seconds))
        return f"{stamp},000 {rest}\n"

    log = (
        logged(11, "INFO plugrl.run: saved step-00000001")
        + logged(15, "WARNING plugrl.run: loss is not finite in step 2: skipped")
        + "a line of a traceback\n"
        + logged(25, "INFO plugrl.run: resumed from step-00000002")
        + logged(99, "ERROR plugrl.run: run failed at step 3")
    )
    run = write_run(tmp_path / "run", lines, log__txt=log)
    (shown,) = data_of(report_file([run]))["runs"]
    assert [(e["step"], e["level"], e["text"]) for e in shown["events"]] == [
        (2, "warning", "loss is not finite in step 2: skipped"),
        (2, "warning", "train/loss was not finite"),
        (3, "info", "resumed from step-00000002"),
        (3, "error", "run failed at step 3"),
    ]


def test_the_time_of_each_phase_is_added_up(write_run, tmp_path):
    spans = [("rollout", 0, 2), ("train", 2, 3), ("rollout", 3, 4)]
    lines = [
        json.dumps({"lane": "trainer", "name": name, "start": BEGAN + a, "end": BEGAN + b}) + "\n"
        for name, a, b in spans
    ]
    run = write_run(tmp_path / "run", timeline__jsonl="".join(lines))
    (shown,) = data_of(report_file([run]))["runs"]
    lanes = {lane["name"]: lane for lane in shown["time"]["lanes"]}
    assert {name: lane["seconds"] for name, lane in lanes.items()} == {"rollout": 3, "train": 1}
    assert (shown["time"]["end"], shown["time"]["whole"]) == (4, True)
    # 240 slices of a sixtieth of a second.
    assert lanes["train"]["slices"] == [0] * 120 + [100] * 60 + [0] * 60


@pytest.mark.parametrize(("size", "inside"), [(900_000, True), (900_001, False)])
def test_the_newest_film_is_in_the_page_unless_it_is_long(write_run, tmp_path, size, inside):
    run = write_run(tmp_path / "run")
    (run / "samples").mkdir()
    for number in range(10):
        (run / "samples" / f"film-{number:08d}.gif").write_bytes(b"old")
    (run / "samples" / "film-00000010.mp4").write_bytes(b"x" * size)
    (shown,) = data_of(report_file([run]))["runs"]
    assert (shown["film"]["step"], shown["film"]["name"]) == (10, "film-00000010.mp4")
    assert ("data" in shown["film"]) == inside
    if inside:
        assert shown["film"]["data"].startswith("data:video/mp4;base64,eHh4")


def test_of_a_long_file_of_samples_parts_are_read(tmp_path):
    record = {"step": 0, "answer": "x" * 10_000}
    folder = tmp_path / "samples"
    folder.mkdir()
    with open(folder / "rollouts.jsonl", "w", encoding="utf-8") as file:
        for step in range(1000):
            file.write(json.dumps(record | {"step": step}) + "\n")
    shown = Samples(tmp_path).read(100_000)["rollouts"]
    assert not shown["whole"]
    steps = [record["step"] for record in shown["records"]]
    assert (steps[0], steps[-1]) == (0, 999)
    assert 10 < len(steps) < 40
    assert len(shown["records"][0]["answer"]) < 4100


def test_a_page_that_cannot_be_written_leaves_the_old_one(write_run, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", [{"step": 1, "a": 1}])
    before = report_file([run]).read_text("utf-8")
    import os

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        report_file([run])
    assert (run / "report.html").read_text("utf-8") == before
    assert [path.name for path in run.glob(".tmp-*")] == []
