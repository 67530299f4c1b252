"""Two trained models and a frozen one in one run: everything is kept apart by model name."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError, RunTerminated
from plugrl.core.experiment import load_run, resume
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.models import Model, Models
from plugrl.core.text.rollout.worker import RolloutWorker, trajectory_of
from plugrl.core.text.trajectory import Trajectory
from plugrl.testing import tiny
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer

MODELS = ("proposer", "critic", "judge")


class DebateWorker(RolloutWorker):
    """The proposer answers, the critic replies to it, and the judge only speaks.

    The proposer's reward is its share of "a", the critic's that of "b", so that each of the two
    has something of its own to learn.
    """

    async def rollout(self, task):
        prompt = task.tokenizers["proposer"].encode(task.prompt)
        proposal = await task.ask("proposer", prompt, task.sampling)
        heard = [*prompt, *proposal.tokens]
        reply = await task.ask("critic", heard, task.sampling)
        verdict = await task.ask("judge", prompt, task.sampling)
        trajectories = []
        for name, asked, answer, letter in (
            ("proposer", prompt, proposal, "a"),
            ("critic", heard, reply, "b"),
            ("judge", prompt, verdict, "a"),
        ):
            trajectory = trajectory_of(task, name, asked, answer)
            text = task.tokenizers[name].decode(answer.tokens)
            trajectory.reward = text.count(letter) / len(answer.tokens)
            trajectories.append(trajectory)
        return trajectories


@pytest.fixture(scope="module", autouse=True)
def debates():
    """The worker is registered for as long as the tests of this file run."""
    registry = default_registry()
    before = registry.snapshot()
    registry.register("rollout_worker", "debate", DebateWorker)
    yield
    registry.restore(before)


def debate_in(folder, **sections):
    tree = tiny.config("self_hosted_grpo", folder, sections)
    policy = tree["models"]["policy"]
    models = {
        name: {"source": {**policy["source"], "seed": number}, "train": dict(policy["train"])}
        for number, name in enumerate(MODELS)
    }
    del models["judge"]["train"]
    tree["models"] = json.loads(json.dumps(models))
    tree["rollout_worker"] = {"type": "debate", "model": "proposer", "max_response_length": 3}
    tree["validate"] = {"enabled": False}
    tree["trainer"]["total_train_steps"] = 4
    return tree


@pytest.fixture
def debate(tmp_path, registry):
    return lambda **sections: debate_in(tmp_path, **sections)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, debates):
    """An ordinary run, and what every ``train_step`` was given: models, and versions of tokens."""
    seen = []
    plain = SelfHostedGrpoTrainer.train_step

    def watched(self, trajectories):
        models = {t.model for t in trajectories}
        versions = {v for t in trajectories for v in t.versions if v >= 0}
        before = {name: train.version for name, train in self.models.trained.items()}
        seen.append((models, versions, before))
        return plain(self, trajectories)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SelfHostedGrpoTrainer, "train_step", watched)
        run = plugrl.train(debate_in(tmp_path_factory.mktemp("whole")))
    return SimpleNamespace(run=run, collected=seen)


@pytest.mark.integration
def test_each_model_trains_on_its_own_trajectories_of_its_own_version(whole):
    run, collected = whole.run, whole.collected
    assert [sorted(models) for models, _, _ in collected] == [["critic"], ["proposer"]] * 4
    for models, versions, before in collected:
        (name,) = models
        # In sync mode what was sampled is exactly as old as what is trained.
        assert versions == {before[name]}
    state = run.checkpoint()["trainer"]["models"]
    assert set(state) == {"proposer", "critic"}
    assert {name: entry["version"] for name, entry in state.items()} == {
        "proposer": 4,
        "critic": 4,
    }


@pytest.mark.integration
def test_metrics_are_kept_by_model_name(whole):
    last = whole.run.last_metrics
    for name in MODELS:
        assert 0 <= last[f"rollout/{name}/reward"] <= 1
    for name in ("proposer", "critic"):
        assert {f"train/{name}/loss", f"train/{name}/grad_norm", f"sync/{name}/parity"} <= set(last)
    assert not [name for name in last if name.startswith(("train/judge", "sync/judge"))]


@pytest.mark.integration
def test_one_model_learns_the_same_whether_or_not_the_other_is_trained(debate, whole):
    both = whole.run.checkpoint()["trainer"]["models"]
    tree = debate()
    del tree["models"]["critic"]["train"]
    alone = plugrl.train(tree).checkpoint()["trainer"]["models"]
    # The proposer never hears the critic, so its weights cannot depend on it.
    assert_equal_weights(alone["proposer"], both["proposer"])


@pytest.mark.integration
def test_a_frozen_model_answers_alike_in_every_step(debate, tmp_path):
    tree = debate()
    tree["rollout_worker"]["temperature"] = 0.0
    seen = []

    class Watcher:
        @plugrl.hookimpl
        def plugrl_rollouts_collected(self, trajectories):
            seen.append(
                {t.group_id.split("/")[1]: t.tokens for t in trajectories if t.model == "judge"}
            )

    tiny.train(tree, Watcher())
    answers = {}
    for step in seen:
        for item, tokens in step.items():
            assert answers.setdefault(item, tokens) == tokens
    assert len(answers) == 4


@pytest.mark.integration
def test_models_with_one_configuration_begin_alike_unless_their_seed_differs(debate):
    tree = debate()
    tree["trainer"]["total_train_steps"] = 0
    apart = plugrl.train(tree).checkpoint()["trainer"]["models"]
    assert any(
        not torch.equal(value, apart["critic"]["state"]["weights"][name])
        for name, value in apart["proposer"]["state"]["weights"].items()
    )
    for name in MODELS:
        tree["models"][name]["source"]["seed"] = None
    alike = plugrl.train(tree).checkpoint()["trainer"]["models"]
    assert_equal_weights(alike["critic"], alike["proposer"])


@pytest.mark.integration
def test_a_stopped_and_resumed_run_of_several_models_equals_the_uninterrupted_one(debate, whole):
    class TerminatedAtTwo:
        @plugrl.hookimpl
        def plugrl_step_end(self, step):
            if step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    tree = debate()
    tree["settings"]["runs_folder"] += "-stopped"
    with pytest.raises(RunTerminated):
        tiny.train(tree, TerminatedAtTwo())
    (folder,) = Path(tree["settings"]["runs_folder"]).glob("*/[0-9]*")
    assert load_run(folder).status["step"] < 4
    resumed = resume(folder)
    assert without_times(resumed.metrics) == without_times(whole.run.metrics)
    for name in ("proposer", "critic"):
        assert_equal_weights(
            resumed.checkpoint()["trainer"]["models"][name],
            whole.run.checkpoint()["trainer"]["models"][name],
        )


@pytest.mark.integration
def test_a_model_that_nothing_is_trained_on_keeps_its_version(debate, registry):
    class Monologue(RolloutWorker):
        async def rollout(self, task):
            prompt = task.tokenizers["proposer"].encode(task.prompt)
            answer = await task.ask("proposer", prompt, task.sampling)
            trajectory = trajectory_of(task, "proposer", prompt, answer)
            trajectory.reward = float(len(answer.tokens))
            return trajectory

    registry.register("rollout_worker", "monologue", Monologue)
    tree = debate()
    tree["rollout_worker"]["type"] = "monologue"
    state = plugrl.train(tree).checkpoint()["trainer"]["models"]
    assert (state["proposer"]["version"], state["critic"]["version"]) == (4, 0)


@pytest.mark.integration
def test_a_trajectory_of_an_unknown_model_is_named(debate, registry):
    class Stranger(RolloutWorker):
        def rollout(self, task):
            return Trajectory([0, 1], [0, 1], model="nobody", group_id=task.group_id)

    registry.register("rollout_worker", "stranger", Stranger)
    tree = debate()
    tree["rollout_worker"]["type"] = "stranger"
    with pytest.raises(
        plugrl.PlugrlError, match=r"model 'nobody'; models are: critic, judge, proposer"
    ):
        plugrl.train(tree)


@pytest.mark.integration
def test_a_checkpoint_of_other_models_is_refused(whole):
    with pytest.raises(ConfigError, match=r"critic, proposer.*trains none"):
        Models({"judge": Model("judge", None, None)}).load_state_dict(
            whole.run.checkpoint()["trainer"]["models"]
        )


def assert_equal_weights(left, right):
    left, right = left["state"]["weights"], right["state"]["weights"]
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def without_times(metrics):
    return [{k: v for k, v in line.items() if not k.startswith("time")} for line in metrics]


@pytest.mark.integration
def test_each_trajectory_is_trained_at_the_temperature_of_its_sampling(debate, registry):
    class Hot(DebateWorker):
        """The proposer's answers alternate between two temperatures."""

        async def rollout(self, task):
            task.sampling = replace(task.sampling, temperature=0.5 + task.run_id % 2)
            return await super().rollout(task)

    registry.register("rollout_worker", "hot", Hot)
    tree = debate()
    tree["rollout_worker"]["type"] = "hot"
    # With one optimizer step a batch, the ratio to the sampler is 1 wherever both agree.
    for line in plugrl.train(tree).metrics[1:]:
        for name in ("proposer", "critic"):
            assert abs(line[f"train/{name}/kl_to_sampler"]) < 1e-7
