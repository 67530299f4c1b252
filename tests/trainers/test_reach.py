"""What a trainer makes of rollouts must be what its loss and advantage read."""

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
