"""Whole runs in the asynchronous modes: bound, schedule, validation, resume and faults."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from waiting import wait_until

import plugrl
from plugrl.core.errors import ConfigError, RunError, RunInterrupted, RunTerminated, StopRun
from plugrl.core.experiment import resume
from plugrl.core.run.records.records import read_jsonl
from plugrl.core.text.evaluate.validation import Validation
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.plugins.transformers.engine.serving import Serving
from plugrl.plugins.transformers.inference_service import TransformersInferenceService
from plugrl.testing import tiny

BATCH = {"weight": {"sync_mode": "batch-async", "staleness_threshold": 1}}
MODES = {"batch-async": BATCH} | {
    kind: {
        "weight": {"sync_mode": "fully-async", "staleness_threshold": 2, "in_flight": kind},
        "trajectory_pool": {"check_batch_ready_function": "batch_size", "batch_size": 8},
    }
    for kind in ("finish", "restart", "continue")
}
#: Also the mode that does not overlap, for faults that all of them have to survive.
ALL = {"sync": {}, **MODES}


def quick(*names, of=MODES):
    """All modes, of which the tier slow runs those not named: each is in some of the tests."""
    assert set(names) <= set(of)
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in of]


TWO = quick("batch-async", of=("batch-async", "continue"))


@pytest.fixture
def make(config):
    def make(mode, /, trainer="self_hosted_grpo", **sections):
        over = {"trainer": {"total_train_steps": 6}, "validate": {"enabled": False}}
        return tiny.merged(tiny.merged(config(trainer, **over), ALL[mode]), sections)

    return make


@pytest.fixture
def trained(monkeypatch):
    """The attempts of every training batch of the run's trainers, and the gaps of its tokens."""
    seen = []
    plain = TrajectoryTrainer._train_models

    def watched(self, batches, metrics):
        for name, own in batches.items():
            version = self.models.trained[name].version
            gaps = [version - v for t in own for v in t.versions or () if v >= 0]
            seen.append(([(t.model, t.group_id, t.run_id) for t in own], gaps))
        return plain(self, batches, metrics)

    monkeypatch.setattr(TrajectoryTrainer, "_train_models", watched)
    return seen


@pytest.fixture
def decoded(monkeypatch):
    """When the engine made steps, in the seconds of the timeline; training waits for one of them.

    Models are so small that an update may be over before the thread of the engine has its turn.
    """
    times = []
    advance, train = Serving.advance, TrajectoryTrainer._train_models

    def watched(self, version):
        times.append(time.time())
        return advance(self, version)

    def beside(self, *args):
        before = len(times)
        wait_until(lambda: len(times) > before or not self._collector.open)
        return train(self, *args)

    monkeypatch.setattr(Serving, "advance", watched)
    monkeypatch.setattr(TrajectoryTrainer, "_train_models", beside)
    return times


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert "plugrl-rollouts" not in {thread.name for thread in threading.enumerate()}


def check_each_once(trained):
    counts = Counter(key for keys, _ in trained for key in set(keys))
    assert counts
    assert set(counts.values()) == {1}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("mode", "processes"),
    [
        *((mode, 0) for mode in MODES),
        (next(iter(MODES)), 2),
        *(pytest.param(mode, 2, marks=pytest.mark.slow) for mode in list(MODES)[1:]),
    ],
)
def test_a_run_keeps_the_bound_and_trains_each_attempt_once(
    make, trained, decoded, mode, processes
):
    run = plugrl.train(make(mode, rollout_worker={"processes": processes}))
    threshold = MODES[mode]["weight"]["staleness_threshold"]
    assert run.status["state"] == "done"
    assert len(trained) == 6
    check_each_once(trained)
    most = max(gap for _, gaps in trained for gap in gaps)
    assert most <= threshold
    assert max(line.get("sync/staleness_max", 0) for line in run.metrics) == most
    assert [len(keys) for keys, _ in trained] == [8] * 6
    # Attempts ran while the trainer trained, and the timeline says so.
    lines = read_jsonl(run.folder / "timeline.jsonl")
    spans = {
        lane: [(e["start"], e["end"]) for e in lines if (e["lane"], e["name"]) == (lane, name)]
        for lane, name in (("trainer", "train"), ("rollout", "attempts"))
    }
    overlap = [
        (max(a[0], b[0]), min(a[1], b[1])) for a in spans["trainer"] for b in spans["rollout"]
    ]
    assert len(spans["trainer"]) == 6
    # Where it shows both, tokens were decoded.
    assert any(start < at < end for start, end in overlap for at in decoded)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("threshold", "synced"),
    [
        (0, 6),
        pytest.param(1, 3, marks=pytest.mark.slow),
        (2, 2),
        pytest.param(5, 1, marks=pytest.mark.slow),
    ],
)
def test_batch_async_syncs_only_when_the_next_batch_would_pass_the_bound(make, threshold, synced):
    run = plugrl.train(make("batch-async", weight={"staleness_threshold": threshold}))
    assert sum("sync/parity" in line for line in run.metrics) == synced
    assert run.metrics[-1]["sync/staleness_max"] == threshold


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("batch-async", of=ALL))
def test_each_validation_has_the_weights_of_its_step(make, monkeypatch, mode):
    seen = []
    plain = Validation.__call__

    def watched(self, step):
        seen.append((step, self._rollouts._services["policy"].version))
        scores, trajectories = plain(self, step)
        versions = {v for t in trajectories for v in t.versions if v >= 0}
        assert versions == {seen[-1][1]}
        return scores, trajectories

    monkeypatch.setattr(Validation, "__call__", watched)
    plugrl.train(make(mode, validate={"enabled": True, "every": 2}))
    # One update a step: the version is the number of steps.
    assert seen == [(0, 0), (2, 2), (4, 4), (6, 6)]


class AtStep:
    """Does something at the end of a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    @plugrl.hookimpl
    def plugrl_step_end(self, run, step):
        if step == self.step:
            self.act()


def stop():
    raise StopRun("enough")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("mode", "act", "error"),
    [
        ("sync", terminate, RunTerminated),
        ("batch-async", interrupt, RunInterrupted),
        ("continue", terminate, RunTerminated),
        *(
            pytest.param(mode, act, error, marks=pytest.mark.slow)
            for mode, act, error in (
                *((mode, terminate, RunTerminated) for mode in list(MODES)[:3]),
                ("continue", interrupt, RunInterrupted),
            )
        ),
    ],
)
def test_a_stopped_run_goes_on_without_loss(make, trained, mode, act, error):
    tree = make(mode)
    with pytest.raises(error):
        tiny.train(tree, AtStep(3, act))
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    state = plugrl.load_run(folder).checkpoint()["trainer"]
    waiting = state["collector"].get("attempts", [])
    assert bool(waiting) == (mode != "sync")
    assert resume(folder).status["state"] == "done"
    assert len(trained) == 6
    check_each_once(trained)
    # What waited at the stop was trained before anything that was loaded later.
    after = {key[1:] for keys, _ in trained[3:5] for key in keys}
    assert {(group, run) for _, run, group, *_ in waiting[:8]} <= after


@pytest.mark.integration
@pytest.mark.parametrize("mode", TWO)
def test_a_hook_that_stops_the_run_ends_it_in_order(make, mode):
    run = tiny.train(make(mode), AtStep(3, stop))
    assert run.status["state"] == "done"
    assert run.checkpoint()["trainer"]["step"] == 3


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("sync", "finish", of=ALL))
def test_a_sync_that_fails_ends_the_run_with_its_error(make, monkeypatch, mode):
    plain = TransformersInferenceService.update_weights

    def update(self, weights, version):
        if version == 2:
            raise OSError("the weights did not arrive")
        plain(self, weights, version)

    monkeypatch.setattr(TransformersInferenceService, "update_weights", update)
    tree = make(mode)
    with pytest.raises(RunError, match="raised OSError: the weights did not arrive at"):
        plugrl.train(tree)
    monkeypatch.setattr(TransformersInferenceService, "update_weights", plain)
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    assert plugrl.load_run(folder).status["state"] == "failed"
    assert resume(folder).status["state"] == "done"


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("batch-async", of=ALL))
def test_a_sampler_with_other_weights_ends_the_run(make, monkeypatch, mode):
    plain = TransformersInferenceService.update_weights

    def update(self, weights, version):
        wrong = {name: w + 0.5 if version == 2 else w for name, w in weights.items()}
        plain(self, wrong, version)

    monkeypatch.setattr(TransformersInferenceService, "update_weights", update)
    with pytest.raises(RunError, match="the sampler does not run the trained weights"):
        plugrl.train(make(mode))


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("batch-async", "restart"))
def test_what_fails_in_one_attempt_costs_that_attempt(make, registry, mode):
    class Fragile(RolloutWorker):
        async def rollout(self, task):
            if task.item == 0 and task.run_id == 1:
                raise OSError("tool is down")
            prompt = task.tokenizers["policy"].encode(task.prompt)
            answer = await task.ask("policy", prompt)
            await asyncio.sleep(0.001)
            return trajectory_of(task, "policy", prompt, answer)

    registry.register("rollout_worker", "fragile", Fragile)
    run = plugrl.train(make(mode, rollout_worker={"type": "fragile", "evaluator": None}))
    assert run.status["state"] == "done"
    assert sum(line.get("rollout/invalid", 0) > 0 for line in run.metrics) >= 1


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda task: {"tokens": [1]}, "returned dict; a Trajectory or a list"),
        (lambda task: task.ask_now("nobody", [1]), "no model 'nobody'"),
    ],
)
@pytest.mark.parametrize("mode", quick("batch-async", "continue"))
def test_a_fault_of_the_worker_ends_the_run(make, registry, mode, answer, message):
    class Wrong(RolloutWorker):
        def rollout(self, task):
            return answer(task)

    registry.register("rollout_worker", "wrong", Wrong)
    with pytest.raises(RunError, match=message):
        plugrl.train(make(mode, rollout_worker={"type": "wrong", "evaluator": None}))


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("finish", "continue"))
def test_code_that_swallows_its_end_is_left_behind(make, registry, mode):
    class Stubborn(RolloutWorker):
        async def rollout(self, task):
            prompt = task.tokenizers["policy"].encode(task.prompt)
            answer = await task.ask("policy", prompt)
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
            return trajectory_of(task, "policy", prompt, answer)

    registry.register("rollout_worker", "stubborn", Stubborn)
    tree = make(mode, rollout_worker={"type": "stubborn", "evaluator": None})
    tree["trainer"]["total_train_steps"] = 3
    assert plugrl.train(tree).status["state"] == "done"


@pytest.mark.integration
def test_fully_async_without_its_rule_is_refused(make):
    tree = make("finish", trajectory_pool={"check_batch_ready_function": "loaded_batch_finished"})
    with pytest.raises(
        ConfigError, match="batch_size_reached and trajectory_pool.batch_size, such"
    ):
        plugrl.train(tree)


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("batch-async", "restart"))
def test_a_batch_that_no_group_completes_ends_the_run(make, registry, mode):
    class Nothing(RolloutWorker):
        def rollout(self, task):
            return []

    registry.register("rollout_worker", "nothing", Nothing)
    with pytest.raises(RunError, match="20 loaded batches completed no group"):
        plugrl.train(make(mode, rollout_worker={"type": "nothing", "evaluator": None}))


class Debate(RolloutWorker):
    """Two trained models and a frozen one answer each prompt; one of the former not always."""

    async def rollout(self, task):
        prompt = task.tokenizers["policy"].encode(task.prompt)
        names = ["policy", "critic", "judge"] if task.item else ["policy", "judge"]
        answers = await asyncio.gather(*(task.ask(name, prompt) for name in names))
        made = [trajectory_of(task, n, prompt, a) for n, a in zip(names, answers, strict=True)]
        for trajectory in made:
            trajectory.reward = float(trajectory.tokens[-1])
        return made


@pytest.mark.integration
@pytest.mark.parametrize("mode", quick("batch-async", "continue"))
def test_several_models_keep_the_bound_each_with_its_own_versions(make, trained, registry, mode):
    registry.register("rollout_worker", "debate", Debate)
    tree = make(mode, rollout_worker={"type": "debate", "evaluator": None})
    policy = tree["models"]["policy"]
    tree["models"] |= {
        "critic": {"source": {**policy["source"], "seed": 1}, "train": dict(policy["train"])},
        "judge": {"source": {**policy["source"], "seed": 2}},
    }
    run = plugrl.train(tree)
    check_each_once(trained)
    assert {key[0] for keys, _ in trained for key in keys} == {"policy", "critic"}
    threshold = MODES[mode]["weight"]["staleness_threshold"]
    assert max(gap for _, gaps in trained for gap in gaps) <= threshold
    for name in ("policy", "critic"):
        said = [line.get(f"sync/{name}/staleness_max") for line in run.metrics]
        largest = max(gap for keys, gaps in trained if keys[0][0] == name for gap in gaps)
        assert max(number for number in said if number is not None) == largest


@pytest.mark.integration
@pytest.mark.parametrize("mode", TWO)
def test_training_behind_an_api_shares_the_modes(make, trained, mode):
    models = {"policy": {"train": {"type": "in_process"}}}
    run = plugrl.train(make(mode, "remote_api_grpo", models=models))
    assert run.status["state"] == "done"
    check_each_once(trained)
    threshold = MODES[mode]["weight"]["staleness_threshold"]
    assert max(gap for _, gaps in trained for gap in gaps) <= threshold
