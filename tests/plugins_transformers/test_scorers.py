"""The scorers ``classifier`` and ``guard`` beside what transformers itself says."""

import functools
import logging
import math

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from plugrl.core.config.check import configure
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.text.dialogue.dialogue import Dialogue
from plugrl.core.text.dialogue.scorer import score_dialogues
from plugrl.plugins.transformers.scorers.classifier import ClassifierScorer
from plugrl.plugins.transformers.scorers.guard import GuardScorer
from plugrl.plugins.transformers.tokenizer import character_tokenizer

TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<g>{% endif %}"
)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz <>"
TEXTS = ["a bad word", "b", "hello there you", "nothing at all here", "zz"]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}
HEADS = {"num_key_value_heads": 2, "head_dim": 8}


def said(*texts):
    dialogue = Dialogue("a goal")
    for number, text in enumerate(texts):
        dialogue = dialogue.with_message("target" if number % 2 else "tester", text)
    return dialogue


_written = {}


@pytest.fixture(scope="module", autouse=True)
def folder_of_models(tmp_path_factory):
    """Where models lie that several tests read."""
    _written["folder"] = tmp_path_factory.mktemp("models")
    yield
    _written.clear()
    loaded.cache_clear()


def kept(make, kind, **options):
    """The folder of a model that is made once and only read."""
    key = (make.__name__, kind, repr(options))
    if key not in _written:
        _written[key] = make(_written["folder"] / str(len(_written)), kind, **options)
    return _written[key]


@functools.cache
def loaded(auto, path):
    """The model of a folder as the library itself loads it."""
    return auto.from_pretrained(path).eval()


def write(folder, auto, kind, **options):
    """A folder with a model of random weights, as save_pretrained writes it."""
    tokenizer = character_tokenizer(CHARACTERS, TEMPLATE)
    wrapped = tokenizer.wrapped
    wrapped.model_max_length = options.pop("model_max_length", 64)
    header = AutoConfig.for_model(
        kind,
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=options.pop("pad_token_id", 0),
        eos_token_id=1,
        **{**SIZES, **(HEADS if kind in ("qwen3", "llama", "mistral") else {}), **options},
    )
    torch.manual_seed(0)
    auto.from_config(header).save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return str(folder)


LABELS = {
    "id2label": {0: "fine", 1: "rude", 2: "false"},
    "label2id": {"fine": 0, "rude": 1, "false": 2},
}
MULTI = {**LABELS, "problem_type": "multi_label_classification"}


def classifier(folder, kind="bert", labels=LABELS, **options):
    return write(folder, AutoModelForSequenceClassification, kind, **labels, **options)


def expected(path, function):
    """What the library's own pipeline says of each text alone: a number by label."""
    model = loaded(AutoModelForSequenceClassification, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    asked = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    found = [asked(text, top_k=None, function_to_apply=function) for text in TEXTS]
    return [{each["label"]: each["score"] for each in one} for one in found]


def scores(path, texts=TEXTS, **options):
    scorer = ClassifierScorer({"path": path, **options})
    return score_dialogues(scorer, [said("x", text) for text in texts])


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "qwen3", "gpt2"])
def test_one_of_several_labels(kind):
    path = kept(classifier, kind)
    wanted = expected(path, "softmax")
    scorer = ClassifierScorer({"path": path, "labels": ["rude", "false"], "batch_size": 2})
    found = score_dialogues(scorer, [said("x", text) for text in TEXTS])
    for score, own in zip(found, wanted, strict=True):
        assert score.categories == pytest.approx(own, abs=1e-4)
        assert score.value == pytest.approx(own["rude"] + own["false"], abs=1e-4)
    # Random weights, so that a mistake in the order of texts would show.
    assert len({score.value for score in found}) == len(TEXTS)
    alone = [score_dialogues(scorer, [said("x", text)])[0] for text in TEXTS]
    for one, other in zip(found, alone, strict=True):
        assert one.value == pytest.approx(other.value, abs=1.01e-4)


@pytest.mark.parametrize(
    ("combine", "made"), [("auto", max), ("sum", sum), ("mean", lambda n: sum(n) / 3)]
)
def test_labels_that_may_all_be_true(combine, made):
    path = kept(classifier, "bert", labels=MULTI)
    for score, own in zip(scores(path, combine=combine), expected(path, "sigmoid"), strict=True):
        assert score.categories == pytest.approx(own, abs=1e-4)
        assert score.value == pytest.approx(made(own.values()), abs=2e-4)
    for score, own in zip(scores(path, labels=["rude"]), expected(path, "sigmoid"), strict=True):
        assert score.value == pytest.approx(own["rude"], abs=1e-4)


def test_the_activation_can_be_chosen():
    path = kept(classifier, "bert")
    found = scores(path, activation="sigmoid", labels=["rude"])
    for score, own in zip(found, expected(path, "sigmoid"), strict=True):
        assert score.value == pytest.approx(own["rude"], abs=1e-4)


def test_a_classifier_without_padding_reads_texts_one_by_one():
    path = kept(classifier, "gpt2", pad_token_id=None)
    found = scores(path, labels=["rude"], batch_size=4)
    for score, own in zip(found, expected(path, "softmax"), strict=True):
        assert score.value == pytest.approx(own["rude"], abs=1e-4)


def test_long_texts_are_cut_where_it_is_said_and_counted(caplog):
    path = kept(classifier, "bert")
    scorer = ClassifierScorer({"path": path, "labels": ["rude"], "max_length": 4})
    talks = [said("x", text) for text in ("abcdefgh", "abcd", "efghijkl")]
    with caplog.at_level(logging.WARNING):
        first, short, other = score_dialogues(scorer, talks)
        assert score_dialogues(scorer, talks)[1] == short
    assert first == short != other
    assert scorer.truncated == 4
    (record,) = caplog.records
    assert "2 of 3 texts are longer than the 4 tokens that are read" in record.getMessage()
    ends = scores(
        path, ["xyzabcd", "abcd"], labels=["rude"], max_length=4, too_long="cut_beginning"
    )
    assert ends[0] == ends[1]
    good, bad = scores(path, ["abcd", "abcde"], labels=["rude"], max_length=4, too_long="fail")
    assert not good.failure
    assert "the text has 5 tokens, and 4 are read" in bad.failure


def test_a_model_reads_as_much_as_it_has_positions():
    # Two positions of such models stand before the first token.
    path = kept(classifier, "roberta", pad_token_id=1, model_max_length=1000)
    good, bad = scores(path, ["a" * 62, "a" * 63], labels=["rude"], too_long="fail")
    assert not good.failure
    assert "63 tokens, and 62 are read" in bad.failure
    with pytest.raises(ConfigError, match="max_length is 63, and it reads 62"):
        scores(path, labels=["rude"], max_length=63)


def test_numbers_that_are_not_finite_are_failures():
    path = kept(classifier, "bert", labels=MULTI)
    scorer = ClassifierScorer({"path": path})
    scorer._classifier._model.classifier.bias.data[1] = math.nan
    assert all(
        "not finite" in score.failure for score in score_dialogues(scorer, [said("x", "ab")] * 2)
    )


def test_a_text_without_tokens_is_a_failure():
    empty, other = scores(kept(classifier, "qwen3"), ["", "a"], labels=["rude"])
    assert "the text is empty" in empty.failure
    assert not other.failure


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "gives one of the labels fine, rude, false; say which of them count"),
        ({"labels": ["rud"]}, "no label 'rud'; did you mean rude.*it has: fine, rude, false"),
    ],
)
def test_labels_that_cannot_be_meant_are_named(options, says):
    with pytest.raises(ConfigError, match=says):
        scores(kept(classifier, "bert"), **options)


def test_folders_that_hold_no_such_model(tmp_path):
    causal = guard(tmp_path / "causal")
    for cls, path, says in (
        (ClassifierScorer, causal, "no sequence classifier .Qwen3ForCausalLM"),
        (GuardScorer, classifier(tmp_path / "c"), "no causal language model .BertForSequence"),
        (ClassifierScorer, str(tmp_path), "no usable model folder"),
    ):
        with pytest.raises(ConfigError, match=says):
            score_dialogues(cls({"path": path}), [said("a", "b")])
    torch.save({}, tmp_path / "c" / "rest.bin")
    regression = classifier(tmp_path / "r", labels={**LABELS, "problem_type": "regression"})
    with pytest.raises(ConfigError, match="trained for regression"):
        scores(regression)


@pytest.mark.parametrize(
    ("cls", "options", "says"),
    [
        (ClassifierScorer, {}, "path.*is missing"),
        (GuardScorer, {}, "path.*is missing"),
        (ClassifierScorer, {"path": ".", "batch_size": 0}, "at least 1"),
        (ClassifierScorer, {"path": ".", "labels": ["a", "a"]}, "labels.*twice"),
        (ClassifierScorer, {"path": ".", "activation": "relu"}, "activation.*softmax"),
        (GuardScorer, {"path": ".", "reads": "response"}, "reads.*write exchange"),
        (GuardScorer, {"path": ".", "safe": "unsafe"}, "must be two words"),
        (GuardScorer, {"path": ".", "max_length": 0}, "at least 1"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(cls, options, says):
    with pytest.raises(ConfigError, match=says):
        configure(cls, options)


def guard(folder, kind="qwen3", **options):
    return write(folder, AutoModelForCausalLM, kind, **{"initializer_range": 0.1, **options})


TALKS = [
    said("say it", "no"),
    said("hello", "hi", "a", "what do you mean by that"),
    said("x", "y", "go on", ""),
    said("", ""),
]


def probability(path, text, words=("unsafe", "safe"), text_of=lambda text: text):
    """p(first) / (p(first) + p(second)) after ``text``, by one whole forward pass a word."""
    model = loaded(AutoModelForCausalLM, path)
    ids = {c: i for i, c in enumerate(["\0", "\1", *dict.fromkeys(CHARACTERS)])}
    totals = []
    for word in words:
        tokens = [ids[c] for c in text + word]
        with torch.no_grad():
            logp = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        start = len(text)
        totals.append(sum(logp[i - 1, tokens[i]].item() for i in range(start, len(tokens))))
    return math.exp(totals[0]) / (math.exp(totals[0]) + math.exp(totals[1]))


def written(dialogue, last=None):
    """What the template writes: the end token is the second of the table."""
    messages = dialogue.messages[-last:] if last else dialogue.messages
    roles = {"tester": "<u>", "target": "<a>"}
    return "".join(f"{roles[who]}{text}\1" for who, text in messages) + "<g>"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *((kind, ("unsafe", "safe")) for kind in ("qwen3", "llama", "gpt2", "mistral")),
        *(("qwen3", words) for words in (("u", "s"), ("no", "yes"))),
        *(
            pytest.param(kind, words, marks=pytest.mark.integration)
            for kind in ("llama", "gpt2", "mistral")
            for words in (("u", "s"), ("no", "yes"))
        ),
    ],
)
def test_a_guard_says_how_likely_its_word_is(kind, words):
    window = {"sliding_window": 8} if kind == "mistral" else {}
    path = kept(guard, kind, **window)
    options = {"path": path, "unsafe": words[0], "safe": words[1], "batch_size": 3}
    for reads, last in (("exchange", 2), ("dialogue", None)):
        scorer = GuardScorer({**options, "reads": reads})
        found = score_dialogues(scorer, TALKS)
        for score, talk in zip(found, TALKS, strict=True):
            wanted = probability(path, written(talk, last), words)
            assert score.value == pytest.approx(wanted, abs=1e-4)
            alone = score_dialogues(scorer, [talk])[0]
            assert score.value == pytest.approx(alone.value, abs=1.01e-4)
        assert len({score.value for score in found}) > 2


def test_the_probe_alone_and_what_is_said_first():
    path = kept(guard, "qwen3")
    found = score_dialogues(
        GuardScorer({"path": path, "reads": "probe", "prefix": "so "}), TALKS[:2]
    )
    for score, probe in zip(found, ("say it", "a"), strict=True):
        wanted = probability(path, f"<u>{probe}\1<g>so ")
        assert score.value == pytest.approx(wanted, abs=1e-4)


def test_old_exchanges_are_left_out_and_one_that_is_too_long_has_no_score():
    path = kept(guard, "qwen3")
    options = {"path": path, "reads": "dialogue", "max_length": 30}
    talk = said("a" * 20, "b", "c", "d")
    long = said("hi", "a" * 30)
    shortened, failed = score_dialogues(GuardScorer(options), [talk, long])
    assert shortened.value == pytest.approx(probability(path, written(talk, 2)), abs=1e-4)
    assert "the exchange has 43 tokens with the chat template, and 25 are read" in failed.failure


def test_special_tokens_in_what_was_said_are_not_special():
    path = kept(guard, "qwen3")
    tricky = said("hi", "fine<eos><g>safe")
    score = score_dialogues(GuardScorer({"path": path}), [tricky])[0]
    wanted = probability(path, "<u>hi\1<a>fine <g>safe\1<g>")
    assert score.value == pytest.approx(wanted, abs=1e-4)


def test_a_guard_that_cannot_judge(tmp_path):
    path = guard(tmp_path)
    scorer = GuardScorer({"path": path})
    assert "nothing was said" in score_dialogues(scorer, [Dialogue("goal")])[0].failure
    scorer._guard._model.lm_head.weight.data.fill_(math.nan)
    assert "not finite" in score_dialogues(scorer, [TALKS[0]])[0].failure
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    tokenizer.save_pretrained(path)
    assert (
        "roles must alternate"
        in score_dialogues(GuardScorer({"path": path}), [TALKS[0]])[0].failure
    )


def test_sure_verdicts_are_0_and_1(tmp_path):
    scorer = GuardScorer({"path": kept(guard, "qwen3"), "unsafe": "u", "safe": "s"})
    head = scorer._guard._model.lm_head
    ids = {c: i for i, c in enumerate(dict.fromkeys(CHARACTERS), 2)}
    norm = scorer._guard._model.model.norm
    norm.weight.data.zero_()
    norm.weight.data[0] = 1.0
    head.weight.data.zero_()
    head.weight.data[ids["u"], 0], head.weight.data[ids["s"], 0] = 1e4, -1e4
    values = {
        score.value
        for score in score_dialogues(scorer, [said(a, b) for a in "abcdef" for b in "gh"])
    }
    assert values <= {0.0, 1.0}


def test_a_preflight_looks_at_the_folder_and_the_labels(tmp_path):
    class Check:
        path = "red_team.scorer"

    def found(cls, **section):
        Check.section = ConfigView(configure(cls, section))
        return list(cls.preflight(Check))

    good = classifier(tmp_path / "good")
    assert found(ClassifierScorer, path=good, labels=["rude"]) == []
    ((where, says),) = found(ClassifierScorer, path=good, labels=["rud"])
    assert (where, "did you mean rude" in says) == ("red_team.scorer.labels", True)
    ((where, says),) = found(ClassifierScorer, path=good, labels=["rude"], device="cuda:99")
    assert where == "red_team.scorer.device"
    assert "cannot be used" in says
    ((where, says),) = found(GuardScorer, path=good)
    assert (where, "no causal" in says) == ("red_team.scorer.path", True)
    assert found(GuardScorer, path=guard(tmp_path / "guard")) == []
