"""What a subclass may change: query, mask, course, metrics; by path and in processes too."""

from collections import Counter

import pytest

import plugrl
from plugrl import AgentRolloutWorker, UsageError
from plugrl.core.errors import ConfigError, RunError
from plugrl.testing import tiny

LONG = {"max_prompt_length": 200, "max_response_length": 400}


class Asking(AgentRolloutWorker):
    def format_task_query(self, task_item):
        return f"{task_item['problem']} of {task_item['unit']}"


class Chatting(AgentRolloutWorker):
    def format_task_query(self, task_item):
        return [{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("cls", "prompt", "asked"),
    [
        (AgentRolloutWorker, "What?", "<user>What?"),
        (AgentRolloutWorker, [{"role": "user", "content": "A"}], "<user>A"),
        (
            AgentRolloutWorker,
            [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}],
            "<user>A<assistant>B",
        ),
        (Asking, "unused", "<user>12 of m"),
        (Chatting, "unused", "<system>Be short<user>Hi"),
    ],
)
def test_what_the_agent_is_asked(attempt, cls, prompt, asked):
    (trajectory,), engine = attempt(cls(LONG), ["yes"], prompt, problem=12, unit="m")
    assert engine.tokenizer.decode(engine.prompts[0]) == f"{asked}<assistant>"
    assert sum(trajectory.loss_mask) == len("yes") + 1


def test_a_query_that_is_neither_text_nor_messages_is_refused(attempt):
    class Wrong(AgentRolloutWorker):
        def format_task_query(self, task_item):
            return 12

    with pytest.raises(ConfigError, match="the query of an agent is int; text or a list of"):
        attempt(Wrong(LONG), ["yes"])


class Staged(AgentRolloutWorker):
    """Two stages; both are trained."""

    async def run_agent(self, task):
        draft = await self.agent.arun("draft")
        self.log_metrics({"draft_length": len(draft)})
        return await self.agent.arun(f"improve {draft}")


class StagedPlainly(AgentRolloutWorker):
    """The same as the guides write it."""

    def run_agent(self, task):
        draft = self.agent.run("draft", client=self.client, tracer=None)
        self.log_metrics({"draft_length": len(draft)})
        return self.agent.run(f"improve {draft}")


@pytest.mark.parametrize("cls", [Staged, StagedPlainly])
def test_all_that_an_override_lets_the_agent_say_is_trained(attempt, cls):
    worker = cls(LONG)
    trajectories, engine = attempt(worker, ["one", "two!"])
    decode = engine.tokenizer.decode
    assert [decode(p) for p in engine.prompts] == [
        "<user>draft<assistant>", "<user>improve one<assistant>"
    ]  # fmt: skip
    assert [sum(t.loss_mask) for t in trajectories] == [4, 5]
    assert [t.reward for t in trajectories] == [0.5, 0.5]
    assert trajectories[1].metrics["draft_length"] == 3
    assert worker.evaluator.targets[0].final_answer == "two!"


class ByHand(AgentRolloutWorker):
    """Makes the turns of a conversation itself."""

    async def run_agent(self, task):
        conversation = self.agent.converse("start")
        for word in ("more", "enough"):
            await conversation.reply(task.sampling)
            conversation.add({"role": "user", "content": word})
        return await conversation.reply(task.sampling)


def test_turns_made_by_hand_are_recorded(attempt):
    (trajectory,), engine = attempt(ByHand(LONG), ["a", "b", "c"])
    assert sum(trajectory.loss_mask) == 6
    decoded = engine.tokenizer.decode(trajectory.tokens)
    assert decoded == "<user>start<assistant>a<user>more<assistant>b<user>enough<assistant>c"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (None, "invalid", "run_agent gave no answer"),
        (7, "ends", "run_agent returned int; the final answer as text is expected"),
    ],
)
def test_answers_that_are_none(attempt, answer, kind, message):
    class Odd(AgentRolloutWorker):
        async def run_agent(self, task):
            await self.agent.arun("x")
            return answer

    if kind == "ends":
        with pytest.raises(RunError, match=message):
            attempt(Odd(LONG), ["a"])
        return
    (trajectory,), _ = attempt(Odd(LONG), ["a"])
    assert not trajectory.valid
    assert message in trajectory.failure


def test_an_agent_that_asks_no_model_is_refused(attempt):
    class Silent(AgentRolloutWorker):
        async def run_agent(self, task):
            return "42"

    with pytest.raises(RunError, match="Silent.run_agent asked no model; ask it with"):
        attempt(Silent(LONG), ["a"])


def test_tokens_made_of_text_are_refused(attempt):
    class ByText(AgentRolloutWorker):
        def run_agent(self, task):
            self.agent.run("x")
            return self._put_trajectory({"tokens": self._generate_tokens([])})

    with pytest.raises(UsageError, match="tokens are recorded while the model samples them"):
        attempt(ByText(LONG), ["a"])


def test_an_agent_outside_an_attempt_is_refused():
    worker = AgentRolloutWorker(LONG)
    with pytest.raises(UsageError, match="during an attempt"):
        worker.agent  # noqa: B018 - the access is the point
    with pytest.raises(UsageError, match="log_metrics is for the code of an attempt"):
        worker.log_metrics({"a": 1})
    assert worker.format_task_query({"prompt": "a"}) == "a"


TWO = '<tool_call>{"name": "echo", "arguments": {"x": "hi"}}</tool_call>'
ECHO = '{type: agent, tools: [{name: echo, binding: "kit:echo"}]}'


class AnswersOnly(AgentRolloutWorker):
    """The example of the guides: replies that call tools are not trained."""

    def get_train_loss_mask(self, trajectory_infos):
        mask = []
        for traj in trajectory_infos:
            response_msg = traj.get("response_message", {})
            has_tool_calls = bool(response_msg.get("tool_calls"))
            mask.append(not has_tool_calls)
        return mask


def test_a_mask_for_messages_holds_for_their_sampled_tokens(attempt, workspace):
    path = workspace(ECHO, kit="def echo(x): return x\n")
    worker = AnswersOnly({"agent_config": path, **LONG})
    (trajectory,), engine = attempt(worker, [TWO, "so"])
    masked = [t for t, m in zip(trajectory.tokens, trajectory.loss_mask, strict=True) if m]
    assert masked == [*engine.tokenizer.encode("so"), engine.tokenizer.eos_token_id]
    # What is not trained is still what was sampled.
    assert Counter(v >= 0 for v in trajectory.versions)[True] == len(TWO) + 1 + len(masked)


@pytest.mark.parametrize("mask", [[True], [1, 2], [None, None], "ab"])
def test_a_wrong_mask_ends_the_run_and_names_the_method(attempt, mask):
    class Masked(AgentRolloutWorker):
        def get_train_loss_mask(self, messages):
            return mask

    with pytest.raises(RunError, match=r"Masked.get_train_loss_mask returned .* for 2 messages"):
        attempt(Masked(LONG), ["a"])


WORKER = """
from plugrl import AgentRolloutWorker
import words

class Mine(AgentRolloutWorker):
    def format_task_query(self, task_item):
        return words.shorten(task_item["prompt"])

    def run_agent(self, task):
        answer = self.agent.run(self.format_task_query(task.data))
        self.log_metrics({"answered": float(bool(answer)), "draw": task.random.random()})
        return answer
"""
AGENT = """
type: agent
name: letters
system_prompt: b
llm_config: {temperature: 0.9, max_tokens: 3, api_type: openai_chat_completion}
tools: [{name: look, binding: "words:look"}]
tracers: [{import: "nexau.archs.tracer.adapters.in_memory:InMemoryTracer"}]
"""
WORDS = "def shorten(text): return text[:1]\ndef look(x): return x\n"


@pytest.fixture
def tree(tmp_path, workspace):
    workspace(AGENT, words=WORDS, my_worker=WORKER)
    return tiny.config(
        "self_hosted_grpo",
        tmp_path,
        {
            "rollout_worker": {
                "type": "nexau",
                "custom_rollout_worker_module_path": str(tmp_path / "my_worker.py"),
                "custom_rollout_worker_class_name": "Mine",
                "nexau_agent_config_path": str(tmp_path / "agent_config.yaml"),
                "nexau_agent_workspace": str(tmp_path),
                "tool_parser": "brackets",
            },
        },
    )


class Keep:
    def __init__(self):
        self.trajectories = []
        self.metrics = []

    @plugrl.hookimpl
    def plugrl_rollouts_collected(self, trajectories):
        self.trajectories += [(t.tokens, t.loss_mask, t.logprobs) for t in trajectories]

    @plugrl.hookimpl
    def plugrl_step_end(self, metrics):
        self.metrics.append(metrics)


def test_a_worker_of_a_file_in_the_words_of_the_guides_trains_alike_in_processes(
    tree, forked_workers
):
    kept = []
    for processes in (0, 2):
        keep = Keep()
        tree["rollout_worker"]["processes"] = processes
        tiny.train(tree, keep)
        kept.append(keep)
    here, there = kept
    assert here.trajectories == there.trajectories
    # "b", the system prompt, and the first letter, each with the end token.
    assert {tuple(tokens[:2]) for tokens, _, _ in here.trajectories} == {(3, 1)}
    assert max(sum(mask) for _, mask, _ in here.trajectories) <= 3
    for first, second in zip(here.metrics, there.metrics, strict=True):
        for split in ("rollout", "validation"):
            names = [f"{split}/{n}" for n in ("draw", "answered", "turns", "tool_calls")]
            assert [first.get(name) for name in names] == [second.get(name) for name in names]
    assert here.metrics[-1]["validation/turns"] == 1
    assert 0 < here.metrics[-1]["rollout/draw"] < 1
