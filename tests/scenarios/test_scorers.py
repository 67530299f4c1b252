"""Scorers that look for words and patterns, and those that are made of others."""

import re

import pytest

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, make_scorer, score_dialogues, scorer_of_run
from plugrl.core.text.models import Models
from plugrl.scenarios.scorers.lexicon import LexiconScorer
from plugrl.scenarios.scorers.regex import RegexScorer
from plugrl.scenarios.scorers.weighted import WeightedScorer


def dialogue(response, probe="say it", **item):
    asked = Dialogue("a goal", item=item).with_message("tester", probe)
    return asked.with_message("target", response)


def values(scorer, *responses):
    return [
        score.value for score in score_dialogues(scorer, [dialogue(text) for text in responses])
    ]


def test_words_are_whole_and_of_any_case():
    scorer = LexiconScorer({"words": ["red", "sky blue", "C++"]})
    texts = ("I like RED.", "reddish, bored", "a sky\n  blue sea", "skyblue", "c++!", "", "c+")
    assert values(scorer, *texts) == [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]


def test_words_inside_others_and_by_letter():
    scorer = LexiconScorer({"words": ["red"], "match": "substring", "ignore_case": False})
    assert values(scorer, "bored", "Red", "re d") == [1.0, 0.0, 0.0]
    # Upper and lower case of other alphabets are one word too, whatever their length.
    assert values(LexiconScorer({"words": ["STRASSE"]}), "die Straße", "Strase") == [1.0, 0.0]


def test_shares_and_categories():
    words = {"colour": ["red", "blue", "green"], "animal": ["cat"]}
    section = {"words": ["please"], "categories": words, "count": "share"}
    score = score_dialogues(LexiconScorer(section), [dialogue("The red cat, the blue cat")])[0]
    # red, blue and cat, of five words in all.
    assert score == Score(0.6, {"colour": pytest.approx(2 / 3), "animal": 1.0})
    score = score_dialogues(LexiconScorer({**section, "count": "any"}), [dialogue("red")])[0]
    assert score == Score(1.0, {"colour": 1.0, "animal": 0.0})


def test_a_word_that_is_in_two_categories_counts_once():
    section = {"categories": {"a": ["red"], "b": ["red", "blue"]}, "count": "share"}
    assert score_dialogues(LexiconScorer(section), [dialogue("red")])[0] == Score(
        0.5, {"a": 1.0, "b": 0.5}
    )


def test_words_of_the_prompt():
    scorer = LexiconScorer({"words_key": "word"})
    found = score_dialogues(
        scorer,
        [
            dialogue("a fox", word="fox"),
            dialogue("a fox", word=["hen", "fox"]),
            dialogue("a fox", word="hen"),
            dialogue("a fox", colour="red"),
            dialogue("a fox", word=3),
            dialogue("a fox", word=" "),
        ],
    )
    assert [score.value for score in found[:3]] == [1.0, 1.0, 0.0]
    says = "LexiconScorer: column 'word' of the prompt is None.*its columns are: colour"
    assert not any(score.failure for score in found[:3])
    assert re.match(says, found[3].failure)
    assert all("a word or a list" in score.failure for score in found[3:])


@pytest.mark.parametrize(
    ("reads", "value"), [("response", 0.0), ("probe", 1.0), ("exchange", 1.0), ("dialogue", 1.0)]
)
def test_which_part_is_read(reads, value):
    talk = dialogue("no", probe="a red one")
    assert (
        score_dialogues(LexiconScorer({"words": ["red"], "reads": reads}), [talk])[0].value == value
    )


def test_patterns():
    section = {
        "patterns": [r"pass\w+:\s*\S"],
        "categories": {"number": [r"\d{4}"], "line": [r"^end$"]},
    }
    scorer = RegexScorer({**section, "multiline": True})
    found = score_dialogues(
        scorer, [dialogue(text) for text in ("PASSWORD: x", "4711\nEnd\n", "47 11")]
    )
    assert found == [
        Score(1.0, {"number": 0.0, "line": 0.0}),
        Score(1.0, {"number": 1.0, "line": 1.0}),
        Score(0.0, {"number": 0.0, "line": 0.0}),
    ]
    assert values(RegexScorer({"patterns": ["a.b"], "dotall": False}), "a\nb") == [0.0]
    assert values(RegexScorer({"patterns": ["a.b", "c"], "count": "share"}), "a\nb") == [0.5]
    assert values(RegexScorer({"patterns": ["A"], "ignore_case": False}), "a") == [0.0]


def test_a_pattern_that_takes_too_long_leaves_that_dialogue_without_a_score():
    scorer = RegexScorer({"patterns": [r"(a|aa)+$"], "time_limit": 0.05})
    slow, quick = score_dialogues(scorer, [dialogue("a" * 60 + "b"), dialogue("aa")])
    assert "took more than 0.05 seconds on a text of 61 characters" in slow.failure
    assert quick == Score(1.0)


@pytest.mark.parametrize(
    ("cls", "section", "says"),
    [
        (LexiconScorer, {}, "words, categories and words_key are all empty"),
        (LexiconScorer, {"words": ["a", " "]}, r"words\[1\] is empty"),
        (LexiconScorer, {"categories": {"x": []}}, r"categories\.x is empty"),
        (LexiconScorer, {"categories": {"x": [""]}}, r"categories\.x\[0\] is empty"),
        (LexiconScorer, {"categories": {"": ["a"]}}, "a category without a name"),
        (LexiconScorer, {"words": ["a"], "match": "whole"}, "match.*word, substring"),
        (LexiconScorer, {"words": ["a"], "count": "all"}, "count.*any, share"),
        (LexiconScorer, {"words": ["a"], "reads": "respons"}, "reads.*response"),
        (RegexScorer, {}, "patterns and categories are both empty"),
        (RegexScorer, {"patterns": ["a", "(b"]}, r"patterns\[1\] '\(b' is no regular expression"),
        (RegexScorer, {"categories": {"x": ["["]}}, r"categories\.x\[0\] '\[' is no regular"),
        (RegexScorer, {"patterns": [""]}, r"patterns\[0\] is empty"),
        (RegexScorer, {"patterns": ["(a{1000}){1000}{9}"]}, "would not be compiled in time"),
        (RegexScorer, {"patterns": ["a"], "time_limit": 0.0}, "time_limit.*must be above 0"),
        (WeightedScorer, {"parts": []}, "parts is empty|parts: is empty"),
        (WeightedScorer, {"parts": [{"weight": 1.0}]}, "scorer.*is missing"),
        (
            WeightedScorer,
            {"parts": [{"scorer": {"type": "lexicon", "words": ["a"]}}] * 2},
            "two parts are named 'lexicon'",
        ),
        (
            WeightedScorer,
            {"parts": [{"scorer": {"type": "lexicon", "words": ["a"]}, "weight": 0.0}]},
            "every weight is 0",
        ),
        (WeightedScorer, {"parts": [{"scorer": "lexcon"}]}, "did you mean lexicon"),
        (WeightedScorer, {"parts": [{"scorer": "lexicon"}]}, "are all empty"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(cls, section, says):
    with pytest.raises(ConfigError, match=says) as caught:
        configure(cls, section)
    assert len(str(caught.value).splitlines()) == 1


RED = {"type": "lexicon", "words": ["red"]}
DIGITS = {"type": "regex", "categories": {"few": [r"\d"], "many": [r"\d{3}"]}, "count": "share"}


def made(parts, **options):
    section = configure(WeightedScorer, {"type": "weighted", "parts": parts, **options})
    return scorer_of_run(Factory(default_registry()), section, "red_team.scorer", Models({}))


def test_weights_add_up_and_categories_keep_their_part():
    parts = [{"scorer": RED, "weight": 2.0, "name": "colour"}, {"scorer": DIGITS, "weight": 0.5}]
    score = score_dialogues(made(parts), [dialogue("red 1")])[0]
    # 2 * 1 + 0.5 * (1 of 2 patterns)
    assert score == Score(2.25, {"colour": 1.0, "regex": 0.5, "regex/few": 1.0, "regex/many": 0.0})
    assert score_dialogues(made(parts, normalize=True), [dialogue("red 1")])[0].value == 0.9
    nested = made([{"scorer": {"type": "weighted", "parts": parts}, "weight": 2.0, "name": "all"}])
    score = score_dialogues(nested, [dialogue("red")])[0]
    assert (score.value, score.categories["all/colour"]) == (4.0, 1.0)


def test_a_part_that_fails_fails_the_whole_unless_it_counts_nothing(registry):
    def odd(dialogue):
        if dialogue.response == "odd":
            raise LookupError("gone")
        return 0.25

    registry.register("scorer", "odd", odd)
    parts = [{"scorer": RED}, {"scorer": "odd", "weight": -1.0}]
    good, bad = score_dialogues(made(parts), [dialogue("red"), dialogue("odd")])
    assert good == Score(0.75, {"lexicon": 1.0, "odd": 0.25})
    assert bad.failure.startswith("of part 'odd': odd raised LookupError: gone")
    parts[1]["weight"] = 0.0
    good, bad = score_dialogues(made(parts), [dialogue("red"), dialogue("odd")])
    assert good == Score(1.0, {"lexicon": 1.0, "odd": 0.25})
    assert bad == Score(0.0, {"lexicon": 0.0})


def test_members_in_code():
    section = {"parts": [{"scorer": RED, "weight": 3.0}]}
    scorer = WeightedScorer(section, [LexiconScorer({"words": ["red"]})])
    assert values(scorer, "red", "blue") == [3.0, 0.0]
    with pytest.raises(UsageError, match="no members yet"):
        score_dialogues(WeightedScorer(section), [dialogue("red")])
    with pytest.raises(UsageError, match="2 members for 1 parts"):
        WeightedScorer(section, [scorer, scorer])


def test_scorers_by_name_for_programs(registry, tmp_path):
    parts = [{"scorer": RED, "weight": 2.0}, {"scorer": DIGITS, "weight": 0.5}]
    section = {"type": "weighted", "parts": parts}
    talks = [dialogue("red 1"), dialogue("blue")]
    assert score_dialogues(make_scorer(section), talks) == score_dialogues(made(parts), talks)
    registry.register("scorer", "half", lambda dialogue: 0.5)
    assert values(make_scorer("half"), "x") == [0.5]
    (tmp_path / "own.py").write_text("def own(dialogue):\n    return len(dialogue.response)\n")
    own = {
        "custom_scorer_module_path": str(tmp_path / "own.py"),
        "custom_scorer_class_name": "own",
    }
    assert values(make_scorer(own), "abc") == [3.0]
    asks = {"type": "weighted", "parts": [{"scorer": {"type": "llm_judge"}}]}
    with pytest.raises(UsageError, match="no model 'judge'.*models are: none"):
        score_dialogues(make_scorer(asks, {}), talks)
    with pytest.raises(UsageError, match="there is no run"):
        score_dialogues(make_scorer(asks), talks)
    with pytest.raises(ConfigError, match="words, categories and words_key are all empty"):
        make_scorer("lexicon")
    with pytest.raises(ConfigError, match="did you mean lexicon"):
        make_scorer("lexcon")
