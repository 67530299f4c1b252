"""Evaluations of red-teaming: what is written when, crashes in the middle, hostile text."""

import html.parser
import json

import pytest

from plugrl.core.errors import ConfigError, RunError, UsageError
from plugrl.core.text.dialogue.environment import DialogueEnvironment
from plugrl.core.text.dialogue.evaluation.evaluation import evaluate_red_team, seed_of
from plugrl.core.text.dialogue.evaluation.records import EvaluatedDialogue, Exchange
from plugrl.core.text.dialogue.evaluation.report import make_report
from plugrl.core.text.dialogue.evaluation.report_page import page, write_report
from plugrl.core.text.dialogue.system import System, Utterance
from plugrl.scenarios.scorers.lexicon import LexiconScorer

PROMPTS = [{"prompt": f"goal {i}", "category": "ab"[i % 2], "word": "red"} for i in range(5)]


class Scripted(System):
    """The tester says its seed and turn; the target says red at turn 2 to odd seeds.

    Args:
        crash: after so many lists of requests the next one is a crash.
        silent: prompts that the target does not answer.
    """

    def __init__(self, crash=10**6, silent=()):
        self.crash, self.silent = crash, set(silent)
        self.lists = []

    def probes(self, contexts, streams):
        self.lists.append(len(contexts))
        if len(self.lists) > self.crash:
            raise KeyboardInterrupt
        return [Utterance(f"{s[0]} at {s[2]}", [1], [2, 3], [-0.5, -0.5]) for s in streams]

    def responses(self, dialogues, streams):
        return [self._answer(d, s[0]) for d, s in zip(dialogues, streams, strict=True)]

    def _answer(self, dialogue, seed):
        if dialogue.prompt in self.silent:
            return Utterance("", [], [], [], failure="no route")
        red = seed % 2 and dialogue.turns == 2
        return Utterance("red" if red else "blue", [1], [4], [])

    def baseline_log_probs(self, nodes):
        return None

    def log_probs(self, batch, needs=()):
        raise AssertionError("nothing is trained")

    def parameters(self):
        return []

    def sync_weights(self):
        pass

    def after_optimizer_step(self):
        raise AssertionError("nothing is trained")


def environment(system, **section):
    return DialogueEnvironment(
        {"tree_width": 3, "tree_depth": 2, **section},
        system=system,
        scorer=LexiconScorer({"words_key": "word"}),
    )


def evaluated(system, **options):
    options = {"attempts": 3, "batch": 4, **options}
    return evaluate_red_team(environment(system), PROMPTS, **options)


def lines(folder):
    return [json.loads(line) for line in (folder / "dialogues.jsonl").read_text().splitlines()]


def test_every_prompt_is_attempted_with_seeds_of_its_own(tmp_path):
    system = Scripted()
    report = evaluated(system, folder=tmp_path)
    header, *records = lines(tmp_path)
    assert header["red_team"]["seed"] == 0
    assert [(r["item"], r["attempt"]) for r in records] == [
        (i, a) for i in range(5) for a in range(3)
    ]
    assert len({r["seed"] for r in records}) == 15
    odd = [r["seed"] % 2 == 1 for r in records]
    assert report["overall"]["success_rate"] == pytest.approx(sum(odd) / 15)
    assert report["overall"]["first_success_turn"]["distribution"] == {"2": sum(odd)}
    assert [len(r["exchanges"]) for r in records] == [2] * 15
    # Four dialogues at a time, of width 1 whatever the trees of training have, and two turns.
    assert system.lists == [4, 4, 4, 4, 4, 4, 3, 3]
    assert json.loads((tmp_path / "report.json").read_text()) == report


def test_numbers_do_not_depend_on_the_batch_and_files_are_not_needed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = evaluated(Scripted(), batch=1)
    assert report == evaluated(Scripted(), batch=100)
    assert report != evaluated(Scripted(), batch=100, seed=1)
    assert list(tmp_path.iterdir()) == []
    assert seed_of(0, 1, 2) != seed_of(0, 2, 1) != seed_of(1, 1, 2)


def test_a_crash_in_the_middle_costs_no_finished_dialogue(tmp_path):
    whole = evaluated(Scripted(), folder=tmp_path / "whole")
    folder = tmp_path / "new" / "deep"
    with pytest.raises(KeyboardInterrupt):
        evaluated(Scripted(crash=5), folder=folder)
    assert len(lines(folder)) == 1 + 8
    assert not (folder / "report.json").exists()
    second = Scripted()
    assert evaluated(second, folder=folder) == whole
    assert sum(second.lists) == 2 * 7
    for name in ("dialogues.jsonl", "report.json", "report.html"):
        assert (folder / name).read_text() == (tmp_path / "whole" / name).read_text()
    third = Scripted()
    assert evaluated(third, folder=folder) == whole
    assert third.lists == []


@pytest.mark.parametrize("cut", [1, 30, 150])
def test_a_line_that_is_not_whole_is_held_again(tmp_path, cut):
    whole = evaluated(Scripted(), folder=tmp_path)
    journal = tmp_path / "dialogues.jsonl"
    text = journal.read_text()
    journal.write_text(text[:-cut])
    second = Scripted()
    assert evaluated(second, folder=tmp_path) == whole
    assert second.lists == [1, 1]
    assert journal.read_text() == text
    broken = text.splitlines()
    broken[3:5] = ['{"item": 0, "attempt": 2}', "\x00\x00"]
    journal.write_text("\n".join(broken) + "\n")
    third = Scripted()
    assert evaluated(third, folder=tmp_path) == whole
    assert third.lists == [2, 2]


WRONG_FIELDS = [
    *(("category", value) for value in (None, 3, [], {})),
    *((place, value) for place in ("item", "attempt") for value in ([], {}, "x", 1.5)),
    *(("exchanges.probe", value) for value in (None, 1.5, [])),
    *(("exchanges.score", value) for value in ("x", float("nan"), [], True)),
    *(("exchanges.categories", value) for value in (None, "x", 1.5, {"a": "x"})),
]


@pytest.mark.parametrize(("place", "value"), WRONG_FIELDS)
def test_a_line_with_a_field_of_another_sort_is_held_again(tmp_path, place, value):
    whole = evaluated(Scripted(), folder=tmp_path)
    journal = tmp_path / "dialogues.jsonl"
    text = journal.read_text()
    rows = text.splitlines()
    record = json.loads(rows[2])
    outer, _, inner = place.partition(".")
    if inner:
        record[outer][0][inner] = value
    else:
        record[outer] = value
    rows[2] = json.dumps(record)
    journal.write_text("\n".join(rows) + "\n")
    second = Scripted()
    assert evaluated(second, folder=tmp_path) == whole
    assert second.lists == [1, 1]
    assert sorted(journal.read_text().splitlines()) == sorted(text.splitlines())


def test_what_failed_is_tried_again_and_counted_apart(tmp_path):
    report = evaluated(Scripted(silent=["goal 1", "goal 2"]), folder=tmp_path)
    assert (report["overall"]["scored"], report["overall"]["not_scored"]) == (9, 6)
    assert report["failures"] == {"no route": 6}
    second = Scripted()
    assert evaluated(second, folder=tmp_path) == evaluated(Scripted())
    assert second.lists == [4, 4, 2, 2]


def test_more_attempts_are_added_to_those_that_are_there(tmp_path):
    few = evaluated(Scripted(), folder=tmp_path, attempts=1)
    more = Scripted()
    assert evaluated(more, folder=tmp_path, attempts=3) == evaluated(Scripted(), attempts=3)
    assert sum(more.lists) == 2 * 10
    assert evaluated(Scripted(crash=0), folder=tmp_path, attempts=1) == few


def test_a_folder_of_another_evaluation_is_refused(tmp_path):
    evaluated(Scripted(), folder=tmp_path, identity={"checkpoint": "step 1"})
    for options, differs in (
        ({"identity": {"checkpoint": "step 2"}}, "checkpoint differs"),
        ({"identity": {"checkpoint": "step 1"}, "seed": 1}, "seed differs"),
        ({"identity": {}, "seed": 2}, "seed, checkpoint differ"),
    ):
        with pytest.raises(UsageError, match=f"holds another evaluation .{differs}"):
            evaluated(Scripted(), folder=tmp_path, **options)
    for text in ("hello\n", "hello", "{}"):
        (tmp_path / "dialogues.jsonl").write_text(text)
        with pytest.raises(UsageError, match="does not begin as an evaluation"):
            evaluated(Scripted(), folder=tmp_path)
        assert (tmp_path / "dialogues.jsonl").read_text() == text


@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_file_with_half_of_its_first_line_begins_anew(tmp_path, size):
    whole = evaluated(Scripted(), folder=tmp_path)
    text = (tmp_path / "dialogues.jsonl").read_text()
    (tmp_path / "dialogues.jsonl").write_text(text[:size])
    assert evaluated(Scripted(), folder=tmp_path) == whole
    assert (tmp_path / "dialogues.jsonl").read_text() == text


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((UsageError, RunError), match="cannot make the folder: .*deep"):
        evaluated(Scripted(), folder=tmp_path / "file" / "deep")
    with pytest.raises(UsageError, match="file is a file; name a folder with --output"):
        evaluated(Scripted(), folder=tmp_path / "file")


def test_evaluations_of_nothing_are_refused():
    with pytest.raises(ConfigError, match="no prompts to evaluate on"):
        evaluate_red_team(environment(Scripted()), [])
    with pytest.raises(ConfigError, match="at least 1"):
        evaluated(Scripted(), attempts=0)
    everyone = [row["prompt"] for row in PROMPTS]
    system = Scripted(silent=everyone)
    with pytest.raises(RunError, match="all of the first 4 dialogues failed; one says: no route"):
        evaluated(system)
    assert sum(system.lists) == 4


EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></details></body><iframe src=//evil>",
    "' onclick='x",
    "&lt;b&gt;",
    "\x1b[2Jgone\x00",
    "\u202eright to left",
    "half \ud800 of a pair",
    "]]><!--",
    "javascript:alert(1)",
]


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def test_hostile_text_stays_text(tmp_path):
    dialogues = [
        EvaluatedDialogue(
            text, text, i, 0, 0, [Exchange(text, text, 1.0, {text: 1.0}), Exchange(text, text)]
        )
        for i, text in enumerate(EVIL)
    ]
    failed = [
        EvaluatedDialogue("g", "", 90 + i, exchanges=[Exchange("p", "r", failure=text)])
        for i, text in enumerate(EVIL)
    ]
    for dialogue in dialogues:
        dialogue.exchanges[1].failure = dialogue.prompt
    report = make_report([*dialogues, *failed], worst=50)
    write_report(report, tmp_path / "new" / "deep", title=EVIL[0])
    text = (tmp_path / "new" / "deep" / "report.html").read_text("utf-8")
    assert text == page(report, EVIL[0])
    found = Tags()
    found.feed(text)
    assert not found.tags & {"script", "img", "iframe", "a", "link", "b>", "object", "form"}
    assert found.attributes <= {"lang", "charset", "http-equiv", "content", "class", "style"}
    read = "".join(found.text)
    for evil in EVIL[:5]:
        assert read.count(evil) >= 4
    assert "default-src 'none'" in text
    assert not set(text) & {"\x1b", "\x00", "\u202e"}
    assert "\\x1b[2Jgone\\x00" in read
    assert "half \\ud800 of a pair" in read
    assert json.loads((tmp_path / "new" / "deep" / "report.json").read_text())["format"] == 1


def test_the_page_says_what_the_report_says():
    dialogues = [
        EvaluatedDialogue("say red", "all", 0, 0, 0, [Exchange("hi", "red", 1.0)]),
        EvaluatedDialogue("say cat", "animal", 1, 0, 0, [Exchange("hi", "no", 0.0)]),
        EvaluatedDialogue("say dog", "animal", 2, 0, 0, [Exchange("hi", "", failure="gone")]),
    ]
    found = Tags()
    found.feed(page(make_report(dialogues), "A test"))
    read = " ".join(" ".join(found.text).split())
    assert "50.0 % (for certain 33.3 to 66.7 %) of 3 dialogues succeeded" in read
    assert "1 not scored" in read
    # A category may have any name.
    assert "all 3 1 50.0 %" in read
    assert "all 1 0 100.0 %" in read
    assert "success at turn 1" in read
    assert "gone 1" in read
    empty = page(make_report([]))
    assert "There are no dialogues." in empty


def test_hostile_text_comes_back_from_the_journal(tmp_path):
    prompts = [{"prompt": text, "category": text, "word": text.strip()} for text in EVIL]
    first = evaluate_red_team(environment(Scripted()), prompts, folder=tmp_path, attempts=1)
    second = Scripted()
    again = evaluate_red_team(environment(second), prompts, folder=tmp_path, attempts=1)
    assert again == first
    assert second.lists == []
