"""Lockstep rollouts: order, determinism, and what workers and engines can do wrong."""

import asyncio
import inspect
import sys
from pathlib import Path

import pytest

from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.text.data.files import FileItem
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.inference.requests import Completion
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.validate_rollout import Attribution
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of
from plugrl.core.text.trajectory import Trajectory

sys.path.insert(0, str(Path(__file__).parent.parent))
from engines import Engine, Letters

SAMPLING = SamplingParams(max_new_tokens=2)

#: This file as messages name it.
HERE = "tests/core/text/rollout/test_rollouts.py"


class OneTurn(RolloutWorker):
    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        return trajectory_of(task, "policy", prompt, await task.ask("policy", prompt, SAMPLING))


class ThreeTurns(RolloutWorker):
    async def rollout(self, task):
        tokens = task.tokenizers["policy"].encode(task.prompt)
        for _ in range(1 + task.item % 3):
            prompt = list(tokens)
            completion = await task.ask("policy", prompt, SAMPLING)
            tokens = prompt + completion.tokens
        return trajectory_of(task, "policy", prompt, completion)


class TwoAtOnce(RolloutWorker):
    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        answers = await asyncio.gather(*(task.ask("policy", prompt, SAMPLING) for _ in range(2)))
        return [trajectory_of(task, "policy", prompt, answer) for answer in answers]


def collect(worker, engine, items=4, repeat=1, **kwargs):
    prompts = [
        Prompt({"prompt": "ab"[: 1 + i % 2]}, i, run, f"0/{i}", i)
        for i in range(items)
        for run in range(repeat)
    ]
    rollouts = LockstepRollouts(worker, {"policy": engine}, seed=5)
    return rollouts.collect(prompts, 7, SAMPLING, **kwargs)


def test_one_round_serves_everyone_in_the_order_of_the_prompts():
    engine = Engine()
    trajectories = collect(OneTurn(), engine, items=2, repeat=2)
    assert engine.rounds == [[(5, 7, 0, 0, 0), (5, 7, 0, 1, 0), (5, 7, 1, 0, 0), (5, 7, 1, 1, 0)]]
    assert [(t.group_id, t.run_id) for t in trajectories] == [
        ("0/0", 0), ("0/0", 1), ("0/1", 0), ("0/1", 1)
    ]  # fmt: skip
    first = trajectories[0]
    assert first.loss_mask == [0, 1, 1]
    assert first.logprobs == [0.0, -1.0, -2.0]
    assert first.versions == [-1, 3, 3]


@pytest.mark.parametrize("worker", [OneTurn, ThreeTurns, TwoAtOnce])
def test_equal_seeds_give_equal_trajectories_whatever_else_is_in_the_batch(worker):
    few, many = collect(worker(), Engine(), items=2), collect(worker(), Engine(), items=6)
    assert few == collect(worker(), Engine(), items=2)
    assert many[: len(few)] == few


def test_validation_draws_from_streams_of_its_own():
    assert collect(OneTurn(), Engine()) != collect(OneTurn(), Engine(), is_val=True)
    engine = Engine()
    collect(OneTurn(), engine, items=1, is_val=True)
    assert engine.rounds == [[(5, -8, 0, 0, 0)]]


def test_rollouts_of_several_turns_advance_together():
    engine = Engine()
    collect(ThreeTurns(), engine, items=3)
    assert [[(s[2], s[4]) for s in streams] for streams in engine.rounds] == [
        [(0, 0), (1, 0), (2, 0)], [(1, 1), (2, 1)], [(2, 2)]
    ]  # fmt: skip


def test_requests_sent_at_once_are_one_round_and_differ():
    engine = Engine()
    first, second = collect(TwoAtOnce(), engine, items=1)
    assert engine.rounds == [[(5, 7, 0, 0, 0), (5, 7, 0, 0, 1)]]
    assert first.tokens != second.tokens


class Failing(OneTurn):
    async def rollout(self, task):
        trajectory = await super().rollout(task)
        if task.item == 1:
            raise OSError("tool is down")
        return trajectory


class FailingPlain(RolloutWorker):
    def rollout(self, task):
        if task.item == 1:
            raise OSError("tool is down")
        return Trajectory([1, 2], [0, 1], versions=[-1, 0], group_id=task.group_id)


class Leaving(FailingPlain):
    def rollout(self, task):
        if task.item == 1:
            sys.exit("OSError: tool is down")
        return super().rollout(task)


def test_an_attempt_that_calls_exit_does_not_end_the_run():
    trajectories = collect(Leaving(), Engine(), items=3)
    assert [t.valid for t in trajectories] == [True, False, True]
    assert trajectories[1].failure.startswith(
        f"Leaving.rollout raised SystemExit: OSError: tool is down ({HERE}"
    )


@pytest.mark.parametrize("worker", [Failing, FailingPlain])
def test_an_attempt_that_raises_is_invalid_and_the_others_go_on(worker):
    trajectories = collect(worker(), Engine(), items=3)
    assert [t.valid for t in trajectories] == [True, False, True]
    assert trajectories[1].failure.startswith(
        f"{worker.__name__}.rollout raised OSError: tool is down ({HERE}:"
    )
    assert trajectories[1].finish_reason == "error"
    assert trajectories[1].group_id == "0/1"


def test_a_failed_attempt_belongs_to_the_model_that_the_worker_asks():
    class Failing(RolloutWorker):
        def rollout(self, task):
            raise OSError("tool is down")

    rollouts = LockstepRollouts(Failing({"model": "writer"}), {"writer": Engine()}, 0)
    (failed,) = rollouts.collect([Prompt({"prompt": "a"}, 0, 0, "0/0", 0)], 1, SAMPLING)
    assert failed.model == "writer"
    # A batch keeps its sampling log-probabilities only when every row has some.
    assert failed.logprobs == [0.0]


def sampled(**fields):
    return Trajectory([1, 2], [0, 1], **{"versions": [-1, 0], "logprobs": [0.0, -1.0], **fields})


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda: "text", "str; a Trajectory or a list"),
        (lambda: None, "NoneType"),
        (lambda: [Trajectory([1], [0]), 3], "int"),
        (lambda: Trajectory([1] * 65, [0] * 65), "65 tokens, more than the context .*64 tokens"),
        (lambda: Trajectory([1, 2], [0, 1]), "trains tokens without the versions of them; mask"),
        (
            lambda: Trajectory([1, 2, 3], [0, 1, 1], logprobs=[0.0] * 3, versions=[-1, 0, -1]),
            r"trains token 2, which no model sampled .versions.2. is -1.*finish_reason",
        ),
        (lambda: Trajectory([1, 128], [0, 1]), "token 128, outside the vocabulary .*128 tokens"),
        (lambda: Trajectory([1], [1], model="judge"), "of model 'judge'; models are: policy"),
        (lambda: Trajectory([1], [1], metrics={"m": "good"}), "metric 'm' of type str; a number"),
        (lambda: Trajectory([1], [1], metrics=[1.0]), "metrics of type list; a dict of numbers"),
        (lambda: Trajectory([1], [1], reward="good"), "a reward of type str; a number is"),
        (lambda: Trajectory([1], [1], reward=None), "a reward of type NoneType; a number is"),
        (lambda: sampled(logprobs=[0.0, 5.0]), "a log-probability of 5, above 0; give"),
        (lambda: sampled(logprobs=[0.01, -1.0]), "a log-probability of 0.01, above 0; give"),
        (lambda: sampled(temperature=0.0), "temperature 0.0; the one that its"),
        (lambda: sampled(temperature=float("nan")), "temperature nan; the one that its"),
        (lambda: sampled(temperature="1"), "temperature '1'; the one that its"),
    ],
)
def test_a_worker_with_a_wrong_answer_ends_the_run_and_is_named(answer, complaint):
    class Wrong(RolloutWorker):
        def rollout(self, task):
            return answer()

    with pytest.raises(RunError, match=rf"^Wrong\.rollout returned .*{complaint}") as caught:
        collect(Wrong(), Engine())
    line = inspect.getsourcelines(Wrong.rollout)[1]
    assert str(caught.value).endswith(f" ({HERE}:{line})")


class Claiming(RolloutWorker):
    """Gives each attempt what ``claims`` says of it."""

    def __init__(self, claims):
        super().__init__()
        self.claims = claims

    def rollout(self, task):
        own = {"group_id": task.group_id, "run_id": task.run_id}
        return [sampled(**{**own, **claim}) for claim in self.claims(task)]


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        (lambda task: [{"group_id": "same"}], "of group 'same' for prompt '0/1', .*'0/0' is of it"),
        (lambda task: [{"group_id": ""}], "of group '' for prompt '0/1', and one for prompt '0/0'"),
        (lambda task: [{"group_id": "0/0"}], "of group '0/0' for prompt '0/1'"),
        (
            lambda task: [{"run_id": 0}],
            "of run 0 for attempt 1 at prompt '0/0', and one of att.* 0",
        ),
        (lambda task: [{"group_id": 3}], "with group_id 3, which is no str; give trajectories"),
        (lambda task: [{"run_id": 1.0}], "with run_id 1.0, which is no int"),
        (lambda task: [{"versions": [-1, 4]}], "with version 4 of model 'policy', .* version 3;"),
    ],
)
def test_numbers_that_would_compare_what_is_not_comparable_are_refused(claims, complaint):
    prompts = [Prompt({"prompt": "a"}, i, run, f"0/{i}", i) for i in range(2) for run in range(2)]
    rollouts = LockstepRollouts(Claiming(claims), {"policy": Engine()}, 5, newest={"policy": 3}.get)
    with pytest.raises(RunError, match=rf"^Claiming\.rollout returned a trajectory {complaint}"):
        rollouts.collect(prompts, 1, SAMPLING)


def test_groups_within_a_prompt_and_several_trajectories_of_an_attempt_are_taken():
    def claims(task):
        return [{}, {}, {"group_id": f"{task.group_id}/a"}, {"run_id": 10 + task.run_id}]

    prompts = [Prompt({"prompt": "a"}, i, run, f"0/{i}", i) for i in range(2) for run in range(2)]
    rollouts = LockstepRollouts(Claiming(claims), {"policy": Engine()}, 5, newest={"policy": 0}.get)
    # What is attempted again is the same attempt.
    for step in (1, 2):
        assert len(rollouts.collect(prompts, step, SAMPLING)) == 16


def test_names_of_groups_that_are_long_trained_are_forgotten(monkeypatch):
    monkeypatch.setattr("plugrl.core.text.rollout.validate_rollout._REMEMBERED", 2)
    attribution = Attribution(OneTurn(), {}.get)
    for number in range(5):
        prompt = Prompt({"prompt": "a"}, number, 0, f"0/{number}", number)
        attribution.check(prompt, [sampled(group_id=prompt.group_id)])
    assert list(attribution._prompts) == ["0/3", "0/4"]


def test_a_trajectory_made_wrong_after_its_construction_is_invalid():
    class Shrinking(RolloutWorker):
        def rollout(self, task):
            trajectory = Trajectory([1, 2, 3], [0, 1, 1])
            trajectory.loss_mask.pop()
            return trajectory

    (trajectory,) = collect(Shrinking(), Engine(), items=1)
    assert not trajectory.valid
    assert trajectory.failure.startswith("Shrinking.rollout returned what does not fit: ")
    line = inspect.getsourcelines(Shrinking.rollout)[1]
    assert trajectory.failure.endswith(f"loss_mask has 2 values for 3 tokens ({HERE}:{line})")


@pytest.mark.parametrize(
    "trajectory",
    [
        Trajectory([1, 2], [0, 1], finish_reason="demonstration"),
        Trajectory([1, 2], [0, 1], valid=False, failure="no tool"),
        Trajectory([1, 2, 3], [0, 1, 0], versions=[-1, 0, -1]),
        Trajectory([1] * 64, [0] * 64),
    ],
)
def test_written_invalid_and_masked_tokens_need_no_version(trajectory):
    class Answers(RolloutWorker):
        def rollout(self, task):
            return trajectory

    assert collect(Answers(), Engine(), items=1) == [trajectory]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("versions", [-1, None], "a version is no whole number"),
        ("logprobs", [0.0, None], "a log-probability is no number"),
        ("logprobs", [0.0, "-1"], "a log-probability is no number"),
    ],
)
def test_values_of_the_wrong_kind_are_named(field, value, says):
    class Odd(RolloutWorker):
        def rollout(self, task):
            trajectory = Trajectory([1, 2], [0, 1], versions=[-1, 0])
            setattr(trajectory, field, value)
            return trajectory

    (trajectory,) = collect(Odd(), Engine(), items=1)
    assert f"{says} ({HERE}:" in trajectory.failure


@pytest.mark.parametrize(
    ("completions", "complaint"),
    [
        (lambda asked: [], "answered 0 of 4 requests"),
        (lambda asked: [Completion([1], [-1.0], "stop", 0)] * 3, "answered 3 of 4 requests"),
        (
            lambda asked: [Completion([1, 2], [-1.0], "stop", 0)] * len(asked),
            "answered 2 tokens with 1 log-probabilities",
        ),
        (
            lambda asked: [Completion([999], [-1.0], "stop", 0)] * len(asked),
            "token 999, outside the vocabulary",
        ),
    ],
)
def test_an_engine_that_breaks_its_contract_ends_the_run(completions, complaint):
    with pytest.raises(RunError, match=complaint):
        collect(OneTurn(), Engine(completions))


def nan_answers(asked):
    return [Completion([1], [float("nan")], "stop", 0)] * len(asked)


def broken(asked):
    raise TimeoutError("engine is gone")


@pytest.mark.parametrize(
    ("answers", "failure"),
    [(nan_answers, "log-probability is NaN"), (broken, "TimeoutError: engine is gone")],
)
def test_nan_and_a_raising_engine_are_counted_skips(answers, failure):
    trajectories = collect(OneTurn(), Engine(answers))
    assert len(trajectories) == 4
    assert not any(t.valid for t in trajectories)
    assert all(failure in t.failure for t in trajectories)


def test_an_unknown_model_is_named_with_those_there_are():
    class Lost(RolloutWorker):
        async def rollout(self, task):
            await task.ask("judge", [1], SAMPLING)

    with pytest.raises(RunError, match="no model 'judge'; models are: policy"):
        collect(Lost(), Engine())


def test_a_model_answers_the_others_when_one_rollout_ends_early():
    class Early(OneTurn):
        async def rollout(self, task):
            if task.item == 0:
                await asyncio.sleep(0)
                return Trajectory([1], [0])
            return await super().rollout(task)

    engine = Engine()
    assert len(collect(Early(), engine, items=3)) == 3
    assert [[s[2] for s in streams] for streams in engine.rounds] == [[1, 2]]


def leaves(asked):
    sys.exit("out of licenses")


class LeavesInATask(OneTurn):
    async def rollout(self, task):
        async def leave():
            sys.exit("tool is down")

        await asyncio.gather(leave())


@pytest.mark.parametrize(
    ("worker", "engine", "complaint"),
    [
        (OneTurn, Engine(leaves), r"model 'policy' called exit \(out of licenses\)"),
        (LeavesInATask, Engine(), r"a task that a worker started called exit \(tool is down\)"),
    ],
)
def test_code_that_calls_exit_where_nobody_catches_it_ends_the_run(worker, engine, complaint):
    with pytest.raises(RunError, match=complaint):
        collect(worker(), engine)


def test_a_loop_that_runs_already_is_no_hindrance():
    async def notebook():
        return collect(OneTurn(), Engine())

    assert asyncio.run(notebook()) == collect(OneTurn(), Engine())


class Cancels(OneTurn):
    async def rollout(self, task):
        if task.item == 1:
            raise asyncio.CancelledError("the tool gave up")
        return await super().rollout(task)


def test_an_attempt_that_cancels_itself_is_invalid():
    trajectories = collect(Cancels(), Engine(), items=3)
    assert [t.valid for t in trajectories] == [True, False, True]
    assert "the tool gave up" in trajectories[1].failure


class Other(Letters):
    eos_token_id = 99


class OtherEngine(Engine):
    tokenizer = Other()


class AsksBoth(RolloutWorker):
    async def rollout(self, task):
        prompt = [97]
        colder = SamplingParams(temperature=0.5, max_new_tokens=2, stop_token_ids=(5,))
        answers = [
            (name, await task.ask(name, prompt, sampling))
            for name, sampling in (("policy", SAMPLING), ("judge", colder), ("judge", SAMPLING))
        ]
        return [trajectory_of(task, name, prompt, answer) for name, answer in answers]


def test_each_model_ends_at_its_own_token_and_notes_its_temperature():
    asked = []

    def noted(engine):
        plain = engine.generate
        engine.generate = lambda requests: (asked.extend(requests), plain(requests))[1]
        return engine

    services = {"policy": noted(Engine()), "judge": noted(OtherEngine())}
    rollouts = LockstepRollouts(AsksBoth(), services, 0)
    trajectories = rollouts.collect([Prompt({"prompt": "a"}, 0, 0, "0/0", 0)], 1, SAMPLING)
    assert [r.sampling.stop_token_ids for r in asked] == [(1,), (5, 99), (99,)]
    assert [t.temperature for t in trajectories] == [1.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("completion", "complaint"),
    [
        (Completion([1], [None], "stop", 0), "log-probability values"),
        (Completion(["a"], [-1.0], "stop", 0), "token values"),
        (Completion([1.5], [-1.0], "stop", 0), "token values"),
        (Completion([1], [-1.0], "banana", 0), "finish reason 'banana'; use one of stop, length"),
    ],
)
def test_answers_of_the_wrong_kind_end_the_run(completion, complaint):
    with pytest.raises(RunError, match=f"model 'policy' answered .*{complaint}"):
        collect(OneTurn(), Engine(lambda asked: [completion] * len(asked)))


@pytest.mark.parametrize(
    ("value", "says"),
    [(float("nan"), "a log-probability is NaN or infinite"), (3.0, "a log-probability is 3")],
)
def test_an_impossible_log_probability_is_blamed_on_the_model(value, says):
    answer = Completion([1], [value], "stop", 0)
    trajectories = collect(OneTurn(), Engine(lambda asked: [answer] * len(asked)))
    assert {t.failure.startswith(f"model 'policy' answered: {says}") for t in trajectories} == {
        True
    }


def test_a_raising_engine_is_named_and_not_the_worker():
    (failure, *_) = [t.failure for t in collect(OneTurn(), Engine(broken))]
    assert failure.startswith(
        "model 'policy': Engine.generate raised TimeoutError: engine is gone ("
    )
    assert "test_rollouts.py:" in failure


def test_a_worker_that_raises_generator_exit_fails_its_attempt():
    class Exits(RolloutWorker):
        async def rollout(self, task):
            raise GeneratorExit

    assert not any(t.valid for t in collect(Exits(), Engine()))


def test_asking_without_sampling_takes_what_is_configured():
    class Plainly(RolloutWorker):
        async def rollout(self, task):
            prompt = [97]
            return trajectory_of(task, "policy", prompt, await task.ask("policy", prompt))

    assert all(t.valid for t in collect(Plainly(), Engine()))


def located(worker, data, engine=None, index=3):
    rollouts = LockstepRollouts(worker, {"policy": engine or Engine()}, 0)
    with pytest.raises(PlugrlError) as caught:
        rollouts.collect([Prompt(data, index, 0, "0/3", 3)], 1, SAMPLING)
    return str(caught.value)


class AsksFor(RolloutWorker):
    def __init__(self, *prompt):
        super().__init__()
        self.prompt = prompt

    async def rollout(self, task):
        prompt = self.prompt or task.tokenizers["policy"].encode(task.prompt)
        return trajectory_of(task, "policy", prompt, await task.ask("policy", prompt, SAMPLING))


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (AsksFor(*[2] * 64), "a prompt of 64 tokens fills the context of model 'policy' (64"),
        (AsksFor(128), "a prompt has token 128, outside the vocabulary of model 'policy' (128"),
        (AsksFor(), "data has no column 'prompt' (data.prompt_key)"),
    ],
)
def test_a_fault_of_the_data_names_its_place_and_the_worker(worker, says):
    text = located(worker, FileItem({"question": "a"}, "d.jsonl:7"))
    assert text.startswith(says)
    line = inspect.getsourcelines(AsksFor.rollout)[1]
    end = f"worker AsksFor.rollout ({HERE}:{line}))"
    assert text.endswith(f" (d.jsonl:7; {end}")
    # Data that comes from no file is named by its number.
    assert located(worker, {"question": "a"}).endswith(f" (problem 3; {end}")


def test_a_fault_of_what_a_worker_returned_names_the_problem_too():
    class Long(RolloutWorker):
        def rollout(self, task):
            return Trajectory([2] * 65, [0] * 65)

    text = located(Long(), FileItem({"prompt": "a"}, "d.jsonl:7"))
    assert "65 tokens, more than the context of model 'policy'" in text
    assert text.endswith("; the problem is d.jsonl:7")


def test_a_fault_of_the_engine_is_blamed_on_no_problem():
    def broken(requests):
        raise ConfigError("the engine has no licence")

    text = located(OneTurn(), FileItem({"prompt": "a"}, "d.jsonl:7"), Engine(broken))
    assert text == "the engine has no licence"
