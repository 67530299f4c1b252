"""Forms of rows as TRL documents them, and what rollout workers make of them."""

import json
import sys
from pathlib import Path

import pytest

from plugrl.core.component import build
from plugrl.core.errors import ConfigError
from plugrl.core.text.data.columns import extract_prompt, tools_of
from plugrl.core.text.data.files import read_files
from plugrl.core.text.data.loader import attempts_at_all
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer
from plugrl.scenarios.rollout_workers.demonstration import DemonstrationRolloutWorker
from plugrl.scenarios.rollout_workers.preference import PreferenceRolloutWorker

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Unloaded

TEMPLATE = (
    "{% for t in tools or [] %}<{{ t.name }}>{% endfor %}"
    "{% for m in messages %}({{ m.role[0] }}){{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}(a){% endif %}"
)
DATA = {"prompt_key": "prompt", "answer_key": "answer"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


class Engine(Unloaded):
    def __init__(self):
        super().__init__()
        letters = "abcdefghijklmnopqrstuvwxyz .()<>?ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        self.tokenizer = CharacterTokenizer(letters, TEMPLATE)

    def generate(self, requests):
        raise AssertionError("nothing is sampled")


def made(cls, rows, is_val=False, **config):
    """Texts of the trajectories of rows: what is not learned stands in capitals, ends are /."""
    worker = build(cls, {"max_response_length": 60, "max_prompt_length": 60, **config})
    rows = cls.read_rows(rows, worker.config, DATA, "data", is_val=is_val)
    engine = Engine()
    rollouts = LockstepRollouts(worker, {"policy": engine}, seed=0)
    prompts = attempts_at_all(rows, "data", 1, ("prompt", "answer"))
    texts = []
    for t in rollouts.collect(prompts, 0, SamplingParams()):
        letters = [
            "/" if token == engine.tokenizer.eos_token_id else engine.tokenizer.decode([token])
            for token in t.tokens
        ]
        pairs = zip(letters, t.loss_mask, strict=True)
        texts.append("".join(letter if learned else letter.upper() for letter, learned in pairs))
    return texts


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "the sky is", "answer": " blue."}, "THE SKY IS blue./"),
        # The examples of TRL's page on formats, standard and conversational.
        ({"prompt": "the sky is", "completion": " blue."}, "THE SKY IS blue./"),
        (
            {"prompt": [user("what colour?")], "completion": [assistant("it is blue.")]},
            "(U)WHAT COLOUR?/(A)it is blue./",
        ),
        ({"text": "the sky is blue."}, "The sky is blue./"),
        (
            {"messages": [user("hi"), assistant("hey"), user("how?"), assistant("fine")]},
            "(U)HI/(A)hey/(U)HOW?/(A)fine/",
        ),
        # What follows the last reply is not there to be learned from.
        ({"messages": [user("hi"), assistant("hey"), user("bye")]}, "(U)HI/(A)hey/"),
        # Columns that say nothing here are left alone, as those of ultrachat.
        (
            {"prompt": "hi", "prompt_id": "x", "messages": [user("hi"), assistant("ho")]},
            "(U)HI/(A)ho/",
        ),
        # Replies of the prompt are part of it.
        (
            {"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]},
            "(U)A/(A)B/(U)C/(A)d/",
        ),
        # Tools are shown to the template, and their results are not learned.
        (
            {
                "prompt": [user("a")],
                "completion": [assistant("b"), {"role": "tool", "content": "c"}, assistant("d")],
                "tools": json.dumps([{"name": "f"}]),
            },
            "<F>(U)A/(A)b/(T)C/(A)d/",
        ),
        # Parquet has every column in every row.
        ({"prompt": None, "completion": None, "text": "ab", "messages": None}, "Ab/"),
    ],
)
def test_demonstrations(row, expected):
    assert made(DemonstrationRolloutWorker, [row]) == [expected]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "ab", "completion": "cd"}, "Abcd/"),
        ({"messages": [user("hi"), assistant("hey")]}, "(u)hi/(a)hey/"),
    ],
)
def test_all_of_it_is_learned_where_that_is_asked(row, expected):
    assert made(DemonstrationRolloutWorker, [row], learned="all") == [expected]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"completion": "b", "prompt": "a"}, ("a", "b")),
        ({"messages": [user("a"), assistant("b")]}, ([user("a")], "b")),
        ({"prompt": "a"}, ("a", None)),
        ({"prompt": [user("a")], "completion": [assistant("b")]}, ([user("a")], "b")),
    ],
)
def test_held_out_rows_have_a_prompt_and_an_answer(row, expected):
    (found,) = DemonstrationRolloutWorker.read_rows([row], {}, DATA, "validate.data", is_val=True)
    assert (found["prompt"], found.get("answer")) == expected


PAIR = ["THE SKY IS blue./", "THE SKY IS green./"]
ASKED = ["(U)WHAT?/(A)blue./", "(U)WHAT?/(A)green./"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "the sky is", "chosen": " blue.", "rejected": " green."}, PAIR),
        ({"chosen": "the sky is blue.", "rejected": "the sky is green."}, PAIR),
        (
            {
                "prompt": [user("what?")],
                "chosen": [assistant("blue.")],
                "rejected": [assistant("green.")],
            },
            ASKED,
        ),
        (
            {
                "chosen": [user("what?"), assistant("blue.")],
                "rejected": [user("what?"), assistant("green.")],
            },
            ASKED,
        ),
        # As ultrafeedback has it: the prompt as text, and again at the beginning of the answers.
        (
            {
                "prompt": "what?",
                "messages": [user("what?"), assistant("blue.")],
                "chosen": [user("what?"), assistant("blue.")],
                "rejected": [user("what?"), assistant("green.")],
            },
            ASKED,
        ),
        ({"prompt": "the sky is", "completion": " blue.", "label": True}, PAIR[:1]),
        (
            {"prompt": [user("what?")], "completion": [assistant("blue.")], "label": False},
            ASKED[:1],
        ),
    ],
)
def test_judged_answers(row, expected):
    assert made(PreferenceRolloutWorker, [row]) == expected


def test_their_judgement_stands_beside_them():
    worker = build(PreferenceRolloutWorker, {})
    rollouts = LockstepRollouts(worker, {"policy": Engine()}, seed=0)
    rows = [
        {"prompt": "a", "completion": "b", "label": True},
        {"prompt": "a", "completion": "c", "label": False},
    ]
    found = rollouts.collect(
        attempts_at_all(rows, "data", 1, ("prompt", "answer")), 0, SamplingParams()
    )
    assert [t["preferred"] for t in found] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    # What trl.extract_prompt of TRL 1.16.0 gives.
    [
        ("The sky is blue.", "The sky is green.", ("The sky is", " blue.", " green.")),
        ("The sky is blue", "The sky is bluegreen", ("The sky is blu", "e", "egreen")),
        ("aXb", "aYb", ("a", "Xb", "Yb")),
        ("a b c", "a b d", ("a b", " c", " d")),
        (
            [user("q"), assistant("x"), user("z"), assistant("1")],
            [user("q"), assistant("x"), user("z"), assistant("2")],
            ([user("q"), assistant("x"), user("z")], [assistant("1")], [assistant("2")]),
        ),
        (
            [user("q"), assistant("x")],
            [user("q"), assistant("x"), user("more")],
            ([user("q")], [assistant("x")], [assistant("x"), user("more")]),
        ),
    ],
)
def test_the_prompt_that_two_answers_begin_with_is_that_of_trl(chosen, rejected, expected):
    assert extract_prompt(chosen, rejected) == expected


FORMS = "prompt with answer; prompt with completion; messages; text"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"question": "a", "solution": "b"}],
            "rows.jsonl:1 has columns question, solution; the columns of one of these forms are "
            f"expected: {FORMS}",
        ),
        ([{}], "rows.jsonl:1 has no columns; the columns of one of these forms"),
        (
            [{"prompt": "a", "completion": "b"}, {"messages": [user("a"), assistant("b")]}],
            "rows.jsonl:2 has columns messages (messages, as messages), and ROWS:1 is prompt with "
            "completion, as text; give all rows one form",
        ),
        (
            [
                {"prompt": "a", "completion": "b"},
                {"prompt": [user("a")], "completion": [assistant("b")]},
            ],
            "rows.jsonl:2 has columns prompt, completion (prompt with completion, as messages), "
            "and ROWS:1 is prompt with completion, as text",
        ),
        ([{"prompt": "a", "completion": 3}], "rows.jsonl:1: column 'completion' holds int; a text"),
        (
            [{"prompt": "a", "completion": [assistant("b")]}],
            "column 'completion' is a list and must be text, as column 'prompt' is",
        ),
        ([{"text": [user("a")]}], "rows.jsonl:1: column 'text' is a list and must be text"),
        ([{"messages": "a"}], "column 'messages' is text and must be a list of messages"),
        ([{"messages": []}], "column 'messages' is an empty list"),
        (
            [{"messages": [{"from": "human", "value": "a"}]}],
            "column 'messages': message 0 is {'from': 'human', 'value': 'a'}; a mapping with role",
        ),
    ],
)
def test_rows_of_no_form_are_named_in_one_line(tmp_path, rows, said):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError) as caught:
        DemonstrationRolloutWorker.read_rows(read_files([path]), {}, DATA, "data", is_val=False)
    assert said in str(caught.value).replace(f"and {path}:1", "and ROWS:1")
    assert str(caught.value).startswith("data: ")
    assert "\n" not in str(caught.value)


def test_the_columns_of_these_forms_have_the_names_of_the_settings():
    data = {"prompt_key": "question", "answer_key": "solution"}
    row = {"question": "a", "solution": 3}
    rows = [row]
    assert DemonstrationRolloutWorker.read_rows(rows, {}, data, "data", is_val=False) is rows


@pytest.mark.parametrize("tools", [None, [], [{"name": "f"}], '[{"name": "f"}]'])
def test_tools_are_a_list_or_its_json(tools):
    assert tools_of({"tools": tools}, "row 1") == ([{"name": "f"}] if tools else None)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tools": "f(x)"}, "row 1: column 'tools' is no list of tools and no JSON of one"),
        ({"tools": 3}, "row 1: column 'tools' is no list"),
        ({"chat_template_kwargs": {"a": 1}}, "row 1: column 'chat_template_kwargs' is not read"),
    ],
)
def test_what_the_template_cannot_be_given_is_refused(row, said):
    with pytest.raises(ConfigError, match=said):
        tools_of(row, "row 1")


def test_a_row_without_anything_to_learn_is_named():
    with pytest.raises(ConfigError, match="problem 0 has nothing to learn"):
        made(DemonstrationRolloutWorker, [{"messages": [user("a")]}])


def test_a_conversation_has_the_room_of_prompt_and_answer():
    row = {"messages": [user("a" * 20), assistant("b" * 20)]}
    (text,) = made(DemonstrationRolloutWorker, [row])
    assert len(text) == 48
    with pytest.raises(ConfigError, match="max_prompt_length \\+ max_response_length=40"):
        made(DemonstrationRolloutWorker, [row], max_prompt_length=20, max_response_length=20)
