"""The JSON of answers: whole ones worked out by hand, and streams that say the same in pieces."""

import json
import sys
from pathlib import Path

import pytest

from plugrl.core.text.endpoint import answers
from plugrl.core.text.endpoint.requests import read_chat, read_text

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import Written, body, run, session_of

HEAD = answers.AnswerHead("a-1", 1234)


def answered(reader, **values):
    """A request, the choices that answer it, and the tokenizer."""
    model = Written()
    with session_of(model) as session:
        asked = reader(body(**values))
        return asked, run(session.answer(asked)), model.tokenizer


def test_a_whole_answer_of_a_chat():
    asked, choices, spell = answered(
        read_chat,
        messages=[{"role": "user", "content": "hüh"}],
        max_completion_tokens=2,
        logprobs=True,
        return_token_ids=True,
        n=2,
    )
    prompt = spell.encode_chat("<user>hüh\U000f0001<assistant>")
    choice = {
        "finish_reason": "length",
        "message": {"role": "assistant", "content": "hü", "refusal": None},
        "logprobs": {
            "content": [
                {"token": "h", "logprob": -0.125, "bytes": [0x68], "top_logprobs": []},
                {"token": "ü", "logprob": -0.25, "bytes": [0xC3, 0xBC], "top_logprobs": []},
            ],
            "refusal": None,
        },
        "weight_version": 7,
        "token_ids": spell.encode("hü"),
    }
    assert answers.answer_body(HEAD, asked, choices, spell) == {
        "id": "a-1",
        "object": "chat.completion",
        "created": 1234,
        "model": "policy",
        "choices": [{"index": 0, **choice}, {"index": 1, **choice}],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": 4,
            "total_tokens": len(prompt) + 4,
        },
        "prompt_token_ids": prompt,
    }


def test_a_whole_answer_of_text():
    asked, choices, spell = answered(
        read_text, prompt="<user>hüh<", logprobs=0, prompt_logprobs=0, return_token_ids=True
    )
    prompt = spell.encode("<user>hüh<")
    read = {"logprob": -0.5, "rank": None}
    assert answers.answer_body(HEAD, asked, choices, spell) == {
        "id": "a-1",
        "object": "text_completion",
        "created": 1234,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "text": "hüh",
                "logprobs": {
                    # The end token has no text.
                    "tokens": ["h", "ü", "h", ""],
                    "token_logprobs": [-0.125, -0.25, -0.375, -0.5],
                    "top_logprobs": None,
                    "text_offset": [0, 1, 2, 3],
                },
                "weight_version": 7,
                "token_ids": [*spell.encode("hüh"), 1],
                "prompt_token_ids": prompt,
                "prompt_logprobs": [
                    None,
                    *(
                        {str(token): {**read, "decoded_token": letter}}
                        for token, letter in zip(prompt[1:], "user>hüh<", strict=True)
                    ),
                ],
            }
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14},
    }


@pytest.mark.parametrize(
    ("reader", "values", "kind"),
    [
        (
            read_chat,
            {"messages": [{"role": "user", "content": "hüh 日本"}], "logprobs": True},
            "chat.completion.chunk",
        ),
        (read_text, {"prompt": "<user>hüh 日本<", "logprobs": 0}, "text_completion"),
    ],
)
def test_the_pieces_of_a_stream_are_the_whole_answer(reader, values, kind):
    more = {"n": 2, "stream": True, "stream_options": {"include_usage": True}}
    asked, choices, spell = answered(reader, **values, **more, return_token_ids=True)
    whole = answers.answer_body(HEAD, asked, choices, spell)
    lines = "".join(answers.events(HEAD, asked, choices, spell)).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    *chunks, last = (json.loads(line.removeprefix("data: ")) for line in lines[:-2])
    head = {"id": "a-1", "object": kind, "created": 1234, "model": "policy"}
    assert last == {**head, "choices": [], "usage": whole["usage"]}
    assert all({key: chunk[key] for key in head} == head for chunk in chunks)
    for index, expected in enumerate(whole["choices"]):
        parts = [part for c in chunks for part in c["choices"] if part["index"] == index]
        told = {"text": "", "tokens": [], "logprobs": {}}
        for part in parts:
            told["text"] += part["delta"].get("content", "") if "delta" in part else part["text"]
            told["tokens"] += part.get("token_ids", [])
            for name, each in (part["logprobs"] or {}).items():
                kept = told["logprobs"].setdefault(name, each and [])
                if each:
                    kept.extend(each)
        assert told["text"] == (expected.get("text") or expected["message"]["content"])
        assert told["tokens"] == expected["token_ids"]
        assert told["logprobs"] == expected["logprobs"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["stop"]
        assert parts[-1]["weight_version"] == expected["weight_version"] == 7
    first = chunks[0] if "chunk" in kind else chunks[0]["choices"][0]
    assert first["prompt_token_ids"] == choices[0].prompt
