"""Agents with written replies: calls, failures, masks, metrics, limits, overrides."""

import time

import pytest

from plugrl import AgentRolloutWorker

TOOLS = """
type: agent
name: counter
max_iterations: 4
system_prompt: Count.
tools:
  - {name: add, binding: "kit:add", description: Adds}
  - {name: bad, binding: "kit:bad"}
  - {name: slow, binding: "kit:slow"}
  - {name: lazy, binding: "kit:lazy"}
  - {name: odd, binding: "kit:odd"}
  - {name: away, binding: "kit:away"}
  - {name: cut, binding: "kit:cut"}
  - {name: pair, binding: "kit:pair"}
"""
KIT = """
import asyncio, time
def add(a, b=1): return a + b
def bad(): raise ValueError("no\\nsecond line")
def slow(): time.sleep(30)
async def lazy(): await asyncio.sleep(30)
def odd(): return object()
def away(): raise SystemExit(3)
def cut(): raise KeyboardInterrupt
async def pair(x): return {"x": x, "y": [None, True]}
"""


ONE, FIVE = '{"a": 1}', '{"a": 5}'


def call(name, arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.fixture
def agent(workspace):
    path = workspace(TOOLS, kit=KIT)

    def make(cls=AgentRolloutWorker, **options):
        defaults = {"max_prompt_length": 500, "max_response_length": 2000, "tool_timeout": 0.3}
        return cls({"agent_config": path, **defaults, **options})

    return make


def tool_messages(worker):
    (target,) = worker.evaluator.targets
    return [m["content"] for m in target.observation if m["role"] == "tool"]


def test_a_call_is_answered_and_the_turns_are_one_trajectory(agent, attempt):
    worker = agent()
    (trajectory,), engine = attempt(worker, [call("add", '{"a": 2, "b": 3}'), "It is 5"])
    decode = engine.tokenizer.decode
    eos = engine.tokenizer.eos_token_id
    first, second = engine.prompts
    assert decode(first) == "<system>Count.<user>What?<assistant>"
    said = [*engine.tokenizer.encode(engine.replies[0]), eos]
    # Exactly what was sampled, then what is new.
    assert second[: len(first) + len(said)] == first + said
    assert decode(second[len(first) + len(said) :]) == "<tool>5<assistant>"
    last = [*engine.tokenizer.encode("It is 5"), eos]
    assert trajectory.tokens == second + last
    trained = [t for t, m in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if m]
    assert trained == said + last
    positions = [i for i, m in enumerate(trajectory.loss_mask) if m]
    assert [trajectory.logprobs[i] for i in positions] == [-0.001 * i for i in positions]
    assert {v for v, m in zip(trajectory.versions, trajectory.loss_mask, strict=True) if m} == {3}
    assert trajectory.reward == 0.5
    target = worker.evaluator.targets[0]
    assert (target.final_answer, target.is_truncated) == ("It is 5", False)
    counts = {"turns": 2, "tool_calls": 1, "tool_errors": 0, "parse_errors": 0, "trajectories": 1}
    assert trajectory.metrics == {"seen": 1, **counts}


@pytest.mark.parametrize(
    ("written", "told", "calls", "errors", "unread"),
    [
        (call("bad"), "Error: bad failed: ValueError: no", 1, 1, 0),
        (call("slow"), "Error: slow took more than 0.3 seconds", 1, 1, 0),
        (call("lazy"), "Error: lazy took more than 0.3 seconds", 1, 1, 0),
        (call("odd"), "Error: odd gave a object, which is no text", 1, 1, 0),
        (call("away"), "Error: away failed: SystemExit: 3", 1, 1, 0),
        (call("cut"), "Error: cut failed: KeyboardInterrupt", 1, 1, 0),
        (call("pair", '{"x": "ü"}'), '{"x": "", "y": [null, true]}', 1, 0, 0),
        (call("adds"), "Error: there is no tool 'adds'; tools are: add, bad, slow, lazy", 1, 1, 0),
        (call("add"), "Error: add was called wrongly: missing a required argument: 'a'", 1, 1, 0),
        ("<tool_call>{oops</tool_call>", "Error: the call is no JSON: Expecting property", 0, 0, 1),
        ("<tool_call>[1]", "Error: the call is no object with name and arguments", 0, 0, 1),
        (call("add", '{"a": 1}')[:-12], "2", 1, 0, 0),
    ],
)
def test_what_goes_wrong_is_told_to_the_model_and_counted(
    agent, attempt, written, told, calls, errors, unread
):
    worker = agent()
    written = written.replace("ü", "")
    started = time.monotonic()
    (trajectory,), _ = attempt(worker, [written, "done"])
    assert time.monotonic() - started < 10
    assert trajectory.valid
    assert tool_messages(worker)[0].startswith(told)
    metrics = trajectory.metrics
    assert metrics["tool_calls"] == calls
    assert (metrics["tool_errors"], metrics["parse_errors"]) == (errors, unread)
    assert worker.evaluator.targets[0].final_answer == "done"


def test_several_calls_of_a_reply_are_answered_in_their_order(agent, attempt):
    worker = agent()
    both = f"Now {call('add', ONE)}{call('nope')} and {call('add', FIVE)}"
    (trajectory,), engine = attempt(worker, [both, "done"])
    first, second, third = tool_messages(worker)
    assert (first, third) == ("2", "6")
    assert second.startswith("Error: there is no tool 'nope'")
    assert engine.tokenizer.decode(engine.prompts[1]).endswith(
        f"<tool>2<tool>{second}<tool>6<assistant>"
    )
    assert trajectory.metrics["tool_calls"] == 3


def test_calls_in_reasoning_are_none_and_reasoning_without_end_is_no_answer(agent, attempt):
    worker = agent(reasoning_parser="think_tag")
    thought = f"<think>maybe {call('bad')}</think>{call('add', ONE)}"
    (trajectory,), _ = attempt(worker, [thought, "<think>endless", "<think>x</think>four"])
    assert tool_messages(worker) == ["2", "Error: the reasoning has no </think>"]
    assert worker.evaluator.targets[0].final_answer == "four"
    assert trajectory.metrics["parse_errors"] == 1


OPENS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("2 and 2</think>four", "four"),
        ("maybe four", ""),
        ("<think>2 and 2</think>four", "four"),
        ("<think>maybe four", ""),
    ],
)
def test_a_thought_that_the_template_opens_is_no_answer(agent, attempt, scripted, reply, answer):
    # The reply is cut off behind its last character, before its end token.
    worker = agent(reasoning_parser="think_tag", max_response_length=len(reply))
    (trajectory,), _ = attempt(worker, [], engine=scripted([reply], template=OPENS))
    assert trajectory.finish_reason == "length"
    assert worker.evaluator.targets[0].final_answer == answer
    assert trajectory.metrics["parse_errors"] == float(answer == "")


def test_every_turn_begins_in_the_thought_that_the_template_opens(agent, attempt, scripted):
    worker = agent(reasoning_parser="think_tag")
    replies = [f"so</think>{call('add', ONE)}", f"{call('add', ONE)} endless", "hm</think>two"]
    _, engine = attempt(worker, [], engine=scripted(replies, template=OPENS))
    # What was only thought of calls nothing.
    assert tool_messages(worker) == ["2", "Error: the reasoning has no </think>"]
    assert worker.evaluator.targets[0].final_answer == "two"
