"""What code of users changes of what it is given or has given reaches no other attempt."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pluggy
import pytest

from plugrl.core.plugins import hookspecs
from plugrl.core.plugins.hooks import HookCaller
from plugrl.core.plugins.hookspecs import hookimpl
from plugrl.core.text.agents.conversation import Budget, Conversation
from plugrl.core.text.agents.parsing import ToolCall
from plugrl.core.text.agents.tools import Tool, Toolbox
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.evaluate.evaluator import (
    BaseEvaluationTarget,
    EvaluationRunResult,
    Evaluator,
    evaluate,
)
from plugrl.core.text.inference.chat import ChatTokenizer
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Engine

SAMPLING = SamplingParams(max_new_tokens=2)


class Judged(RolloutWorker):
    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        trajectory = trajectory_of(task, "policy", prompt, await task.ask("policy", prompt))
        return await self.judged(task, trajectory, "a")


class Meddling(Evaluator):
    """Says whether it saw a change, and changes the problem, the answer and its own result."""

    result = EvaluationRunResult()

    def evaluate(self, data, evaluation_target):
        seen = (data["answer"], data["tags"], evaluation_target.final_answer) != ("a", ["x"], "a")
        data["answer"] = evaluation_target.final_answer = "zzz"
        data["tags"].append("y")
        # One object for all answers.
        self.result.reward += 1.0
        self.result.metrics = {"seen": float(seen)}
        return self.result


class MeddlingBatch(Meddling):
    def evaluate_batch(self, items):
        return [EvaluationRunResult(metrics=dict(self.evaluate(*item).metrics)) for item in items]


class MeddlingAsync(Meddling):
    async def evaluate(self, data, evaluation_target):
        await asyncio.sleep(0)
        return super().evaluate(data, evaluation_target)


def collect(worker, item, attempts=4):
    prompts = [Prompt(item, 0, run, "0/0", 0) for run in range(attempts)]
    rollouts = LockstepRollouts(worker, {"policy": Engine()}, seed=5)
    return rollouts.collect(prompts, 1, SAMPLING)


def problem():
    return {"prompt": "a", "answer": "a", "tags": ["x"]}


@pytest.mark.parametrize("kind", [Meddling, MeddlingBatch, MeddlingAsync])
def test_an_evaluator_that_changes_a_problem_changes_no_other_attempt(kind):
    item = problem()
    trajectories = collect(Judged(None, kind()), item)
    assert [t.metrics["seen"] for t in trajectories] == [0.0] * 4
    assert item == problem()


def test_results_are_taken_when_they_are_given():
    evaluator, target = Meddling(), BaseEvaluationTarget("a")
    evaluator.result = EvaluationRunResult(extra_info={"of": ["x"]})
    first = evaluate(evaluator, problem(), target)
    second = evaluate(evaluator, problem(), target)
    evaluator.result.extra_info["of"].append("y")
    assert (first.reward, second.reward, target.final_answer) == (1.0, 2.0, "a")
    assert first.extra_info == {"of": ["x"]}


class Keeping(Judged):
    """Gives all its trajectories one mapping of metrics, and goes on to change what it gave."""

    metrics = {"own": 1.0}
    kept = []

    async def rollout(self, task):
        assert task.data == problem()
        task.data["answer"] = "zzz"
        prompt = [97]
        trajectory = trajectory_of(task, "policy", prompt, await task.ask("policy", prompt))
        trajectory.metrics = self.metrics
        trajectory.extra_fields = {"seen": ["x"]}
        for before in self.kept:
            before.tokens[:] = [3, 3, 3]
            before.logprobs[:] = [-9.0] * 3
            before["seen"].append("y")
            before.reward = -9.0
        self.kept.append(trajectory)
        return await self.judged(task, trajectory, "a")


class Counted(Evaluator):
    count = 0

    def evaluate(self, data, evaluation_target):
        self.count += 1
        return EvaluationRunResult(1.0, metrics={f"m{self.count}": 1.0})


def test_a_worker_that_keeps_what_it_gave_changes_nothing():
    Keeping.kept.clear()
    plain = collect(Judged(None, Counted()), problem())
    found = collect(Keeping(None, Counted()), problem())
    Keeping.kept[-1].tokens.clear()
    assert [t.tokens for t in found] == [t.tokens for t in plain]
    assert [t.logprobs for t in found] == [t.logprobs for t in plain]
    assert [t.reward for t in found] == [1.0] * 4
    assert [t["seen"] for t in found] == [["x"]] * 4
    assert [t.metrics for t in found] == [{"own": 1.0, f"m{i}": 1.0} for i in range(1, 5)]
    assert Keeping.metrics == {"own": 1.0}


def test_a_tool_that_changes_its_arguments_changes_nothing_that_was_said():
    def sort(numbers):
        numbers.sort()
        return numbers

    call = ToolCall("sort", {"numbers": [3, 1, 2]})
    assert asyncio.run(Toolbox([Tool("sort", sort)], 10).call(call)) == "[1, 2, 3]"
    assert call.arguments == {"numbers": [3, 1, 2]}


def test_messages_that_attempts_begin_with_are_their_own():
    class Plain:
        pad_token_id, eos_token_id = 0, 1
        encode = decode = render_chat = encode_chat = apply_chat_template = writable = len

    assert isinstance(Plain(), ChatTokenizer)
    task = SimpleNamespace(tokenizers={"policy": Plain()}, ask=None)
    system = [{"role": "system", "content": [{"type": "text", "text": "be brief"}]}]
    conversation = Conversation(task, "policy", system, [{"name": "t"}], Budget(9, 9, 9))
    conversation.fork().messages[0]["content"][0]["text"] = "another"
    assert conversation.messages == system
    conversation.messages[0]["content"][0]["text"] = "changed"
    conversation.tools[0]["name"] = "changed"
    assert system[0]["content"][0]["text"] == "be brief"


class Changing:
    @hookimpl(tryfirst=True)
    def plugrl_rollouts_collected(self, trajectories, metrics):
        trajectories[0].reward = 99.0
        trajectories[0].tokens.append(3)
        trajectories.pop()
        metrics["rollout/reward"] = 99.0


class Observing:
    seen = None

    @hookimpl
    def plugrl_rollouts_collected(self, trajectories, metrics):
        self.seen = ([(t.reward, len(t.tokens)) for t in trajectories], dict(metrics))


def test_a_hook_that_changes_what_it_is_given_changes_nothing_else():
    trajectories = collect(Judged(None, Counted()), problem(), attempts=2)
    observing = Observing()
    manager = pluggy.PluginManager("plugrl")
    manager.add_hookspecs(hookspecs)
    manager.register(Changing())
    manager.register(observing)
    caller = HookCaller(manager)
    given = {"rollout/reward": 1.0}
    caller.call(
        "plugrl_rollouts_collected", run=None, step=1, trajectories=trajectories, metrics=given
    )
    assert observing.seen == ([(1.0, 3), (1.0, 3)], given)
    assert [t.reward for t in trajectories] == [1.0, 1.0]
    assert given == {"rollout/reward": 1.0}
