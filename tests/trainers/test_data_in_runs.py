"""What a run makes of its data: prompts that are left out, no text, or changed meanwhile."""

import json
import logging
import math
import os
import re
import signal
from pathlib import Path

import pytest

import plugrl
from plugrl.core.errors import ConfigError, RunError, RunTerminated
from plugrl.core.experiment import prepare, resume
from plugrl.core.text.rollout.worker import RolloutWorker
from plugrl.core.text.trajectory import Trajectory
from plugrl.testing import tiny


@pytest.fixture
def tree(config):
    tree = config()
    tree["validate"] = {"enabled": False}
    return tree


def write(tree, problems):
    file = Path(tree["data"]["data_files"][0])
    file.write_text("".join(json.dumps(problem) + "\n" for problem in problems), encoding="utf-8")


@pytest.mark.integration
def test_long_prompts_are_left_out_and_the_log_says_how_many(tree, caplog):
    write(tree, [{"prompt": "a" * n, "answer": "a"} for n in (1, 2, 3, 4, 5)])
    tree["data"]["filter_prompts"] = True
    tree["rollout_worker"]["max_prompt_length"] = 3
    with caplog.at_level(logging.INFO):
        run = plugrl.train(tree)
    assert "2 of 5 problems are left out" in caplog.text
    assert run.checkpoint()["trainer"]["loader"]["items"] == 3


@pytest.mark.integration
@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        (None, "problem 0: 'prompt' holds no value, not text"),
        (math.nan, "problem 0: 'prompt' holds no value, not text"),
        ([], "problem 0: 'prompt' is an empty list; text or a list of messages"),
        (["a"], "problem 0: 'prompt': message 0 is 'a'; a mapping with role and content"),
    ],
)
def test_a_prompt_that_is_no_text_is_not_sent_to_the_model(tree, prompt, fault):
    write(tree, [{"prompt": prompt, "answer": "a"}])
    with pytest.raises(RunError, match=re.escape(fault)):
        plugrl.train(tree)


def demonstrated(tmp_path, *rows):
    """A configuration that learns from these rows, whose replies a template ends."""
    tree = tiny.config("self_hosted_cross_entropy", tmp_path)
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree["data"] |= {"data_files": [str(path)], "shuffle": False}
    tree["models"]["policy"]["source"]["tokenizer"]["chat_template"] = (
        "{% for m in messages %}{{ m.content }}b{% endfor %}"
    )
    tree["rollout_worker"]["type"] = "demonstration"
    tree["validate"] = {"enabled": False}
    return tree


SAID = {"role": "assistant", "content": "a"}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "NoneType"),
        ({"text": "a"}, "dict"),
        (SAID, "dict"),
        ([], "list"),
        (["a", "b"], "list"),
        ([SAID, SAID], "list"),
        ([{"role": "user", "content": "a"}], "list"),
        ([{**SAID, "content": None}], "list"),
        ([{**SAID, "tool_calls": [{"name": "f"}]}], "list"),
        (float("nan"), "float"),
    ],
)
def test_what_is_no_answer_is_refused_before_the_run(tmp_path, answer, kind):
    # Not in the first row: all of them are looked at.
    tree = demonstrated(
        tmp_path, *[{"prompt": "a", "answer": "a"}] * 2, {"prompt": "a", "answer": answer}
    )
    fault = f": {tmp_path}/problems.jsonl:3: 'answer' holds {kind}, no answer: "
    with pytest.raises(ConfigError, match=re.escape(fault)):
        prepare(tree)
    tree["data"]["keep"] = {"answer": ["a"]}
    assert prepare(tree)


@pytest.mark.integration
def test_a_reply_of_conversational_data_is_what_it_says(tmp_path):
    prompt = [{"role": "user", "content": "ba"}]
    seen = []

    class Seen:
        @plugrl.hookimpl
        def plugrl_rollouts_collected(self, trajectories):
            seen.append([(t.tokens, t.loss_mask) for t in trajectories])

    for answer in ("a", [SAID]):
        tree = demonstrated(tmp_path, *[{"prompt": prompt, "answer": answer}] * 4)
        tree["trainer"]["total_train_steps"] = 1
        tiny.train(tree, Seen())
    assert seen[0] == seen[1]
    # By hand: "ba" and the "b" of the template are given, "a" and the end token are trained.
    assert seen[0][0][1] == [0, 0, 0, 1, 1]


@pytest.mark.integration
def test_a_prompt_of_messages_is_written_by_the_chat_template(tree):
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    write(tree, [{"prompt": messages, "answer": "a"}] * 2)
    tree["models"]["policy"]["source"]["tokenizer"]["chat_template"] = (
        "{% for m in messages %}{{ m.content }}b{% endfor %}"
    )
    seen = []

    class Look:
        @plugrl.hookimpl
        def plugrl_rollouts_collected(self, trajectories):
            seen.extend(trajectories)

    tiny.train(tree, Look())
    assert {tuple(t.tokens[: t.loss_mask.index(1)]) for t in seen} == {(2, 3, 3, 3)}


@pytest.mark.integration
def test_prompts_of_messages_are_measured_in_tokens_of_the_template(tree):
    long = [{"role": "user", "content": "a" * 9}]
    write(tree, [{"prompt": long, "answer": "a"}, *tiny.PROBLEMS])
    tree["data"]["filter_prompts"] = True
    tree["rollout_worker"]["max_prompt_length"] = 9
    tree["validate"] = {"enabled": False}
    assert plugrl.train(tree).checkpoint()["trainer"]["loader"]["items"] == len(tiny.PROBLEMS)


class Stop:
    @plugrl.hookimpl
    def plugrl_step_end(self, step):
        if step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.integration
def test_a_file_that_changed_meanwhile_is_refused(tree):
    with pytest.raises(RunTerminated):
        tiny.train(tree, Stop())
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    write(tree, [{**problem, "answer": "b"} for problem in tiny.PROBLEMS])
    with pytest.raises(RunError, match="the problems differ from those that the checkpoint"):
        resume(folder)
    write(tree, tiny.PROBLEMS)
    assert resume(folder).checkpoint()["trainer"]["step"] == 2


class NamesItsTask(RolloutWorker):
    """The first attempt fails before it says which task it had."""

    def rollout(self, task):
        if task.run_id == 0:
            raise ValueError("broken tool")
        return Trajectory(
            [0, 1], [0, 1], logprobs=[0.0, -1.0], versions=[-1, 0], reward=float(task.run_id),
            group_id=task.group_id, run_id=task.run_id, extra_fields={"task": "of the worker"},
        )  # fmt: skip


@pytest.mark.integration
def test_a_failed_first_attempt_does_not_change_the_keys_of_the_others(tree, registry, monkeypatch):
    from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

    seen = []
    plain = SelfHostedGrpoTrainer.train_step
    monkeypatch.setattr(
        SelfHostedGrpoTrainer,
        "train_step",
        lambda self, batch: seen.append([t.get("task") for t in batch]) or plain(self, batch),
    )
    registry.register("rollout_worker", "names_its_task", NamesItsTask)
    write(tree, [{"prompt": "a", "answer": "a", "task": "of the data"}])
    tree["rollout_worker"] = {"type": "names_its_task"}
    tree["trajectory_pool"] = {"key_list": ["task"]}
    tree["data"]["batch_size"] = 1
    tree["trainer"]["total_train_steps"] = 1
    plugrl.train(tree)
    assert seen == [["of the data"] + ["of the worker"] * 3]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("processes", "filtered"),
    [
        (0, True),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in ((0, False), (1, True))),
        (1, False),
    ],
)
def test_a_character_that_the_tokenizer_lacks_is_found_in_the_file(tree, filtered, processes):
    write(tree, [*tiny.PROBLEMS, {"prompt": "ax", "answer": "a"}])
    tree["data"] |= {"filter_prompts": filtered, "batch_size": 5}
    tree["validate"] = {"enabled": False}
    tree["rollout_worker"]["processes"] = processes
    with pytest.raises(RunError, match="the tokenizer has no character 'x'") as caught:
        plugrl.train(tree)
    assert f"{tree['data']['data_files'][0]}:5" in str(caught.value)
    if not filtered:
        assert "worker SingleTurnRolloutWorker.rollout)" in str(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize("form", ["messages", "completion"])
def test_held_out_rows_of_other_forms_are_asked_about_and_compared(tmp_path, form):
    def row(prompt, answer):
        asked, said = {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}
        if form == "messages":
            return {"messages": [asked, said]}
        return {"prompt": [asked], "completion": [said]}

    path = tmp_path / "rows.jsonl"
    rows = [row(a + b, a) for a in "ab" for b in "ab"]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    files = {"data_files": [str(path)]}
    sections = {
        "data": {**files, "rollout_repeat_n": 1},
        "validate": {"data": files, "every": 2, "validate_before_train": False},
        "rollout_worker": {"type": "demonstration"},
    }
    run = plugrl.train(tiny.config("self_hosted_cross_entropy", tmp_path, sections))
    lines = (run.folder / "samples/validation.jsonl").read_text("utf-8").splitlines()
    kept = [json.loads(line) for line in lines]
    assert [(each["prompt"], each["ground_truth"]) for each in kept] == [
        (a + b, a) for a in "ab" for b in "ab"
    ]
    assert "validation/exact_match" in run.metrics[-1]
