"""A whole worker as similar frameworks have it, by renaming alone, and what is refused of it."""

import logging
from importlib.util import find_spec
from pathlib import Path

import pytest

import plugrl
from plugrl import AgentRolloutWorker, EvaluationRunResult, InMemoryTracer, RolloutWorker
from plugrl.core.errors import UsageError
from plugrl.core.foreign_names import IMPORTS
from plugrl.core.text.agents.worker import AgentEvaluationTarget

LONG = {"max_prompt_length": 400, "max_response_length": 400}

# The calls of a complete custom worker, in the words of the framework that it is written for.
FOREIGN = """
from nexrl.rollout_worker import BaseNexAURolloutWorker, NexAUEvaluationTarget
from nexau.archs.tracer.adapters import InMemoryTracer


class Whole(BaseNexAURolloutWorker):
    def __init__(self, config):
        super().__init__(config)
        self.clean = self._make_cleaner()

    def _make_cleaner(self):
        return lambda value: value

    def format_task_query(self, data_item):
        return self._query_of(self.clean(data_item))

    def _query_of(self, data):
        return str(data)

    def run_agent(self, task):
        try:
            query = self.format_task_query(task)
            tracer = InMemoryTracer()
            final_answer = self.agent.run(query, client=self.client, tracer=tracer)
            trace = tracer.get_trace()
            trajectories = []
            for child in trace.get("children", []):
                self.child_processor(child, trajectories)
            target = NexAUEvaluationTarget(
                final_answer=self.clean(final_answer), observation=[{"trace": trace}]
            )
            judged = self.evaluator.evaluate(task, target)
            trajectory = {
                "tokens": self._generate_tokens(trajectories),
                "loss_mask": self.get_train_loss_mask(trajectories),
                "reward": judged.reward,
                "final_answer": final_answer,
                "metrics": judged.metrics,
                **task,
            }
            return self._put_trajectory(trajectory)
        except Exception as error:
            self.logger.error(f"run_agent: {error}")
            return None
"""


def ported(text):
    """``text`` with nothing but its names and imports changed."""
    lines = []
    for line in text.splitlines():
        if line.startswith("from nex"):
            line = f"from plugrl import {line.partition(' import ')[2]}"
        for foreign in ("BaseNexAURolloutWorker", "NexAUEvaluationTarget"):
            line = line.replace(foreign, IMPORTS[foreign].rpartition(" ")[2])
        lines.append(line)
    names = {"__name__": "ported"}
    exec("\n".join(lines), names)  # noqa: S102 - the text above
    return names["Whole"]


class Graded:
    """Rewards by the reference answer of the problem, as it comes."""

    def __init__(self):
        self.seen = []

    def evaluate(self, data, evaluation_target):
        self.seen.append((dict(data), evaluation_target))
        reward = float(evaluation_target.final_answer == data["answer"])
        return EvaluationRunResult(reward, metrics={"length": len(evaluation_target.final_answer)})


@pytest.mark.parametrize(("said", "reward"), [("42", 1.0), ("41", 0.0)])
def test_a_complete_worker_trains_what_it_trains_by_our_own_names(attempt, said, reward):
    worker = ported(FOREIGN)(LONG)
    worker.evaluator = Graded()
    (trajectory,), engine = attempt(worker, [said], "6*7?", answer="42")
    own = AgentRolloutWorker(LONG)
    (expected,), _ = attempt(own, [said], "{'prompt': '6*7?', 'answer': '42'}", answer="42")
    assert trajectory.tokens == expected.tokens
    assert trajectory.loss_mask == expected.loss_mask
    assert trajectory.logprobs == expected.logprobs
    assert (trajectory.reward, trajectory.valid) == (reward, True)
    assert trajectory.metrics["length"] == 2
    # Judged once, by the worker; its evaluator saw the problem and the trace.
    ((data, target),) = worker.evaluator.seen
    assert data == {"prompt": "6*7?", "answer": "42"}
    assert isinstance(target, AgentEvaluationTarget)
    (reply,) = target.observation[0]["trace"]["children"]
    assert reply["response_message"]["content"] == said
    assert reply["tokens"] == [*engine.tokenizer.encode(said), engine.tokenizer.eos_token_id]


class Twice(AgentRolloutWorker):
    """Two replies of which the worker says itself what is trained."""

    mask = (False, True)
    reward = 0.25

    def run_agent(self, task):
        tracer = InMemoryTracer()
        for query in ("draft", "final"):
            self.agent.run(query, tracer=tracer)
        replies = []
        self.child_processor(tracer.get_trace(), replies)
        return self._put_trajectory(
            {
                "reward": self.reward,
                "tokens": self._generate_tokens(replies),
                "loss_mask": self.mask,
            }
        )


def test_a_mask_for_replies_holds_for_all_of_them_in_order(attempt):
    trajectories, _ = attempt(Twice(LONG), ["one", "four"])
    assert [sum(t.loss_mask) for t in trajectories] == [0, 5]
    assert [t.reward for t in trajectories] == [0.25, 0.25]


def test_a_reward_that_is_no_number_makes_the_attempt_invalid(attempt):
    (first, second), _ = attempt(type("Bad", (Twice,), {"reward": "good"})(LONG), ["a", "b"])
    assert not first.valid
    assert "reward of type str; a number is expected" in second.failure


@pytest.mark.parametrize("mask", [(True,), (True, 2)])
def test_a_mask_of_other_replies_ends_the_run(attempt, mask):
    with pytest.raises(UsageError, match="loss_mask has . values for 2 replies; one True or False"):
        attempt(type("Bad", (Twice,), {"mask": mask})(LONG), ["a", "b"])


@pytest.mark.parametrize("tokens", [[], [[1, 2]], "ab", [1, 2, 3]])
def test_other_tokens_end_the_run_also_where_the_worker_catches_it(attempt, tokens):
    class ByText(AgentRolloutWorker):
        def run_agent(self, task):
            try:
                self.agent.run("x")
                return self._put_trajectory({"tokens": tokens, "reward": 1.0})
            except Exception:
                return None

    with pytest.raises(UsageError, match="tokens are recorded while the model samples them"):
        attempt(ByText(LONG), ["a"])


def test_a_reply_of_another_tracer_has_no_tokens(attempt):
    class Other(AgentRolloutWorker):
        def run_agent(self, task):
            self.agent.run("x", tracer=object())
            return self._generate_tokens([{"response_message": {"content": "a"}}])

    with pytest.raises(UsageError, match=r"or hand over what a plugrl.InMemoryTracer has kept"):
        attempt(Other(LONG), ["a"])


@pytest.mark.parametrize(
    "text", [lambda task: f"Solve {task}", "Solve {}".format, str, lambda task: f"{task:s}"]
)
def test_a_task_that_is_made_text_is_refused_with_what_to_write(attempt, text):
    class Formats(AgentRolloutWorker):
        def run_agent(self, task):
            return self.agent.run(text(task))

    with pytest.raises(UsageError, match=r"write task.prompt, task\[.column.\] or task.data"):
        attempt(Formats(LONG), ["a"])


def test_a_task_reads_as_its_problem_and_logs_as_itself(attempt):
    seen = []

    class Reads(RolloutWorker):
        def rollout(self, task):
            seen.append((task["unit"], task.get("none", 1), "unit" in task, {**task}, list(task)))
            logging.getLogger("plugrl.test").debug("an attempt: %r", task)
            assert repr(task).startswith("RolloutTask(")
            raise ValueError("enough")

    attempt(Reads({"max_prompt_length": 9}), ["a"], "p", unit="m")
    assert seen == [("m", 1, True, {"prompt": "p", "unit": "m"}, ["prompt", "unit"])]


def test_a_worker_logs_by_its_own_name_and_may_have_another_logger(caplog):
    worker = AgentRolloutWorker(LONG)
    with caplog.at_level(logging.INFO, "plugrl"):
        worker.logger.info("hello")
    assert [(r.name, r.message) for r in caplog.records] == [
        ("plugrl.rollout_worker.AgentRolloutWorker", "hello")
    ]
    worker.logger = logging.getLogger("mine")
    assert worker.logger.name == "mine"


@pytest.mark.parametrize("name", IMPORTS)
def test_an_import_by_a_foreign_name_says_what_to_write(name):
    with pytest.raises(ImportError) as refused:
        exec(f"from plugrl import {name}")  # noqa: S102 - a name of the table
    assert str(refused.value) == f"plugrl has no {name}; write {IMPORTS[name]}"
    word, module, _, what = f"{IMPORTS[name].partition(',')[0]} - - -".split()[:4]
    if word == "from" and module == "plugrl":
        assert what in plugrl.__all__
    elif word == "from":
        # Looked up without the seconds that its imports would take.
        assert f"\nclass {what}(" in Path(find_spec(module).origin).read_text("utf-8")


def test_another_unknown_import_says_what_python_says():
    with pytest.raises(ImportError, match="cannot import name 'Trian'"):
        exec("from plugrl import Trian")  # noqa: S102
