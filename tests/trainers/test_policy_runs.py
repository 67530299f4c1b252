"""Whole runs with penalties, terms, corrections and a value head."""

import copy
import shutil

import pytest
import torch

import plugrl
from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.experiment import prepare, resume
from plugrl.core.text.self_hosted import SelfHostedTrainer
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer


@pytest.fixture(scope="module")
def shared():
    """The runs of this file's tests by their options: equal ones are made once."""
    return {}


@pytest.fixture
def run(config, tmp_path_factory, shared):
    """Trains GRPO with options of the algorithm; gives the run and the trained weights."""

    def make(algorithm=None, /, **options):
        key = repr((algorithm, options))
        if key not in shared:
            tree = tree_of(config, algorithm, **options)
            tree["settings"]["runs_folder"] = str(tmp_path_factory.mktemp("runs"))
            done = plugrl.train(tree)
            weights = done.checkpoint()["trainer"]["models"]["policy"]["state"]["weights"]
            shared[key] = done, weights
        return shared[key]

    return make


def tree_of(config, algorithm=None, /, seed=None, value_head=False, **sections):
    tree = config(**{"validate": {"enabled": False}, **sections})
    reference = copy.deepcopy(tree["models"]["policy"]["source"])
    # Weights so large that models differ.
    reference["config"]["initializer_range"] = 0.5
    tree["models"]["policy"]["source"] = copy.deepcopy(reference)
    if seed is not None:
        tree["models"]["reference"] = {"source": {**reference, "seed": seed}}
    tree["models"]["policy"]["train"]["value_head"] = value_head
    tree["trainer"]["algorithm"] = algorithm or {}
    return tree


#: One step, for what the first step shows.
ONE = {"total_train_steps": 1}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def lines(done):
    return [line for line in done.metrics if "train/loss" in line]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["kl", pytest.param("low_var_kl", marks=pytest.mark.slow)])
def test_a_divergence_from_oneself_is_zero_and_from_another_moves_the_weights(run, kind):
    algorithm = {"kl": {"loss": {"coefficient": 0.5, "kind": kind}}}
    itself, alone = run(algorithm, seed=0, trainer=ONE)
    first = lines(itself)[0]
    assert first["train/kl"] == pytest.approx(0.0, abs=1e-5)
    one, moved = run(algorithm, seed=1, trainer=ONE)
    assert abs(lines(one)[0]["train/kl"]) > 0.01
    assert not same(moved, alone)
    algorithm = {"kl": {"loss": {"coefficient": 0.25, "kind": kind}}}
    assert not same(moved, run(algorithm, seed=1, trainer=ONE)[1])


@pytest.mark.integration
def test_a_penalty_in_rewards_moves_the_weights_by_its_reference(run):
    algorithm = {"kl": {"reward": {"coefficient": 0.5}}}
    itself, alone = run(algorithm, seed=0, trainer=ONE)
    first = lines(itself)[0]
    for name in ("kl_reward", "kl_sequence"):
        assert first[f"train/{name}"] == pytest.approx(0.0, abs=1e-5)
    assert first["train/kl_coefficient"] == 0.5
    done, moved = run(algorithm, seed=1, trainer=ONE)
    assert abs(lines(done)[0]["train/kl_sequence"]) > 0.01
    assert not same(moved, alone)
    algorithm = {"kl": {"reward": {"coefficient": 0.25}}}
    assert not same(moved, run(algorithm, seed=1, trainer=ONE)[1])


@pytest.mark.integration
def test_an_entropy_bonus_moves_the_weights(run):
    done, moved = run({"entropy_coefficient": 0.3})
    # Of three tokens: the two letters and the end.
    assert 0 < lines(done)[0]["train/entropy"] < 1.11
    assert not same(moved, run()[1])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("level", "sampling"),
    [
        pytest.param("token", {}, marks=pytest.mark.slow),
        ("sequence", {}),
        pytest.param("token", {"temperature": 0.6, "top_p": 0.7}, marks=pytest.mark.slow),
        pytest.param("sequence", {"temperature": 0.6, "top_p": 0.7}, marks=pytest.mark.integration),
    ],
    ids=str,
)
def test_equal_weights_have_the_ratio_one_whatever_the_sampling(run, level, sampling):
    algorithm = {"sampler_correction": {"level": level, "mode": "mask"}}
    worker = {"max_response_length": 3, "evaluator": "exact_match", **sampling}
    done, corrected = run(algorithm, rollout_worker=worker)
    for line in lines(done):
        for name in ("sampler_ratio", "sampler_ratio_min", "sampler_ratio_max"):
            assert line[f"train/{name}"] == pytest.approx(1.0, abs=1e-4)
        assert line["train/sampler_outside"] == 0
        assert abs(line["train/sampler_kl"]) < 1e-6
    plain = run(rollout_worker=worker)[1]
    for name, value in plain.items():
        torch.testing.assert_close(corrected[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.integration
def test_a_sampler_that_is_another_policy_is_corrected(run, registry):
    from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

    class Wrong(SingleTurnRolloutWorker):
        async def rollout(self, task):
            trajectory = await super().rollout(task)
            trajectory.logprobs = [x - 0.5 if x else 0.0 for x in trajectory.logprobs]
            return trajectory

    registry.register("rollout_worker", "wrong", Wrong)
    worker = {"type": "wrong", "max_response_length": 3, "evaluator": "exact_match"}
    done, _ = run({"sampler_correction": {"level": "token", "cap": 1.5}}, rollout_worker=worker)
    line = lines(done)[0]
    assert line["train/sampler_ratio"] == pytest.approx(1.6487, rel=1e-3)
    assert line["train/sampler_outside"] == 1.0
    # The ratio of the loss is to the trainer's own weights now.
    assert line["train/kl_to_sampler"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.integration
def test_a_correction_without_log_probabilities_of_sampling_is_refused(run, registry):
    from plugrl.scenarios.rollout_workers.single_turn import SingleTurnRolloutWorker

    class Forgetful(SingleTurnRolloutWorker):
        async def rollout(self, task):
            trajectory = await super().rollout(task)
            trajectory.logprobs = None
            return trajectory

    registry.register("rollout_worker", "forgetful", Forgetful)
    worker = {"type": "forgetful", "max_response_length": 3, "evaluator": "exact_match"}
    with pytest.raises(ContractError, match="sampler_correction needs .* without logprobs"):
        run({"sampler_correction": {"level": "token"}}, rollout_worker=worker)


GAE = {"advantage": {"type": "gae", "lam": 0.9}, "value": {"coefficient": 1.0}}


@pytest.mark.integration
def test_gae_trains_the_value_head(run):
    done, _ = run(
        GAE,
        value_head=True,
        trainer={"type": "self_hosted_grpo", "total_train_steps": 4, "algorithm": GAE},
    )
    assert {"train/value_loss", "train/value_clip_fraction"} <= lines(done)[0].keys()
    head = done.checkpoint()["trainer"]["models"]["policy"]["state"]["value_head"]
    assert all(value.abs().max() > 0 for value in head.values())


@pytest.mark.integration
def test_gae_without_a_value_head_is_refused_before_the_run(run):
    with pytest.raises(ConfigError, match=r"gae needs .*models\.policy\.train\.value_head=true"):
        run(GAE)


@pytest.mark.integration
def test_a_reference_that_is_no_model_is_refused_before_the_run(run):
    with pytest.raises(ConfigError, match=r"kl\.model.*no model 'reference' in models.*policy"):
        run({"kl": {"loss": {"coefficient": 0.1}}})


@pytest.mark.integration
def test_an_adaptive_coefficient_cannot_turn_negative(config):
    """8 sequences at an error of -0.2 multiply it by 1 - 1.6 / horizon."""
    reward = {"coefficient": 0.3, "controller": "adaptive", "horizon": 1}
    with pytest.raises(ConfigError, match=r"kl\.reward\.horizon.*8 sequences.*at least 2"):
        prepare(tree_of(config, {"kl": {"reward": reward}}, seed=1))
    prepare(tree_of(config, {"kl": {"reward": {**reward, "horizon": 2}}}, seed=1))


@pytest.mark.integration
def test_a_policy_is_no_reference_of_itself(run):
    with pytest.raises(ConfigError, match=r"kl\.model.*model 'policy' is trained"):
        run({"kl": {"model": "policy", "loss": {"coefficient": 0.1}}})


@pytest.mark.integration
def test_a_reference_with_another_tokenizer_is_refused(config):
    tree = tree_of(config, {"kl": {"loss": {"coefficient": 0.1}}}, seed=1)
    tree["models"]["reference"]["source"]["tokenizer"] = {"characters": "ba"}
    with pytest.raises(RunError, match="both must have the same tokenizer"):
        plugrl.train(tree)


@pytest.mark.integration
def test_long_answers_are_punished_or_filtered(run):
    # Answers have 1 to 3 tokens; the last two of them cost up to 0.5.
    done, punished = run({"overlong": {"buffer": 2, "penalty": 0.5}})
    assert -0.5 <= lines(done)[0]["train/overlong_penalty"] < 0
    assert not same(punished, run()[1])
    filtered, _ = run({"overlong": {"filter": True}})
    line = lines(filtered)[0]
    assert line["train/overlong_filtered"] == pytest.approx(line["rollout/truncated"])


@pytest.mark.integration
@pytest.mark.parametrize(
    ("algorithm", "value_head"),
    [
        (
            {"kl": {"reward": {"coefficient": 0.3, "controller": "adaptive", "horizon": 40,
                               "target": 0.01}}},
            False,
        ),
        (GAE, True),
    ],
    ids=["adaptive", "gae"],
)  # fmt: skip
def test_what_changes_on_the_way_is_in_checkpoints(config, copied, algorithm, value_head):
    tree = tree_of(config, algorithm, seed=1, value_head=value_head)
    tree["trainer"]["total_train_steps"] = 4
    straight = plugrl.train(tree)
    folder = copied(straight.folder)
    for step in (3, 4):
        shutil.rmtree(folder / "checkpoints" / f"step-{step:08d}")
    resumed = resume(folder)
    assert "resumed from step-00000002" in (folder / "log.txt").read_text()
    for one, other in zip(resumed.metrics, straight.metrics, strict=True):
        timeless = [{k: v for k, v in m.items() if not k.startswith("time")} for m in (one, other)]
        assert timeless[0] == timeless[1]
    if not value_head:
        coefficients = [line["train/kl_coefficient"] for line in lines(straight)]
        assert len(set(coefficients)) == 4


class Careless(SelfHostedTrainer):
    def _prepare_batch(self, batch):
        batch.metadata["advantages"] = batch.metadata["rewards"]
        return batch, {}


@pytest.mark.integration
def test_a_trainer_that_passes_a_penalty_over_is_refused(config, registry):
    registry.register("trainer", "careless", Careless)
    tree = tree_of(config, {"overlong": {"buffer": 2}})
    tree["trainer"]["type"] = "careless"
    with pytest.raises(
        ContractError, match=r"overlong\.buffer .*Careless\._prepare_batch.*_compute_advantage"
    ):
        plugrl.train(tree)


@pytest.mark.integration
def test_penalties_need_no_run_in_a_unit_test():
    from plugrl.core.text.batch import Batch
    from plugrl.core.text.trajectory import Trajectory

    trainer = SelfHostedGrpoTrainer(
        {
            "algorithm": {
                "advantage": {"type": "dr_grpo"},
                "overlong": {"buffer": 2, "length": 2},
                "kl": {"reward": {"coefficient": 0.5}},
            }
        }
    )
    rows = [([0, 1, 1], 1.0), ([0, 1, 0], 1.0)]
    batch = Batch.from_trajectories(
        [
            Trajectory([2, 3, 4], mask, reward=reward, run_id=i, logprobs=[0.0, -1.0, -1.0])
            for i, (mask, reward) in enumerate(rows)
        ]
    )
    batch.values["ref_log_probs"] = torch.tensor([[0.0, -2.0, -1.0], [0.0, -1.0, 0.0]])
    prepared, _ = trainer._prepare_batch(batch)
    # Rewards 1 - 1 (two of two tokens) - 0.5 * 1 and 1 - 0.5: mean 0.
    assert prepared.metadata["advantages"].tolist() == pytest.approx([-0.5, 0.5])


VARIANTS = [
    {},
    {"advantage": "dr_grpo", "aggregation": "seq-mean-token-sum-norm", "norm_length": 2},
    {"advantage": "rloo", "loss": "importance_sampling"},
    {"advantage": "reinforce_pp", "entropy_coefficient": 0.01},
    {"advantage": "gae"},
    {"advantage": "turn_grpo", "sampler_correction": {"level": "sequence", "mode": "mask"}},
    {"loss": "gspo", "minibatches": 2},
    {"loss": "cispo"},
]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", VARIANTS, ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_variant_learns(config, algorithm, seed):
    """The first letter of two is the answer; at first it is given in a quarter of the cases."""
    tree = config(validate={"enabled": False}, seed=seed)
    tree["data"] |= {"batch_size": 4, "rollout_repeat_n": 8}
    tree["rollout_worker"]["max_response_length"] = 2
    value_head = algorithm.get("advantage") == "gae"
    tree["models"]["policy"]["train"] |= {"weight_decay": 0.0, "value_head": value_head}
    tree["trainer"] |= {"total_train_steps": 60, "algorithm": algorithm}
    rewards = [m["rollout/reward"] for m in plugrl.train(tree).metrics if "rollout/reward" in m]
    assert sum(rewards[:3]) / 3 < 0.5
    assert sum(rewards[-10:]) / 10 > 0.65


@pytest.mark.integration
def test_a_step_with_terms_is_repeated_exactly(config):
    from plugrl.core.replay import replay

    algorithm = {
        "advantage": "gae",
        "entropy_coefficient": 0.1,
        "kl": {"loss": {"coefficient": 0.2}, "reward": {"coefficient": 0.1}},
        "sampler_correction": {"level": "token"},
    }
    tree = tree_of(config, algorithm, seed=1, value_head=True)
    tree["runtime_monitor"] = {"dump_steps": [2]}
    (repeated,) = replay(plugrl.train(tree).folder, 2)
    assert repeated.equal
    assert {"entropy", "kl", "value_loss"} <= repeated.metrics.keys()


@pytest.mark.integration
def test_the_largest_step_is_tried_with_its_terms(config):
    from plugrl.core.experiment import build_trainer, prepare
    from plugrl.core.null_run import NullRun

    algorithm = {
        "advantage": "gae",
        "kl": {"loss": {"coefficient": 0.2}, "reward": {"coefficient": 0.1}},
        "overlong": {"buffer": 1},
    }
    experiment = prepare(tree_of(config, algorithm, seed=1, value_head=True))
    run = NullRun("a step that is tried")
    trainer = build_trainer(experiment.validated, experiment.registry, run)
    assert trainer.dry_run()["rows"] == 8
