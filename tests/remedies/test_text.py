"""Every remedy that messages about text rollouts recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import Row, row, tiered, tried, untried

_READY = "trajectory_pool.check_batch_ready_function"
_SIZE = "trajectory_pool.batch_size"
_PHASES, _JOBS = "red_team_quickstart_grpo", "arithmetic_claims_ei"
_RED = "trainer.phases.2"
ROWS: list[Row] = [
    row(
        "weight.sync_mode=fully-async",
        "fully-async trains",
        f"{_READY}=batch_size_reached {_SIZE}=8",
    ),
    row(f"{_READY}=batch_size_reached {_SIZE}=12", "use a multiple of 8", f"{_SIZE}=16"),
    row(f"{_READY}=batch_size_reached {_SIZE}=12", "set weight.staleness_threshold=1"),
    row(
        "trajectory_pool.key_list=[run_id]",
        "write group_id",
        "-trajectory_pool.key_list trajectory_pool.key_list=[group_id]",
    ),
    row(
        "trajectory_pool.group_size=9",
        "",
        "-trajectory_pool.group_size data.rollout_repeat_n=9 trajectory_pool.group_size=9",
    ),
    row("trainer.algorithm.minibatches=100", "write at most", "trainer.algorithm.minibatches=8"),
    row(
        "rollout_worker.max_response_length=64", "lower it", "rollout_worker.max_response_length=3"
    ),
    row("rollout_worker.model=polcy", "did you mean policy", "rollout_worker.model=policy"),
    row("rollout_worker.evaluator=null", "is missing", "rollout_worker.evaluator=exact_match"),
    row(
        "rollout_worker.evaluator=exact_mach",
        "did you mean",
        "rollout_worker.evaluator=exact_match",
    ),
    row(
        "models.policy.train=null",
        "such as models.policy.train: local",
        "models.policy.train=local",
    ),
    row(
        "models.reference.adapter={r: 2}",
        "give it a train service",
        "models.reference.train=local rollout_worker.model=reference",
        base="frozen",
        left="trains one model",
    ),
    row(
        "models.reference.adapter={r: 2}", "or drop it", "-models.reference.adapter", base="frozen"
    ),
    row(
        "trajectory_pool.drop_equal_groups=true trainer.type=self_hosted_cross_entropy"
        " rollout_worker.type=demonstration data.split=demonstrations data.rollout_repeat_n=1"
        " data.batch_size=4",
        "write false",
        "trajectory_pool.drop_equal_groups=false",
    ),
    row("scenario=null validate.enabled=false", "or a scenario", "scenario=arithmetic"),
    row(
        "scenario=null",
        "set validate.enabled=false",
        "validate.enabled=false",
        left="data.data_files",
    ),
    row("trainer.algorithm.advantage=gae", "needs values of states"),
    row(
        "trainer.algorithm.kl.loss.coefficient=0.1",
        "add it, without a train service",
        "models.reference.source.config={model_type: qwen3, hidden_size: 8, intermediate_size: 8,"
        " num_hidden_layers: 1, num_attention_heads: 1, num_key_value_heads: 1, head_dim: 8,"
        " max_position_embeddings: 32} models.reference.source.tokenizer.characters=0123456789+=",
    ),
    row(
        "rollout_worker.type=protocol rollout_worker.evaluator=exact_match",
        "leave it out",
        "rollout_worker.evaluator=null",
        left="label",
    ),
    row(
        "trainer.algorithm.advantage=gae",
        "choose another, such as grpo",
        "trainer.algorithm.advantage=grpo",
        base="remote",
    ),
    row(
        "algorithm.loss_fn=cross_entropy",
        "take another, such as importance_sampling",
        "algorithm.loss_fn=importance_sampling",
        base="remote",
    ),
    row("algorithm.loss_fn=pp0", "did you mean", "algorithm.loss_fn=ppo", base="remote"),
    row(
        "algorithm.loss_fn=ppo algorithm.loss_fn_config={clip_low_threshold: 2.0}",
        "write 0 <=",
        "algorithm.loss_fn_config.clip_low_threshold=0.8",
        base="remote",
    ),
    row("rollout_worker.temperature=0.5", "write 1", base="remote"),
    row(
        "trainer.type=self_hosted_grpo",
        "choose another trainer.type",
        "trainer.type=remote_api_grpo",
        base="remote",
    ),
    row(
        "trainer.type=self_hosted_grpo",
        "or another train service",
        "models.policy.train=local",
        base="remote",
    ),
    row(
        "models.policy.fine_tune=local models.policy.train=null",
        "write models.policy.train",
        "-models.policy.fine_tune models.policy.train=local",
    ),
    row(
        "rollout_worker.type=protocol rollout_worker.agents={nobody: {frozen: true}}"
        " rollout_worker.evaluator=null",
        "has no such agent",
        "-rollout_worker.agents",
        left="label",
    ),
    row(
        f"{_RED}.red_team.scorer=null",
        "names no scorer",
        f"{_RED}.red_team.scorer={{type: lexicon, words_key: word}}",
        base=_PHASES,
    ),
    row(
        f"{_RED}.red_team.tree_width=1000 {_RED}.red_team.tree_depth=8",
        "lower",
        f"{_RED}.red_team.tree_width=2",
        base=_PHASES,
    ),
    row(
        f"{_RED}.models.tester.train=null",
        "the tester is not trained",
        f"{_RED}.models.tester.train=local",
        base=_PHASES,
    ),
    row(
        "scenario=null",
        "such as scenario: red_team",
        "scenario=red_team",
        base=_PHASES,
        left="scenario",
    ),
    row(
        "validate.enabled=false",
        "write text_rl.test_scheme=none",
        "trainer.phases.1.text_rl.test_scheme=none",
        base=_JOBS,
        left="stop_at",
    ),
    row("validate.enabled=false", "or validate.enabled=true", "validate.enabled=true", base=_JOBS),
    row(
        "trainer.phases.1.models.policy.fine_tune=null",
        "such as models.policy.fine_tune: local",
        "trainer.phases.1.models.policy.fine_tune=local",
        base=_JOBS,
    ),
    row(
        "trainer.phases.1.models.policy.fine_tune=null trainer.phases.1.models.policy.train=local",
        "write models.policy.fine_tune instead",
        "trainer.phases.1.models.policy.train=null trainer.phases.1.models.policy.fine_tune=local",
        base=_JOBS,
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Texts that name no key, value or command.
REASONS = {
    "core/text/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS}
    assert untried("core/text", says, REASONS) == []
