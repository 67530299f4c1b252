"""Remote-API trainers: what they send, what equals self-hosted training, and what is refused."""

import dataclasses
import math
import re

import kills
import pytest
import torch
import yaml

import plugrl
from plugrl import RemoteApiTrainer, Trajectory
from plugrl.core.errors import ConfigError, ContractError, NonFiniteError, UsageError
from plugrl.core.experiment import load_run, prepare
from plugrl.core.replay import replay
from plugrl.core.text.remote.service import completed_future
from plugrl.plugins.transformers.in_process import InProcessTrainService
from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker
from plugrl.testing.comparison import assert_equal_states, comparable_metrics
from plugrl.trainers.remote_api_grpo import RemoteApiGrpoTrainer
from plugrl.trainers.remote_api_opd import RemoteApiOpdTrainer

REMOTE = {"models": {"policy": {"train": {"type": "in_process"}}}}
TEACHER = RemoteApiOpdTrainer.conformance["models"]["teacher"]


class Graded(SingleTurnRolloutWorker):
    """Every answer has a reward of its own."""

    async def rollout(self, task):
        trajectory = await super().rollout(task)
        trajectory.reward = sum(trajectory.tokens) % 5 / 4
        return trajectory


class Failing(Graded):
    """One attempt at each prompt fails."""

    async def rollout(self, task):
        trajectory = await super().rollout(task)
        if task.run_id == 2:
            trajectory.valid, trajectory.failure = False, "made up"
        return trajectory


@pytest.fixture
def tree(config, registry):
    registry.register("rollout_worker", "graded", Graded)
    registry.register("rollout_worker", "failing", Failing)

    def make(trainer, /, worker="failing", teacher=False, train=None, **algorithm):
        remote = trainer.startswith("remote")
        sections = {
            "trainer": {"total_train_steps": 2, "algorithm": algorithm},
            "rollout_worker": {"type": worker},
            "validate": {"enabled": False},
            "models": {
                "policy": {"train": {"type": "in_process" if remote else "local", **(train or {})}}
            },
        }
        if teacher:
            sections["models"]["teacher"] = TEACHER
        return config(trainer, **sections)

    return make


def weights(run):
    return run.checkpoint()["trainer"]["models"]["policy"]["state"]["weights"]


def assert_alike(remote, own):
    """The same rollouts, advantages, losses, gradients and weights."""
    assert len(remote.metrics) == len(own.metrics) == 3
    for one, other in zip(remote.metrics, own.metrics, strict=True):
        shared = {k for k in one.keys() & other.keys() if not k.startswith("time")}
        if one.get("rollout/invalid"):
            # A batch holds the failed rows too, with an advantage of 0.
            shared -= {"train/advantage_abs", "train/zero_advantage"}
        for key in shared:
            assert one[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key
    assert {"train/loss", "train/grad_norm", "rollout/reward"} <= shared
    theirs = weights(own)
    for key, weight in weights(remote).items():
        torch.testing.assert_close(weight, theirs[key], rtol=1e-4, atol=2e-6)


PPO = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3}
CLIPPED = {"type": "clipped", "clip_ratio_low": 0.1, "clip_ratio_high": 0.3}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("remote", "own", "shared"),
    [
        ({"loss_fn": "ppo", "loss_fn_config": PPO}, {"loss": CLIPPED}, {"epochs": 3}),
        pytest.param(
            {"loss_fn": "importance_sampling"}, {"loss": "importance_sampling"},
            {"aggregation": "seq-mean-token-sum"}, marks=pytest.mark.slow),
        pytest.param(
            {"loss_fn": "cispo"}, {"loss": {"type": "cispo", "clip_ratio_high": 3.0}},
            {"aggregation": "seq-mean-token-mean",
             "advantage": {"type": "grpo", "normalize": False}}, marks=pytest.mark.slow),
        ({}, {"loss": "importance_sampling"},
         {"aggregation": "seq-mean-token-sum-norm", "norm_length": 7, "advantage": "rloo"}),
    ],
)  # fmt: skip
def test_grpo_equals_the_self_hosted_one(tree, remote, own, shared):
    theirs = plugrl.train(tree("remote_api_grpo", **remote, **shared))
    assert_alike(theirs, plugrl.train(tree("self_hosted_grpo", **own, **shared)))


@pytest.mark.integration
def test_passes_and_minibatches_are_those_of_the_self_hosted_one(tree):
    shared = {"worker": "graded", "epochs": 2, "minibatches": 2}
    remote = plugrl.train(tree("remote_api_grpo", loss_fn="ppo", loss_fn_config=PPO, **shared))
    assert_alike(remote, plugrl.train(tree("self_hosted_grpo", loss=CLIPPED, **shared)))
    state = remote.checkpoint()["trainer"]["models"]["policy"]
    # 2 steps x 2 passes x 2 optimizer steps; a version is a training step.
    assert (state["state"]["optimizer_steps"], state["version"]) == (8, 2)


@pytest.mark.integration
@pytest.mark.parametrize(
    "shared",
    [
        pytest.param({}, marks=pytest.mark.integration),
        {"aggregation": "seq-mean-token-mean", "epochs": 2},
    ],
)
def test_cross_entropy_equals_the_self_hosted_one(tree, shared):
    theirs = plugrl.train(tree("remote_api_cross_entropy", **shared))
    assert_alike(theirs, plugrl.train(tree("self_hosted_cross_entropy", **shared)))


@pytest.mark.integration
@pytest.mark.parametrize(
    "advantage",
    [pytest.param({}, marks=pytest.mark.slow), {"coefficient": 0.5, "discount": 0.7}],
)
def test_distillation_equals_the_self_hosted_one(tree, advantage):
    shared = {"advantage": {"type": "opd", **advantage}}
    theirs = plugrl.train(tree("remote_api_opd", teacher=True, **shared))
    own = tree("self_hosted_opd", teacher=True, loss="importance_sampling", **shared)
    assert_alike(theirs, plugrl.train(own))


@pytest.mark.integration
def test_the_gradient_of_distillation_depends_on_the_teacher(tree):
    one, other = (tree("remote_api_opd", teacher=True) for _ in range(2))
    source = {**TEACHER["source"], "seed": 8}
    other["models"]["teacher"] = {"source": source}
    first, second = plugrl.train(one), plugrl.train(other)
    assert (
        first.metrics[1]["rollout/response_length"]
        == (second.metrics[1]["rollout/response_length"])
    )
    assert any(not torch.equal(w, weights(second)[k]) for k, w in weights(first).items())


class Equal(Graded):
    """Every answer is as good as any other from the second step on."""

    async def rollout(self, task):
        trajectory = await super().rollout(task)
        if trajectory.versions[-1] > 0:
            trajectory.reward = 1.0
        return trajectory


@pytest.mark.integration
def test_a_step_without_any_signal_is_counted_and_syncs_nothing(tree, registry, monkeypatch):
    registry.register("rollout_worker", "equal", Equal)
    saved = []
    plain = InProcessTrainService.save_weights_for_sampler
    monkeypatch.setattr(
        InProcessTrainService,
        "save_weights_for_sampler",
        lambda self, name: (saved.append(name), plain(self, name))[1],
    )
    run = plugrl.train(tree("remote_api_grpo", worker="equal"))
    assert [line.get("train/empty_steps") for line in run.metrics] == [None, 0.0, 1.0]
    assert run.metrics[2]["train/without_signal"] == 1.0
    assert "train/loss" not in run.metrics[2]
    state = run.checkpoint()["trainer"]["models"]["policy"]
    assert (state["version"], state["state"]["optimizer_steps"]) == (1, 1)
    assert saved == ["version-0", "version-1"]


@pytest.mark.integration
def test_trajectories_without_logprobs_get_those_of_the_weights(tree, registry):
    class Forgetful(Graded):
        async def rollout(self, task):
            trajectory = await super().rollout(task)
            trajectory.logprobs = None
            return trajectory

    registry.register("rollout_worker", "forgetful", Forgetful)
    remote = plugrl.train(tree("remote_api_grpo", worker="forgetful"))
    own = tree("self_hosted_grpo", worker="forgetful", loss="importance_sampling")
    assert_alike(remote, plugrl.train(own))


def faults(tree):
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    return str(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"loss_fn": "dro"}, r"loss_fn.*has no loss 'dro'; it has: cross_entropy, .*cispo.*"
                             r"trainer\.type: self_hosted_grpo"),
        ({"loss_fn": "importance_samplin"}, r"did you mean importance_sampling\?"),
        ({"loss_fn": "ppo", "loss_fn_config": {"clip_hi_threshold": 1.3}},
         r"no option 'clip_hi_threshold'; it has: .*did you mean clip_high_threshold\?"),
        ({"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 1.5}},
         r"loss_fn_config.*within the thresholds, which are 1\.5 and 1\.2"),
        ({"loss_fn": "cispo", "loss_fn_config": {"clip_high_threshold": 0.5}},
         r"loss_fn_config.*within the thresholds, which are 0 and 0\.5"),
        ({"loss": "clipped"}, r"algorithm\.loss.*write algorithm\.loss_fn.*self_hosted_grpo"),
        ({"entropy_coefficient": 0.01}, r"no named loss has an entropy term"),
        ({"kl": {"loss": {"coefficient": 0.1}}}, r"no named loss has a KL term"),
        ({"sampler_correction": {"level": "token"}}, r"correct for the sampler already"),
        ({"advantage": "gae"}, r"needs a value head, which no named loss trains"),
        ({"aggregation": "mean"}, r"aggregation.*token-mean"),
        ({"minibatches": 0}, r"minibatches .*must be at least 1"),
    ],
)  # fmt: skip
def test_what_the_service_cannot_do_is_a_fault_of_the_configuration(tree, algorithm, message):
    assert re.search(message, faults(tree("remote_api_grpo", **algorithm)))


class Free(RemoteApiTrainer):
    """Takes free keys, as trainers of users do."""

    def _prepare_trajectories(self, trajectories, metrics):
        return self._compute_advantage(trajectories)


@pytest.mark.integration
def test_free_keys_do_not_hide_what_no_named_loss_can_do(tree, registry):
    registry.register("trainer", "remote_free", Free)
    assert prepare(tree("remote_free", my_weight=2.0))
    assert "write algorithm.loss_fn" in faults(tree("remote_free", loss="clipped"))


@pytest.mark.integration
def test_services_and_trainers_of_two_sorts_do_not_go_together(tree):
    own = faults(tree("self_hosted_grpo", train={"type": "in_process"}))
    assert "models.policy.train" in own
    assert "serves remote-API trainers, such as remote_api_grpo" in own
    remote = faults(tree("remote_api_grpo", train={"type": "local"}))
    assert "serves self-hosted trainers, such as self_hosted_grpo" in remote


@pytest.mark.integration
def test_another_temperature_of_sampling_is_refused(tree):
    warm = tree("remote_api_grpo")
    warm["rollout_worker"]["temperature"] = 0.7
    assert "rollout_worker.temperature" in faults(warm)


@pytest.mark.integration
@pytest.mark.parametrize("written", ["{}", "{temperature: 0.7}"])
def test_so_is_that_of_an_agents_file(tree, tmp_path, written):
    """The file counts before ``rollout_worker.temperature``, and its remedy helps."""
    file = tmp_path / "agent.yaml"
    file.write_text(f"type: agent\nllm_config: {written}\n")
    warm = tree("remote_api_grpo")
    warm["rollout_worker"] |= {"type": "agent", "agent_config": str(file), "temperature": 0.7}
    own = "temperature" in written
    (line,) = [each for each in faults(warm).splitlines() if "named losses" in each]
    if own:
        assert f"write llm_config: {{temperature: 1}} in {file}" in line
        file.write_text("type: agent\nllm_config: {temperature: 1}\n")
    else:
        assert "rollout_worker.temperature" in line
        warm["rollout_worker"]["temperature"] = 1
    assert prepare(warm)


@pytest.mark.integration
def test_a_teacher_is_a_frozen_entry_of_models(tree):
    assert "no model 'teacher' in models" in faults(tree("remote_api_opd"))
    trained = tree("remote_api_opd", teacher=True)
    trained["models"]["teacher"] = {**TEACHER, "train": {"type": "in_process"}}
    assert "a teacher must be frozen" in faults(trained)


@pytest.mark.integration
def test_wrong_signatures_are_refused_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"write _prepare_trajectories\(self, trajectories, metr"):

        class Short(RemoteApiTrainer):
            def _prepare_trajectories(self, trajectories):
                return trajectories

    with pytest.raises(TypeError, match=r"call it train_step\(self, trajectories\)"):

        class Step(RemoteApiTrainer):
            def train(self, trajectories):
                return {}


@pytest.mark.integration
def test_a_service_is_configured_and_not_set():
    with pytest.raises(UsageError, match=r"models\.policy\.train: in_process"):
        RemoteApiGrpoTrainer({}).set_service_holder(object())


def answers(answer):
    class Mine(RemoteApiTrainer):
        def _prepare_trajectories(self, trajectories, metrics):
            return answer(trajectories, metrics)

    return Mine


def warmed(trajectories, metrics):
    for trajectory in trajectories:
        trajectory.temperature, trajectory.advantage = 0.5, 1.0
    return trajectories


def given(advantage):
    def answer(trajectories, metrics):
        for trajectory in trajectories:
            trajectory["advantage"] = advantage
        return trajectories

    return answer


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda t, m: None, "returned NoneType; `return trajectories`"),
        (lambda t, m: tuple(t), "returned tuple"),
        (lambda t, m: [m], "a list of Trajectory"),
        (lambda t, m: (m.update(name="x"), t)[1], "gave metric 'name' as str"),
        (lambda t, m: t, r"no advantage; write traj\['advantage'\]"),
        (given(math.nan), "an advantage that is not finite"),
        (warmed, "a trajectory of temperature 0.5"),
    ],
)
def test_what_a_trainer_answers_wrongly_is_named(tree, registry, answer, message):
    registry.register("trainer", "remote_mine", answers(answer))
    with pytest.raises(ContractError, match=message):
        plugrl.train(tree("remote_mine"))


@pytest.mark.integration
def test_trainers_get_valid_trajectories_alone_and_may_return_fewer(tree, registry):
    seen = []

    def fewer(trajectories, metrics):
        seen.append([t.valid for t in trajectories])
        metrics["kept"] = torch.tensor(2.0)
        for number, trajectory in enumerate(trajectories):
            trajectory.advantage = number - 0.5
        return trajectories[:2]

    registry.register("trainer", "remote_mine", answers(fewer))
    run = plugrl.train(tree("remote_mine"))
    assert seen == [[True] * 6] * 2
    assert run.metrics[1]["train/kept"] == 2.0
    assert run.metrics[1]["train/without_signal"] == 0.0


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_loss_that_is_not_finite_stops_or_is_left_out(tree, monkeypatch, policy):
    plain = InProcessTrainService.forward_backward

    def broken(self, *arguments):
        answer = plain(self, *arguments).result()
        for parameter in self._local._model.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)
        return completed_future(dataclasses.replace(answer, loss=math.nan))

    monkeypatch.setattr(InProcessTrainService, "forward_backward", broken)
    made = tree("remote_api_grpo")
    made["runtime_monitor"] = {"non_finite": policy}
    if policy == "stop":
        with pytest.raises(NonFiniteError, match="loss is not finite in step 1; the batch is in"):
            plugrl.train(made)
        return
    run = plugrl.train(made)
    assert run.metrics[1]["train/skipped"] == 1.0
    assert run.checkpoint()["trainer"]["models"]["policy"]["version"] == 0
    for weight in weights(run).values():
        assert bool(weight.isfinite().all())


@pytest.mark.integration
def test_a_kept_step_is_repeated(tree):
    made = tree("remote_api_grpo", loss_fn="ppo", worker="graded", minibatches=2)
    made["runtime_monitor"] = {"dump_steps": [2]}
    repeated = replay(plugrl.train(made).folder, 2)
    assert [one.equal for one in repeated] == [True, True]
    assert all(one.metrics["grad_norm"] > 0 for one in repeated)
    assert [one.metrics["non_finite_rows"] for one in repeated] == [0.0, 0.0]


@pytest.mark.integration
def test_a_phase_goes_on_with_the_weights_of_a_self_hosted_one(tree):
    made = tree("remote_api_grpo", worker="graded")
    warm = {
        "name": "warm",
        "models": {"policy": {"train": {"type": "local", "learning_rate": 0.01}}},
        "trainer": {"type": "self_hosted_cross_entropy", "total_train_steps": 1},
    }
    second = {"name": "remote", "trainer": made["trainer"]}
    made["trainer"] = {"type": "sequence", "phases": [warm, second]}
    run = plugrl.train(made)
    assert run.status["state"] == "done"
    assert any("train/empty_steps" in line for line in run.metrics)


MOMENTS = ["after a loss", "before an optimizer step", "in a sync", "with half of a checkpoint"]


@pytest.mark.parametrize(
    ("trainer", "moments"),
    kills.tiers(
        [
            ("remote_api_grpo", ["before an optimizer step", "in a sync"]),
            ("remote_api_opd", ["with half of a checkpoint"]),
        ],
        [(trainer, MOMENTS) for trainer in ("remote_api_grpo", "remote_api_opd")],
    ),
)
def test_killed_and_resumed_it_equals_the_uninterrupted_run(tree, tmp_path, trainer, moments):
    made = tree(trainer, worker="single_turn", teacher=trainer == "remote_api_opd")
    made["trainer"]["total_train_steps"] = 10
    made["settings"] |= {"checkpoint_every": 2, "keep_checkpoints": 3}
    made["data"]["rollout_repeat_n"] = 16
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(made), "utf-8")
    straight = plugrl.train(made)
    assert straight.metrics[-1]["train/empty_steps"] == 0.0
    for name, run in kills.at_moments(recipe, tmp_path, *moments).items():
        got = load_run(run)
        assert comparable_metrics(got) == comparable_metrics(straight), name
        assert_equal_states(got.checkpoint()["trainer"], straight.checkpoint()["trainer"])


@pytest.mark.integration
def test_the_recipe_is_the_quickstart_through_the_interface(tmp_path):
    short = [f"trainer.phases.{i}.trainer.total_train_steps=2" for i in (0, 1)]
    short += [f"settings.runs_folder={tmp_path}", "settings.progress=none"]
    remote, own = plugrl.train("remote_api", short), plugrl.train("quickstart", short)
    assert [line["step"] for line in remote.metrics] == [0, 1, 2, 3, 4, 5]
    for one, other in zip(remote.metrics, own.metrics, strict=True):
        for key in ("train/loss", "train/grad_norm", "rollout/reward", "validation/exact_match"):
            assert (key in one) == (key in other)
            assert one.get(key, 0.0) == pytest.approx(other.get(key, 0.0), rel=1e-3, abs=1e-6), key


@pytest.mark.integration
def test_a_unit_test_needs_neither_run_nor_service():
    made = [
        Trajectory([2, 3], [0, 1], reward=reward, logprobs=[0.0, -1.0], group_id="g", run_id=i)
        for i, reward in enumerate((1.0, 0.0))
    ]
    metrics = {}
    prepared = RemoteApiGrpoTrainer({})._prepare_trajectories(made, metrics)
    # Mean 0.5, sample deviation sqrt(0.5): +-0.5 / 0.7071.
    assert [t["advantage"] for t in prepared] == pytest.approx([0.70711, -0.70711], abs=1e-4)
    assert metrics == pytest.approx({"advantage_abs": 0.70711, "zero_advantage": 0.0}, abs=1e-4)
