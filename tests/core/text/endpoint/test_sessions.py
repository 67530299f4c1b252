"""Sessions: what is recorded, what continues, and what becomes of odd requests."""

import asyncio
import contextlib
import dataclasses
import json
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugrl.core.errors import RunError
from plugrl.core.text.endpoint.app import _refusal
from plugrl.core.text.endpoint.faults import ApiError
from plugrl.core.text.endpoint.requests import read_chat, read_text
from plugrl.scenarios.parsers.brackets import BracketsParser
from plugrl.scenarios.parsers.think_tag import ThinkTagParser

sys.path.insert(0, str(Path(__file__).parent))
from endpoint_model import Written, body, call_text, run, session_of, tool


def user(text):
    return {"role": "user", "content": text}


def chat(session, messages, **more):
    return run(session.answer(read_chat(body(messages=messages, **more))))


def text(session, prompt, **more):
    return run(session.answer(read_text(body(prompt=prompt, **more))))


def refused(call):
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value


def test_an_answer_is_recorded_token_by_token():
    model = Written()
    with session_of(model) as session:
        (choice,) = chat(session, [user("hi")])
    assert choice.text == "hi"
    assert choice.finish == "stop"
    prompt = model.tokenizer.encode_chat("<user>hi\U000f0001<assistant>")
    (trajectory,) = session.recording.trajectories(group_id="g", run_id=3)
    assert trajectory.tokens == [*prompt, *model.tokenizer.encode("hi"), 1]
    assert trajectory.loss_mask == [0] * len(prompt) + [1, 1, 1]
    assert trajectory.logprobs == [0.0] * len(prompt) + [-0.125, -0.25, -0.375]
    assert trajectory.versions == [-1] * len(prompt) + [7, 7, 7]
    assert (trajectory.group_id, trajectory.run_id, trajectory.temperature) == ("g", 3, 1.0)


def test_turns_that_continue_are_one_trajectory_without_encoding_anew():
    model = Written()
    with session_of(model) as session:
        (first,) = chat(session, [user("one")])
        (second,) = chat(session, [user("one"), first.message, user("two")])
    (trajectory,) = session.recording.trajectories()
    asked = [list(request.prompt_tokens) for request in model.asked]
    assert asked[1][: len(asked[0]) + 4] == [*asked[0], *model.tokenizer.encode("one"), 1]
    assert trajectory.tokens == [*asked[1], *model.tokenizer.encode("two"), 1]
    assert sum(trajectory.loss_mask) == 8
    assert second.prompt == asked[1]


def test_tokens_are_kept_where_text_would_be_encoded_in_another_way():
    """The sampled tokens of a reply differ from those that its text has."""

    class Twice(type(Written().tokenizer)):
        # Two tokens say "a": 2 and the one of the table.
        def decode(self, tokens, /):
            return "".join("a" if t == 2 else super(Twice, self).decode([t]) for t in tokens)

    model = Written(lambda text: " b")
    model.tokenizer = Twice(" ab<>user\nis t", None)
    with session_of(model) as session:
        (first,) = chat(session, [user("b")])
        assert first.message["content"] == "ab"
        chat(session, [user("b"), first.message, user("b")])
    (trajectory,) = session.recording.trajectories()
    assert trajectory.tokens.count(2) == 2
    assert model.tokenizer.encode("a") != [2]


class TwoSpellings(type(Written().tokenizer)):
    """Token 2 says "a" too, so that what was sampled is not what its text is encoded as."""

    def decode(self, tokens, /):
        return "".join("a" if t == 2 else super(TwoSpellings, self).decode([t]) for t in tokens)


def spelled(reply):
    """A model whose replies hold token 2, which their text does not have when it is encoded."""
    model = Written(reply)
    model.tokenizer = TwoSpellings(" abcdefghijklmnopqrstuvwxyz<>", None)
    model.vocabulary_size = model.tokenizer.vocabulary_size
    return model


def test_a_third_turn_continues_the_second_and_no_earlier_one():
    """Whatever was sampled is in every later prompt as it was sampled, and trained once."""
    model = spelled(lambda text: " b")
    with session_of(model) as session:
        messages = [user("b")]
        for _ in range(4):
            (choice,) = chat(session, messages)
            assert choice.text == "ab"
            messages += [choice.message, user("b")]
    asked = [list(request.prompt_tokens) for request in model.asked]
    sampled = [turn.completion.tokens for turn in session.recording.turns]
    assert all(tokens[0] == 2 for tokens in sampled)
    for number in range(1, 4):
        so_far = [*asked[number - 1], *sampled[number - 1]]
        assert asked[number][: len(so_far)] == so_far
        assert asked[number].count(2) == number
    (trajectory,) = session.recording.trajectories()
    assert trajectory.tokens == [*asked[3], *sampled[3]]
    assert sum(trajectory.loss_mask) == 4 * len(sampled[0])
    assert [turn.prompt.follows for turn in session.recording.turns] == [
        None,
        *session.recording.turns[:3],
    ]


def test_the_longest_history_is_continued_though_something_else_continued_it():
    """A shorter one that nothing continues would be encoded anew from there on."""
    model = spelled(lambda text: " b")
    with session_of(model) as session:
        first, _ = chat(session, [user("b")], n=2)
        messages = [user("b"), first.message, user("c")]
        (second,) = chat(session, messages)
        messages += [second.message]
        chat(session, [*messages, user("d")])
        chat(session, [*messages, user("e")])
    turns = session.recording.turns
    assert turns[2].prompt.follows in turns[:2]
    assert turns[3].prompt.follows is turns[4].prompt.follows is turns[2]
    begun = turns[2].tokens
    assert begun.count(2) == 2
    assert turns[4].prompt.tokens[: len(begun)] == begun


def test_another_history_is_another_trajectory():
    with session_of(Written()) as session:
        (first,) = chat(session, [user("one")])
        chat(session, [user("other"), first.message, user("two")])
        chat(session, [user("one"), {**first.message, "content": "edited"}, user("two")])
    assert [sum(t.loss_mask) for t in session.recording.trajectories()] == [4, 4, 4]


def test_a_prompt_that_two_turns_continue_is_trained_once():
    with session_of(Written()) as session:
        (first,) = chat(session, [user("one")])
        chat(session, [user("one"), first.message, user("two")])
        chat(session, [user("one"), first.message, user("three")])
    one, other = session.recording.trajectories()
    assert sum(one.loss_mask) == len("one") + len("two") + 2
    assert sum(other.loss_mask) == len("three") + 1
    begun = session.recording.turns[0].tokens
    assert one.tokens[: len(begun)] == other.tokens[: len(begun)] == begun


def test_several_answers_are_several_trajectories_and_each_can_be_continued():
    with session_of(Written()) as session:
        choices = chat(session, [user("one")], n=3)
        chat(session, [user("one"), choices[1].message, user("two")])
    assert len(choices) == 3
    assert sorted(sum(t.loss_mask) for t in session.recording.trajectories()) == [4, 4, 8]


def test_turns_of_two_temperatures_are_two_trajectories():
    with session_of(Written()) as session:
        (first,) = chat(session, [user("one")], temperature=0.5)
        chat(session, [user("one"), first.message, user("two")], temperature=2.0)
    found = session.recording.trajectories()
    assert [(t.temperature, sum(t.loss_mask)) for t in found] == [(0.5, 4), (2.0, 4)]


def test_reasoning_that_the_template_leaves_out_begins_a_trajectory():
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
        "{% endfor %}<assistant>"
    )
    model = Written(lambda text: "<think>why</think>yes", template=template)
    with session_of(model, parsers=[ThinkTagParser()]) as session:
        (first,) = chat(session, [user("one")])
        assert first.message["reasoning_content"] == "why"
        chat(session, [user("one"), first.message, user("two")])
    assert len(session.recording.trajectories()) == 2


@pytest.mark.parametrize("opened", ["", "<think>\n"])
@pytest.mark.parametrize(
    ("reply", "content", "reasoning"),
    [("why</think>yes", "yes", "why"), ("why not yes", "", "why not yes")],
)
def test_a_thought_is_no_content_whoever_opened_it(opened, reply, content, reasoning):
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "<assistant>" + opened
    )
    said = reply if opened else f"<think>{reply}"
    model = Written(lambda text: said, template=template)
    with session_of(model, parsers=[ThinkTagParser()]) as session:
        (choice,) = chat(session, [user("one")])
    assert (choice.text, choice.reasoning) == (content, reasoning)


def test_calls_become_tool_calls_and_their_results_continue():
    def reply(text):
        return "done" if "<tool>" in text else call_text("f", x="1") + call_text("g", y="2")

    model = Written(reply)
    tools = [tool("f", "x"), tool("g", "y")]
    with session_of(model) as session:
        (first,) = chat(session, [user("go")], tools=tools)
        assert first.finish == "tool_calls"
        calls = first.message["tool_calls"]
        assert [c["function"] for c in calls] == [
            {"name": "f", "arguments": '{"x": "1"}'},
            {"name": "g", "arguments": '{"y": "2"}'},
        ]
        assert len({c["id"] for c in calls}) == 2
        # A client that writes the arguments in another way and leaves the content out.
        written = [c["function"]["arguments"].replace(" ", "") for c in calls]
        functions = [
            {**c["function"], "arguments": text} for c, text in zip(calls, written, strict=True)
        ]
        again = [{**c, "function": f} for c, f in zip(calls, functions, strict=True)]
        echoed = {"role": "assistant", "tool_calls": again}
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok ☃"} for c in calls]
        (second,) = chat(session, [user("go"), echoed, *results], tools=tools)
    assert second.text == "done"
    (trajectory,) = session.recording.trajectories()
    assert len(model.asked) == 2
    assert sum(trajectory.loss_mask) == len(reply("")) + 1 + len("done") + 1


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "f", "arguments": {</tool_call>',
        call_text("f", x="1") + "<tool_call>nothing</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
    ],
)
def test_a_malformed_call_is_text(said):
    with session_of(Written(lambda text: said)) as session:
        (choice,) = chat(session, [user("go")], tools=[tool("f", "x"), tool("g")])
    assert (choice.text, choice.calls, choice.finish) == (said, [], "stop")


def test_calls_are_left_alone_without_tools_and_when_none_may_be_made():
    said = call_text("f", x="1")
    with session_of(Written(lambda text: said)) as session:
        assert chat(session, [user("go")])[0].text == said
        no = chat(session, [user("go")], tools=[tool("f", "x")], tool_choice="none")
    assert (no[0].text, no[0].calls) == (said, [])


def test_arguments_without_names_get_those_of_the_tool():
    model = Written(lambda text: "[3*4]")
    with session_of(model) as session:
        session.offer = type(session.offer)(
            **{**vars(session.offer), "call_parsers": [BracketsParser()]}
        )
        (choice,) = chat(session, [user("go")], tools=[tool("calculate", "expression")])
    assert choice.calls[0]["function"] == {
        "name": "calculate",
        "arguments": '{"expression": "3*4"}',
    }


def test_text_that_goes_on_is_one_trajectory_and_the_end_token_is_an_end():
    with session_of(Written(lambda text: "abc")) as session:
        (first,) = text(session, "x", max_tokens=2)
        assert (first.text, first.finish) == ("ab", "length")
        text(session, "xab!", max_tokens=2)
        (third,) = text(session, "xab!ab?")
        assert third.finish == "stop"
        text(session, "xab!ab?abc")
    found = session.recording.trajectories()
    assert [sum(t.loss_mask) for t in found] == [2 + 2 + 4, 4]


def test_token_ids_that_go_on_are_one_trajectory():
    model = Written(lambda text: "abc")
    with session_of(model) as session:
        (first,) = text(session, [5, 6])
        all_ = [5, 6, *first.completion.tokens]
        text(session, [*all_, 9])
        text(session, [5, 6, 7])
    found = session.recording.trajectories()
    assert found[0].tokens[: len(all_) + 1] == [*all_, 9]
    assert [sum(t.loss_mask) for t in found] == [8, 4]


def test_a_stop_string_ends_the_answer_and_is_not_shown():
    with session_of(Written(lambda text: "one. two")) as session:
        (choice,) = chat(session, [user("go")], stop=". ")
    assert (choice.text, choice.finish) == ("one", "stop")
    assert session.recording.turns[0].said == "one. "


def test_a_stream_says_the_same_in_pieces():
    with session_of(Written(lambda text: "日本 🙂 and more")) as session:
        (choice,) = chat(session, [user("go")], stream=True)
    assert "".join(piece.text for piece in choice.pieces) == choice.text
    assert [t for piece in choice.pieces for t in piece.tokens] == choice.completion.tokens
    assert len(choice.pieces) > 3


def test_requests_that_are_open_at_once_are_recorded():
    model = Written(seconds=0.05)

    async def several(session):
        asks = [read_chat(body(messages=[user(str(n))])) for n in range(8)]
        return await asyncio.gather(*(session.answer(asked) for asked in asks))

    with session_of(model) as session:
        answers = asyncio.run(several(session))
    assert [choices[0].text for choices in answers] == [str(n) for n in range(8)]
    assert len(session.recording.trajectories()) == 8


def test_more_open_requests_than_there_may_be_are_refused_and_the_others_answered():
    model = Written(seconds=0.05)

    async def several(session):
        asked = read_chat(body(messages=[user("x")]))
        work = (session.answer(asked) for _ in range(80))
        return await asyncio.gather(*work, return_exceptions=True)

    with session_of(model) as session:
        results = asyncio.run(several(session))
    refusals = [r for r in results if isinstance(r, ApiError)]
    assert {r.status for r in refusals} == {429}
    assert len(refusals) == 80 - 64


def test_a_session_has_so_many_requests():
    with session_of(Written(), most_requests=2) as session:
        chat(session, [user("x")])
        chat(session, [user("x")])
        error = refused(lambda: chat(session, [user("x")]))
    assert (error.status, error.code) == (429, "session_used_up")


def test_a_session_that_has_ended_refuses_open_and_later_requests():
    async def ended_meanwhile(session):
        task = asyncio.ensure_future(session.answer(read_chat(body(messages=[user("x")]))))
        await asyncio.sleep(0.05)
        session.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    with session_of(Written(seconds=0.3)) as session:
        asyncio.run(ended_meanwhile(session))
        assert refused(lambda: chat(session, [user("x")])).status == 404
    assert session.recording.turns == []


def test_a_prompt_that_is_too_long_is_said_to_be():
    with session_of(Written(context=40)) as session:
        error = refused(lambda: chat(session, [user("x" * 30)]))
        assert (error.status, error.code) == (400, "context_length_exceeded")
        assert error.param == "messages"
        error = refused(lambda: text(session, "x" * 50))
        assert (error.code, error.param) == ("context_length_exceeded", "prompt")
        (choice,) = chat(session, [user("x" * 15)])
    assert (choice.finish, len(choice.completion.tokens)) == ("length", 40 - 33)


def test_a_longest_prompt_of_the_worker_holds():
    with session_of(Written(), longest_prompt=20) as session:
        error = refused(lambda: chat(session, [user("x" * 30)]))
        of_text = refused(lambda: text(session, "x" * 30))
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert (of_text.code, of_text.param) == ("context_length_exceeded", "prompt")
    assert "max_prompt_length=20" in str(error)


def test_the_longest_prompt_and_the_context_may_be_used_up_and_no_more():
    # "x" * n makes a prompt of n tokens, and an answer takes at least one.
    def reply(text):
        return "abcdef"

    with session_of(Written(reply, context=12), longest_prompt=10) as session:
        (choice,) = text(session, "x" * 10)
        assert len(choice.completion.tokens) == 2
        error = refused(lambda: text(session, "x" * 11))
        assert "max_prompt_length=10" in str(error)
    with session_of(Written(reply, context=12)) as session:
        (choice,) = text(session, "x" * 11)
        assert (choice.finish, len(choice.completion.tokens)) == ("length", 1)
        error = refused(lambda: text(session, "x" * 12))
        assert (error.status, error.code) == (400, "context_length_exceeded")


def test_the_last_token_of_the_vocabulary_may_be_asked_and_the_next_is_outside():
    model = Written(lambda text: "ab")
    with session_of(model) as session:
        last = model.vocabulary_size - 1
        text(session, [5, last])
        error = refused(lambda: text(session, [5, last + 1]))
    assert (error.status, error.param) == (400, "prompt")
    assert f"token {last + 1} is outside the vocabulary ({last + 1})" in str(error)


def test_a_failure_is_kept_and_the_first_that_is_no_matter_of_a_request_is_told():
    def reply(text):
        raise RunError("first" if "one" in text else "later")

    with session_of(Written(reply)) as session:
        heard = []
        session.on_activity = lambda: heard.append(session.busy)
        assert not session.fatal.is_set()
        for words in ("one", "two"):
            refused(lambda words=words: chat(session, [user(words)]))
        assert str(session.fault) == "first"
        assert session.fatal.is_set()
        assert session.faults == ["first", "later"]
    # Told of the beginning, before it is open, and of the end, when it is no longer.
    assert heard == [False] * 4
    assert not session.busy


def test_an_engine_that_fails_is_an_error_of_the_server_and_the_session_goes_on():
    def reply(text):
        if "bad" in text:
            raise ValueError("no weights")
        return "fine"

    with session_of(Written(reply)) as session:
        error = refused(lambda: chat(session, [user("bad")]))
        assert (error.status, "no weights" in str(error)) == (500, True)
        assert chat(session, [user("good")])[0].text == "fine"
    assert len(session.faults) == 1


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_engine_gave_up_is_no_answer(reason):
    class GivesUp(Written):
        def _answer(self, request):
            return dataclasses.replace(super()._answer(request), finish_reason=reason)

    with session_of(GivesUp()) as session:
        error = refused(lambda: chat(session, [user("x")]))
    assert (error.status, error.code) == (500, "engine_failed")
    assert f"ended an answer with {reason}" in str(error)
    assert session.recording.turns == []
    assert not session.fatal.is_set()


def test_a_session_that_ends_gives_up_what_is_on_its_way_to_it():
    """A thread that waits for an answer would wait for ever."""
    with session_of(Written()) as session:
        futures = [Future(), Future()]
        session.waiting |= set(futures)
        session.close()
    assert all(future.cancelled() for future in futures)
    assert not session.busy


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"messages": [user("x\ud800")]}, 422, "messages[0].content"),
        ({"messages": [user("☃")]}, 422, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": ["x"]}, 400, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0]"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        (
            {"messages": [user([{"type": "image_url", "image_url": {}}])]},
            400,
            "messages[0].content",
        ),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": float("nan")}, 400, "temperature"),
        ({"temperature": True}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_p": 1.5}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
        ({"n": 10_000}, 400, "n"),
        ({"stop": [""]}, 400, "stop"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"seed": 2**63}, 400, "seed"),
        ({"stream": "yes"}, 400, "stream"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0]"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"parallel_tool_calls": 0}, 400, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
        ({"reasoning_effort": "highest"}, 400, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs"),
        ({"min_p": 0.1}, 400, "min_p"),
        ({"repetition_penalty": 1.1}, 400, "repetition_penalty"),
        ({"logprobs": True, "top_logprobs": 2}, 400, "top_logprobs"),
        ({"model": "gpt"}, 404, "model"),
        ({"min_tokens": 50, "max_tokens": 5}, 400, "min_tokens"),
    ],
)
def test_what_is_not_possible_is_refused_by_name(values, status, param):
    with session_of(Written()) as session:
        error = refused(lambda: chat(session, **{"messages": [user("x")], **values}))
    assert (error.status, error.param) == (status, param)
    assert "\n" not in str(error)
    assert session.recording.turns == []


def test_what_changes_nothing_is_accepted():
    neutral = {
        "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "store": False,
        "response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "auto",
        "user": "me", "metadata": {"a": "b"}, "service_tier": "auto", "temperature": None,
        "tools": [], "stop": None,
    }  # fmt: skip
    with session_of(Written()) as session:
        assert chat(session, [user("x")], **neutral)[0].text == "x"


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "logprobs": 5}, "logprobs"),
        ({"prompt": "x", "echo": True}, "echo"),
        ({"prompt": "x", "best_of": 4}, "best_of"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "prompt_logprobs": 3}, "prompt_logprobs"),
    ],
)
def test_what_is_not_possible_for_text_is_refused_by_name(values, param):
    with session_of(Written()) as session:
        error = refused(lambda: text(session, **values))
    assert (error.status, error.param) == (400, param)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    for read in (read_chat, read_text):
        assert refused(lambda read=read: read(data)).status == 400


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *("messages", "tools", "tool_choice", "stop", "n", "seed", "stream_options", "prompt"),
        *("logprobs", "max_tokens", "logit_bias", "response_format", "stop_token_ids"),
        *("prompt_logprobs", "model"),
    ]
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_odd_values_are_refused_or_read_and_never_break(values):
    sent = {"model": "policy", "messages": [user("x")], "prompt": "x", **values}
    for read in (read_chat, read_text):
        # Whatever else it raises breaks the test.
        with contextlib.suppress(ApiError):
            assert read(json.dumps(sent).encode()).n >= 1


@pytest.mark.parametrize(
    ("error", "again", "closes"),
    [
        (ApiError(429, "so many are open"), True, False),
        (ApiError(429, "used up", None, "session_used_up"), False, False),
        (ApiError(400, "wrong", "seed"), False, False),
        (ApiError(413, "large", None, "body_too_large"), False, True),
    ],
)
def test_a_client_is_told_to_ask_again_where_that_may_help(error, again, closes):
    """OpenAI's client asks again by itself, unless this header says otherwise."""
    response = _refusal(error)
    assert response.status_code == error.status
    assert (response.headers.get("x-should-retry") is None) == again
    assert (response.headers.get("connection") == "close") == closes
    assert json.loads(response.body)["error"]["message"] == str(error)
