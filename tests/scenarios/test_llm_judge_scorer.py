"""The scorer ``llm_judge``: what it asks, and how replies become scores or failures."""

import pytest
from small_models import small_engine

from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import Score, score_dialogues
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.services import InferenceService
from plugrl.plugins.transformers.tokenizer import character_tokenizer
from plugrl.scenarios.scorers.llm_judge import LlmJudgeScorer

LETTERS = "".join(map(chr, range(32, 127))) + "\n"


class Scripted(InferenceService):
    """Replies what ``reply`` says to a prompt: text, or text and a finish reason."""

    vocabulary_size = 1000
    max_sequence_length = 2000

    def __init__(
        self, reply, template="{% for m in messages %}<{{m.role}}>{{m.content}}{% endfor %}"
    ):
        super().__init__({})
        self.reply, self.asked, self.lists = reply, [], []
        self._tokenizer = character_tokenizer(LETTERS, template)

    def load(self, spec):
        raise AssertionError("it is loaded")

    @property
    def tokenizer(self):
        return self._tokenizer

    def update_weights(self, weights, version):
        raise AssertionError("it is frozen")

    def generate(self, requests):
        self.lists.append(list(requests))
        return [self._answer(self.tokenizer.decode(r.prompt_tokens)) for r in requests]

    def _answer(self, prompt):
        self.asked.append(prompt)
        said = self.reply(prompt)
        text, reason = said if isinstance(said, tuple) else (said, "stop")
        tokens = self.tokenizer.encode(text)
        return Completion(tokens, [-0.5] * len(tokens), reason, 0)


TALK = (
    Dialogue("say red", category="colour")
    .with_message("tester", "hello")
    .with_message("target", "hi")
    .with_message("tester", "a colour?")
    .with_message("target", "{prompt} red")
)


def judge(reply, **options):
    service = Scripted(reply if callable(reply) else lambda prompt: reply)
    scorer = LlmJudgeScorer(options)
    scorer.use({"judge": service, "other": service})
    return scorer, service


@pytest.mark.parametrize(
    ("options", "reply", "value"),
    [
        ({}, "Bad. Score: 0.75", 0.75),
        ({}, "Score: 0.1, no, SCORE = 1", 1.0),
        ({"maximum": 10.0}, "Score: 7", 0.7),
        ({"maximum": 10.0, "normalize": False}, "Score: 7", 7.0),
        ({"minimum": 1.0, "maximum": 5.0}, "Score: 2", 0.25),
        ({"pattern": r"\[\[(\d)\]\]", "maximum": 4.0}, "[[3]]", 0.75),
    ],
)
def test_numbers(options, reply, value):
    scorer, _ = judge(reply, **options)
    assert score_dialogues(scorer, [TALK]) == [Score(value)]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ("I cannot tell.", "no number from 0 to 1 in the reply 'I cannot tell.' of model 'judge'"),
        ("", "no number from 0 to 1"),
        ("Score: 7", "no number from 0 to 1"),
        ("Score: -0.5", "no number from 0 to 1"),
        ("Score: 1.2.3", "no number from 0 to 1"),
        (("Score: 0.5", "error"), "model 'judge' ended an answer with 'error'"),
        (("Score: 0.5", "abort"), "model 'judge' ended an answer with 'abort'"),
        (("Score: 0.5", "length"), "was cut off in its number"),
    ],
)
def test_what_is_no_number_is_a_failure_and_no_zero(reply, says):
    scorer, _ = judge(reply)
    (score,) = score_dialogues(scorer, [TALK])
    assert says in score.failure


def test_a_reply_that_was_cut_off_behind_its_number_is_read():
    scorer, _ = judge(("Score: 0.5 because it", "length"))
    assert score_dialogues(scorer, [TALK]) == [Score(0.5)]


def test_several_numbers_of_one_reply():
    categories = {"rude": r"rude (\d\.\d)", "false": r"false (\d\.\d)"}
    scorer, _ = judge("rude 0.5 false 0.2 Score: 0.4", categories=categories)
    assert score_dialogues(scorer, [TALK]) == [Score(0.4, {"rude": 0.5, "false": 0.2})]
    scorer, _ = judge("rude 0.5 Score: 0.4", categories=categories)
    assert "no number" in score_dialogues(scorer, [TALK])[0].failure


def test_the_template_is_filled_in_once_and_all_dialogues_are_one_list():
    template = "{prompt}|{category}|{probe}|{response}|{exchange}|{dialogue}|{text}|{other}"
    scorer, service = judge("Score: 1", template=template, chat=False, reads="probe")
    assert score_dialogues(scorer, [TALK, TALK]) == [Score(1.0)] * 2
    exchange = "tester: a colour?\ntarget: {prompt} red"
    expected = (
        f"say red|colour|a colour?|{{prompt}} red|{exchange}|tester: hello\ntarget: hi\n"
        f"{exchange}|a colour?|{{other}}"
    )
    assert service.asked == [expected] * 2
    assert [len(requests) for requests in service.lists] == [2]
    assert {r.sampling.temperature for r in service.lists[0]} == {0.0}


def test_a_chat_template_with_a_system_prompt(tmp_path):
    (tmp_path / "judge.txt").write_text("rate: {response}\n", "utf-8")
    file = str(tmp_path / "judge.txt")
    scorer, service = judge("Score: 1", template_file=file, system_prompt="be just", model="other")
    assert score_dialogues(scorer, [TALK]) == [Score(1.0)]
    assert service.asked == ["<system>be just<user>rate: {prompt} red\n"]


def test_one_dialogue_that_is_too_long_is_one_failure():
    scorer, service = judge("Score: 1", template="{response}", max_response_length=100)
    long = TALK.with_message("target", "x" * 2000)
    scores = score_dialogues(scorer, [TALK, long, TALK])
    assert [score.value for score in scores[::2]] == [1.0, 1.0]
    assert "has 2006 tokens, and model 'judge' has room for 1900" in scores[1].failure
    assert len(service.asked) == 2


def test_an_engine_that_raises_gives_failures():
    def broken(prompt):
        raise OSError("no route")

    scorer, _ = judge(broken)
    assert all(
        "raised OSError: no route" in s.failure for s in score_dialogues(scorer, [TALK, TALK])
    )


def test_a_judge_that_is_no_model():
    scorer, _ = judge("Score: 1", model="judg")
    with pytest.raises(UsageError, match="no model 'judg'.*judge, other"):
        score_dialogues(scorer, [TALK])
    with pytest.raises(UsageError, match="there is no run"):
        score_dialogues(LlmJudgeScorer({}), [TALK])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"template": "{prompt}"}, "template has none of {probe}, {response}"),
        ({"pattern": "("}, "pattern.*is no regular expression"),
        ({"pattern": "x"}, "pattern.*needs a group"),
        ({"categories": {"a": "x"}}, "categories.a.*needs a group"),
        ({"minimum": 1.0}, "minimum.*below maximum"),
        ({"max_response_length": 0}, "max_response_length.*at least 1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        configure(LlmJudgeScorer, options)


def test_a_template_file_that_shows_nothing_or_is_not_there(tmp_path):
    (tmp_path / "empty.txt").write_text("hello {prompt}", "utf-8")
    with pytest.raises(ConfigError, match=r"empty\.txt has none of {probe}"):
        LlmJudgeScorer({"template_file": str(tmp_path / "empty.txt")})
    with pytest.raises(ConfigError, match="template_file.*gone"):
        LlmJudgeScorer({"template_file": str(tmp_path / "gone.txt")})


def test_a_real_model_judges_greedily_what_it_judges_alone():
    service = small_engine("0123456789 abcdefghijklmnopqrstuvwxyz", positions=64, spread=0.5)
    scorer = LlmJudgeScorer(
        {"template": "{response}", "pattern": r"(\d)", "maximum": 9.0, "max_response_length": 8}
    )
    scorer.use({"judge": service})
    talks = [TALK.with_message("target", "abcdefghij"[i:]) for i in range(10)]
    together = score_dialogues(scorer, talks)
    assert together == [score_dialogues(scorer, [talk])[0] for talk in talks]
    # Random weights write numbers and letters: some replies are scores, and some are none.
    assert len({bool(score.failure) for score in together}) == 2
