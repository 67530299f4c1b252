"""The evaluator ``llm_judge``: what it asks, how replies are read, and a judge in a run."""

import pytest

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.text.evaluate.evaluator import EvaluationFailedError
from plugrl.scenarios.evaluators.llm_judge import LlmJudgeEvaluator
from plugrl.testing import tiny
from plugrl.testing.suite.test_evaluator import judge as asked

DATA = {"prompt": "1+1=", "answer": "2", "why": "sum", "said": [{"role": "user", "content": "hi"}]}


def judged(reply, answer="2", **options):
    seen = []

    def model(prompt):
        seen.append(prompt)
        return reply

    evaluator = build(LlmJudgeEvaluator, {"chat": False, **options})
    return asked(evaluator, {"reply": model}, DATA, answer), seen[0]


@pytest.mark.parametrize(
    ("options", "reply", "score"),
    [
        ({}, "Good. Score: 0.75", 0.75),
        ({}, "score = 0.2\nno, SCORE: 1", 1.0),
        ({}, "Score: 3/4", 0.75),
        ({"maximum": 10.0}, "Score: 7/10", 0.7),
        ({"maximum": 10.0, "normalize": True}, "Score: 7", 0.7),
        ({"minimum": 1.0, "maximum": 5.0, "normalize": True}, "Score: 2", 0.25),
        ({"pattern": r"\[\[(\d)\]\]", "maximum": 9.0}, "[[4]]", 4.0),
        ({"parse": "json"}, 'Well: {"score": 0.5, "why": {"score": 9}}', 0.5),
        ({"parse": "json"}, '{"score": 0.1} then {"score": "0.9"} {', 0.9),
        ({"parse": "json", "json_key": "grade"}, '```json\n{"grade": 1}\n```', 1.0),
    ],
)
def test_scores(options, reply, score):
    result, _ = judged(reply, **options)
    assert result.reward == pytest.approx(score)
    assert result.metrics == {"judge_score": result.reward, "judge_tokens": float(len(reply))}


@pytest.mark.parametrize(
    ("options", "reply"),
    [
        ({}, "I cannot tell."),
        ({}, "Score: 1.5"),
        ({}, "Score: -0.1"),
        ({}, "Score: 1.2.3"),
        ({}, ""),
        ({"parse": "json"}, "Score: 1"),
        ({"parse": "json"}, '{"score": true}'),
        ({"parse": "json"}, '{"score": NaN}'),
        ({"parse": "json"}, '{"score": null}'),
        ({"parse": "json"}, "{" * 500),
    ],
)
def test_a_reply_without_a_score_is_a_failure_and_no_zero(options, reply):
    with pytest.raises(EvaluationFailedError, match="no score from 0 to 1 in the reply"):
        judged(reply, **options)


def test_the_template_is_filled_in_once():
    template = "{question}|{reference}|{answer}|{other}"
    _, prompt = judged("Score: 1", "{reference}{question}", template=template)
    assert prompt == "1+1=|2|{reference}{question}|{other}"
    _, prompt = judged("Score: 1", question_key="why", answer_key="why", template=template)
    assert prompt == "sum|sum|2|{other}"
    _, prompt = judged("Score: 1", question_key="said", template="{question}:{answer}")
    assert prompt == "user: hi:2"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"template": "{question}"}, "no {answer}"),
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": "x"}, "needs a group"),
        ({"minimum": 1.0}, "below maximum"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        configure(LlmJudgeEvaluator, options)


@pytest.fixture
def tree(tmp_path):
    made = tiny.config("self_hosted_grpo", tmp_path)
    source = made["models"]["policy"]["source"]
    made["models"]["judge"] = {"source": {**source, "seed": 5}}
    made["rollout_worker"]["evaluator"] = {
        "type": "llm_judge",
        "template": "{question}{answer}",
        # This model writes a and b, and how many a: is its score.
        "pattern": "(a|b)",
        "max_response_length": 4,
    }
    return made


def test_a_judge_of_the_run_gives_equal_rewards_in_processes(tree, tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE, "utf-8")
    tree["rollout_worker"]["evaluator"] |= {
        "custom_evaluator_module_path": str(tmp_path / "judge.py"),
        "custom_evaluator_class_name": "Letters",
    }
    del tree["rollout_worker"]["evaluator"]["type"]
    found = []
    for processes in (0, 1):
        tree["rollout_worker"]["processes"] = processes
        run = start(prepare(tree))
        kept = (
            "rollout/judge_score",
            "rollout/reward",
            "rollout/invalid",
            "validation/judge_score",
        )
        found.append([{k: m.get(k) for k in kept} for m in run.metrics])
    assert found[0] == found[1]
    steps = found[0][1:]
    assert all(step["rollout/judge_score"] == step["rollout/reward"] for step in steps)


JUDGE = """
from plugrl.scenarios.evaluators.llm_judge import LlmJudgeEvaluator

class Letters(LlmJudgeEvaluator):
    def _pattern_score(self, reply):
        return str(reply.count("a") / len(reply)) if reply else "0"
"""


def test_a_judge_that_never_gives_a_score_makes_attempts_invalid(tree):
    tree["validate"] = {"enabled": False, "every": 0, "data": None}
    tree["rollout_worker"]["evaluator"]["pattern"] = "(z)"
    tree["runtime_monitor"] = {"max_invalid_steps": 2}
    from plugrl.core.errors import RunError

    with pytest.raises(RunError, match="2 steps in a row.*no score from 0 to 1"):
        start(prepare(tree))


def test_a_judge_that_is_no_model_is_named_early(tree):
    tree["rollout_worker"]["evaluator"]["model"] = "juge"
    with pytest.raises(ConfigError, match=r"evaluator\.model.*no model 'juge'.*judge"):
        prepare(tree)
