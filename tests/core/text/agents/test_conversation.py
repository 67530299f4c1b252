"""Tokens of several turns: what merges, what does not, and what limits cut."""

import pytest

from plugrl import AgentRolloutWorker
from plugrl.core.errors import ConfigError
from plugrl.core.text.trajectory import NOT_SAMPLED

# Writes replies of the past without their reasoning, as the templates of some models do.
REWRITING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1] if m.role == 'assistant' else m.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CONFIG = """
type: agent
tools: [{name: add, binding: "kit:add"}]
"""
CALL = '<tool_call>{"name": "add", "arguments": {"a": 4}}</tool_call>'


@pytest.fixture
def agent(workspace):
    path = workspace(CONFIG, kit="def add(a): return a + 1\n")

    def make(**options):
        defaults = {"max_prompt_length": 200, "max_response_length": 400}
        return AgentRolloutWorker({"agent_config": path, **defaults, **options})

    return make


def check_equal_lengths(trajectory):
    count = len(trajectory.tokens)
    assert len(trajectory.loss_mask) == len(trajectory.logprobs) == count
    assert len(trajectory.versions) == count
    for mask, version, logprob in zip(
        trajectory.loss_mask, trajectory.versions, trajectory.logprobs, strict=True
    ):
        assert (version == NOT_SAMPLED) <= (mask == 0 and logprob == 0.0)


def test_a_template_that_rewrites_history_gives_trajectories_of_one_run(agent, attempt, scripted):
    replies = [f"<think>hm</think>{CALL}", f"<think>so</think>{CALL}", "six"]
    engine = scripted(replies, template=REWRITING)
    trajectories, _ = attempt(agent(), replies, engine=engine)
    assert len(trajectories) == 3
    assert {(t.group_id, t.run_id, t.reward, t.valid) for t in trajectories} == {
        ("0/0", 0, 0.5, True)
    }
    decode = engine.tokenizer.decode
    for trajectory, prompt, reply in zip(trajectories, engine.prompts, replies, strict=True):
        check_equal_lengths(trajectory)
        assert trajectory.tokens[: len(prompt)] == prompt
        trained = trajectory.tokens[trajectory.loss_mask.index(1) :]
        assert decode(trained) == reply
    assert "hm" not in decode(engine.prompts[1])
    # What an attempt counts is counted once.
    assert [t.metrics.get("turns") for t in trajectories] == [None, None, 3]
    assert trajectories[-1].metrics["trajectories"] == 3


def test_without_reasoning_the_same_template_gives_one_trajectory(agent, attempt, scripted):
    replies = [CALL, CALL, "six"]
    engine = scripted(replies, template=REWRITING)
    (trajectory,), _ = attempt(agent(), replies, engine=engine)
    check_equal_lengths(trajectory)
    assert sum(trajectory.loss_mask) == sum(len(reply) + 1 for reply in replies)


def test_another_end_than_the_template_writes_does_not_merge(agent, attempt, scripted):
    """The model said its end token; a template without it has not written what was said."""
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    trajectories, _ = attempt(agent(), [], engine=scripted([CALL, "five"], template=template))
    assert len(trajectories) == 2


@pytest.mark.parametrize("limit", [1, 20, len(CALL), len(CALL) + 1, len(CALL) + 4, 200])
@pytest.mark.parametrize("option", ["max_response_length", "context", "max_context_tokens"])
def test_limits_cut_all_lists_alike_and_the_evaluator_is_told(
    agent, attempt, scripted, workspace, option, limit
):
    worker = agent()
    prompt = len("<user>What?") + 1 + len("<assistant>")
    engine = scripted([CALL, "five"])
    if option == "max_response_length":
        worker = agent(max_response_length=limit)
    elif option == "context":
        engine.max_sequence_length = prompt + limit
    else:
        path = workspace(CONFIG + f"max_context_tokens: {prompt + limit}\n")
        worker = agent(agent_config=path)
    (trajectory,), _ = attempt(worker, [], engine=engine)
    check_equal_lengths(trajectory)
    assert len(trajectory.tokens) <= prompt + limit
    assert trajectory.loss_mask[-1] == 1
    cut = limit < 200
    assert trajectory.finish_reason == ("length" if cut else "stop")
    (target,) = worker.evaluator.targets
    assert target.is_truncated == cut
    assert trajectory.metrics["turns"] == (1 if cut else 2)


def test_turns_that_run_out_end_the_attempt_as_truncated(agent, attempt):
    worker = agent(max_turns=2)
    (trajectory,), engine = attempt(worker, [CALL, f"still {CALL}", "never"])
    assert len(engine.prompts) == 2
    (target,) = worker.evaluator.targets
    assert (target.final_answer, target.is_truncated) == ("still", True)
    assert trajectory.finish_reason == "length"


def test_a_prompt_over_its_limit_is_refused(agent, attempt, scripted):
    with pytest.raises(ConfigError, match=r"problem 0 has a prompt of 23 tokens, all told, more"):
        attempt(agent(max_prompt_length=22), ["five"])
    engine = scripted(["five"])
    engine.max_sequence_length = 23
    with pytest.raises(ConfigError, match=r"leaves no room in the 23 tokens"):
        attempt(agent(), [], engine=engine)


def test_a_template_that_fails_says_so(agent, attempt, scripted):
    template = "{{ raise_exception('no such role') }}"
    with pytest.raises(ConfigError, match=r"^the chat template cannot write the messages: .*role"):
        attempt(agent(), [], engine=scripted(["five"], template=template))


def test_a_template_that_asks_for_calls_gets_them(agent, attempt, scripted):
    template = (
        "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls"
        " %}{{ raise_exception('a result without a call') }}{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}{{ eos_token }}"
        "{% endfor %}"
    )
    engine = scripted([CALL, "five"], template=template)
    trajectories, _ = attempt(agent(), [], engine=engine)
    assert engine.tokenizer.decode(engine.prompts[1]) == "What?add5"
    assert len(trajectories) == 2
