"""What a trainer makes of rollouts, its options and its sizes must have an effect."""

import copy

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer


@pytest.fixture
def tree(config, registry):
    """The configuration with which the conformance kit trains a trainer, with other options."""

    def make(name, algorithm):
        sections = copy.deepcopy(dict(getattr(registry.get("trainer", name), "conformance", {})))
        return config(name, **{**sections, "trainer": {"algorithm": algorithm}})

    return make


@pytest.mark.parametrize(
    ("trainer", "algorithm", "said"),
    [
        ("self_hosted_grpo", {"loss": "dpo"},
         "loss.*dpo reads ref_log_probs and preferred .*self_hosted_grpo does not add"),
        ("self_hosted_grpo", {"loss": "reverse_kl"}, "reverse_kl reads teacher_log_probs"),
        ("self_hosted_grpo", {"advantage": "opd"}, "advantage.*opd reads teacher_log_probs"),
        ("self_hosted_grpo", {"loss": "cross_entropy"}, "cross_entropy does not read advantages"),
        ("self_hosted_opd", {"advantage": "grpo"},
         "advantage.*grpo does not read teacher_log_probs, which trainer self_hosted_opd learns"),
        ("self_hosted_opd", {"loss": "cross_entropy"}, "does not read teacher_log_probs"),
        ("self_hosted_dpo", {"loss": "clipped"}, "clipped reads advantages and old_log_probs"),
        ("reward_model", {"loss": "ipo"}, "ipo reads ref_log_probs"),
        ("self_hosted_cross_entropy", {"loss": "importance_sampling"}, "reads advantages"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_the_run(
    tree, tmp_path, trainer, algorithm, said
):
    with pytest.raises(ConfigError, match=said):
        prepare(tree(trainer, algorithm))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("trainer", "algorithm"),
    [
        ("self_hosted_opd", {"loss": "reverse_kl"}),
        ("self_hosted_opd", {"loss": "reverse_kl", "advantage": "grpo"}),
        ("self_hosted_opd", {"loss": "clipped"}),
        ("self_hosted_dpo", {"loss": "kto"}),
    ],
)
def test_what_goes_together_is_not(tree, trainer, algorithm):
    prepare(tree(trainer, algorithm))


def test_what_says_nothing_is_not_checked(tree, registry):
    class Own(SelfHostedGrpoTrainer):
        """Adds what it wants."""

        def _prepare_batch(self, batch):
            return super()._prepare_batch(batch)

    def plain(logp, batch, config):
        return -logp, {}

    registry.register("trainer", "own", Own)
    registry.register("loss", "plain", plain)
    prepare(tree("own", {"loss": "reverse_kl"}))
    prepare(tree("self_hosted_grpo", {"loss": "plain"}))


@pytest.mark.parametrize("trainer", ["self_hosted_opd", "self_hosted_dpo", "reward_model"])
def test_groups_are_not_dropped_by_rewards_that_nothing_learns_from(tree, trainer):
    made = tree(trainer, {})
    made["trajectory_pool"] = {"drop_equal_groups": True}
    with pytest.raises(ConfigError, match=r"trajectory_pool\.drop_equal_groups.*no rewards"):
        prepare(made)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"norm_length": 7}, "norm_length=7 has no effect: aggregation is token-mean"),
        ({"kl": {"model": "x"}},
         "kl.model=x has no effect: kl.reward.coefficient and kl.loss.coefficient are 0"),
        ({"kl": {"reward": {"kind": "mse"}}}, "kl.reward.kind=mse has no effect: coefficient is 0"),
        ({"kl": {"loss": {"kind": "abs"}}}, "kl.loss.kind=abs has no effect: coefficient is 0"),
        ({"kl": {"model": "reference", "reward": {"coefficient": 0.1, "target": 2.0}}},
         "kl.reward.target=2 has no effect: controller is fixed"),
        ({"value": {"coefficient": 2.0}},
         "value.coefficient=2 has no effect: no advantage or loss reads values of states"),
        ({"sampler_correction": {"cap": 3.0}},
         "sampler_correction.cap=3 has no effect: level is none"),
        ({"overlong": {"penalty": 2.0}}, "overlong.penalty=2 has no effect: buffer is 0"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_a_warning(tree, caplog, algorithm, said):
    made = tree("self_hosted_grpo", algorithm)
    made["models"]["reference"] = {"source": made["models"]["policy"]["source"]}
    prepare(made)
    assert [record.getMessage() for record in caplog.records] == [f"trainer.algorithm.{said}"]


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"norm_length": 7, "aggregation": "seq-mean-token-sum-norm"},
        {"kl": {"model": "other", "loss": {"coefficient": 0.1, "kind": "abs"}}},
        {"overlong": {"penalty": 2.0, "buffer": 1, "length": 3}},
        {"advantage": "gae", "value": {"coefficient": 2.0}},
    ],
)
def test_what_changes_something_is_not(tree, caplog, algorithm):
    made = tree("self_hosted_grpo", algorithm)
    made["models"]["other"] = {"source": made["models"]["policy"]["source"]}
    made["models"]["policy"]["train"]["value_head"] = "advantage" in algorithm
    prepare(made)
    assert caplog.records == []


@pytest.mark.parametrize("advantage", ["grpo", "dr_grpo", "rloo", "turn_grpo", "reinforce_pp"])
def test_one_attempt_cannot_be_compared(tree, caplog, advantage):
    made = tree("self_hosted_grpo", {"advantage": advantage})
    made["data"]["rollout_repeat_n"] = 1
    prepare(made)
    said = [record.getMessage() for record in caplog.records]
    compares = advantage != "reinforce_pp"
    assert [f"advantage {advantage} compares attempts" in text for text in said] == [
        True
    ] * compares
    caplog.clear()
    prepare(tree("self_hosted_cross_entropy", {}) | {"data": made["data"]})
    assert caplog.records == []


def test_a_value_head_that_nothing_reads_is_a_warning(tree, caplog):
    made = tree("self_hosted_grpo", {})
    made["models"]["policy"]["train"]["value_head"] = True
    prepare(made)
    (record,) = caplog.records
    assert "models.policy.train.value_head=true has no effect" in record.getMessage()


@pytest.mark.parametrize("trainer", ["self_hosted_grpo", "remote_api_grpo"])
def test_more_minibatches_than_sequences_are_refused(tree, trainer):
    prepare(tree(trainer, {"minibatches": 8}))
    with pytest.raises(ConfigError, match=r"minibatches.*is 9, and a step has 8 sequences"):
        prepare(tree(trainer, {"minibatches": 9}))


@pytest.mark.parametrize("trainer", ["remote_api_grpo", "remote_api_opd"])
def test_a_named_loss_without_advantages_is_refused(tree, trainer):
    with pytest.raises(ConfigError, match=f"cross_entropy does not read advantages.*{trainer}"):
        prepare(tree(trainer, {"loss_fn": "cross_entropy"}))


def test_a_reference_of_another_shape_cannot_take_the_weights(tree):
    made = tree("self_hosted_dpo", {"reference_weights": "policy"})
    with pytest.raises(
        ConfigError, match=r"reference_weights.*source\.config\.model_type: 'qwen3'"
    ):
        prepare(made)
    made["models"]["reference"]["source"] = made["models"]["policy"]["source"]
    prepare(made)


@pytest.mark.parametrize("limit", [0, -3])
def test_no_problem_at_all_is_no_limit(tree, limit):
    made = tree("self_hosted_grpo", {})
    made["validate"]["data"]["limit"] = limit
    with pytest.raises(ConfigError, match=r"validate\.data\.limit.*at least 1"):
        prepare(made)
