"""What trainers, losses and advantages have in common: defaults, bounds, marks and preflights."""

from __future__ import annotations

import dataclasses

import pytest

from plugrl.core.config.check import Checker
from plugrl.core.config.preflight import Preflight
from plugrl.core.config.schemas.describe import describe, describe_component
from plugrl.core.experiment import prepare
from plugrl.core.tensordict.off_policy import OffPolicyRlConfig, ReplayConfig
from plugrl.core.tensordict.sections import RlConfig
from plugrl.core.trainer import Trainer
from plugrl.trainers.a2c import A2cConfig
from plugrl.trainers.advantages.gae import GaeConfig
from plugrl.trainers.advantages.reinforce_pp import ReinforcePpConfig
from plugrl.trainers.advantages.turn_grpo import TurnGrpoConfig
from plugrl.trainers.critics import TwinCriticsConfig
from plugrl.trainers.dqn import DqnConfig
from plugrl.trainers.ei_pure_text import ExpertIterationConfig
from plugrl.trainers.losses.cispo import CispoConfig
from plugrl.trainers.losses.clip_range import ClipRange
from plugrl.trainers.losses.ipo import IpoConfig
from plugrl.trainers.losses.kto import KtoConfig
from plugrl.trainers.losses.reverse_kl import ReverseKlConfig
from plugrl.trainers.malt_pure_text import MaltConfig
from plugrl.trainers.red_team.grpo import HarnessGrpoConfig
from plugrl.trainers.red_team.policy_gradient import PolicyGradientConfig
from plugrl.trainers.red_team.ppo import HarnessPpoConfig
from plugrl.trainers.red_team.preference import PairConfig
from plugrl.trainers.reinforce import ReinforceConfig
from plugrl.trainers.reward_model import BradleyTerryConfig
from plugrl.trainers.rollout_analysis import RolloutAnalysisConfig
from plugrl.trainers.sac import SacConfig
from plugrl.trainers.self_hosted_dpo import DpoConfig
from plugrl.trainers.self_hosted_grpo import ClippedConfig, GrpoConfig
from plugrl.trainers.self_hosted_opd import OpdConfig
from plugrl.trainers.solo_agent import SoloAgentConfig
from plugrl.trainers.spg import SpgConfig
from plugrl.trainers.td3 import Td3Config
from plugrl.trainers.vanilla_ppo import PpoConfig

# Defaults are those of docs/algorithms. Preferences: TRL. Small networks: Stable-Baselines3, and
# for td3 arXiv 1802.09477. clipped: arXiv 1707.06347; gspo: arXiv 2507.18071, section 5.1.
POLICY_GRADIENT = {"reads": ("advantages", "old_log_probs"), "skips_zero_advantage": True}
PREFERENCE = {"reads": ("ref_log_probs", "preferred")}
LOSSES = {
    "bradley_terry": (
        {"center_coefficient": 0.0},
        {
            "reads": ("preferred",),
            "needs": ("values",),
            "compares_pairs": True,
            "takes_margins": True,
        },
    ),
    "cispo": ({"clip_ratio_high": 4.0}, POLICY_GRADIENT),
    "clipped": (
        {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_dual": None},
        POLICY_GRADIENT,
    ),
    "cross_entropy": ({}, {"reads": ()}),
    "dpo": ({"beta": 0.1, "label_smoothing": 0.0}, {**PREFERENCE, "compares_pairs": True}),
    "gspo": ({"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, POLICY_GRADIENT),
    "importance_sampling": ({}, POLICY_GRADIENT),
    "ipo": ({"beta": 0.1}, {**PREFERENCE, "compares_pairs": True}),
    "kto": (
        {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 1.0},
        {**PREFERENCE, "compares_pairs": False, "needs_reference_point": True},
    ),
    "reverse_kl": (
        {"coefficient": 1.0, "clip_ratio": None},
        {"reads": ("teacher_log_probs", "old_log_probs")},
    ),
}
OF_ATTEMPTS = {"reads": (), "compares_attempts": True}
ADVANTAGES = {
    "dr_grpo": ({}, OF_ATTEMPTS),
    "gae": (
        {"gamma": 1.0, "lam": 0.95, "normalize": True, "epsilon": 1e-8},
        {"reads": (), "needs": ("values",)},
    ),
    "grpo": ({"normalize": True, "epsilon": 1e-6}, OF_ATTEMPTS),
    "opd": (
        {"coefficient": 1.0, "discount": 0.0},
        {"reads": ("teacher_log_probs",), "uses_rewards": False},
    ),
    "reinforce_pp": (
        {"gamma": 1.0, "baseline": "none", "normalize": True, "epsilon": 1e-8},
        {"reads": ()},
    ),
    "rloo": ({}, OF_ATTEMPTS),
    "turn_grpo": ({"normalize": True, "epsilon": 1e-6}, OF_ATTEMPTS),
}
HARNESS_CLIPPED = {
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_dual": None,
    "gamma": 1.0,
    "entropy_coefficient": 0.0,
    "normalize": True,
}
HARNESS_PAIRS = {"beta": 0.1, "by": "reward", "gamma": 1.0, "min_margin": 0.0}
HARNESS_ALGORITHMS = {
    "dpo": {**HARNESS_PAIRS, "label_smoothing": 0.0},
    "grpo": {
        **HARNESS_CLIPPED,
        "epochs": 1,
        "epsilon": 1e-6,
        "kl.coefficient": 0.0,
        "kl.kind": "low_var_kl",
    },
    "ipo": HARNESS_PAIRS,
    "ppo": {
        **HARNESS_CLIPPED,
        "epochs": 4,
        "epsilon": 1e-8,
        "advantage": "return_to_go",
        "lam": 0.95,
        "value.coefficient": 0.5,
        "value.clip": 0.2,
    },
}
STEPS = {
    "total_train_steps": 100,
    "stop_at": {},
    "algorithm.epochs": 1,
    "algorithm.minibatches": 1,
}
ROWS = {**STEPS, "algorithm.aggregation": "token-mean", "algorithm.norm_length": None}
POLICY = {
    "algorithm.entropy_coefficient": 0.0,
    "algorithm.kl.model": "reference",
    "algorithm.kl.reward.coefficient": 0.0,
    "algorithm.kl.reward.kind": "kl",
    "algorithm.kl.reward.controller": "fixed",
    "algorithm.kl.reward.target": 6.0,
    "algorithm.kl.reward.horizon": 10000,
    "algorithm.kl.loss.coefficient": 0.0,
    "algorithm.kl.loss.kind": "low_var_kl",
    "algorithm.value.coefficient": 0.5,
    "algorithm.value.clip": 0.2,
    "algorithm.sampler_correction.level": "none",
    "algorithm.sampler_correction.mode": "truncate",
    "algorithm.sampler_correction.cap": 2.0,
    "algorithm.sampler_correction.floor": 0.0,
    "algorithm.overlong.buffer": 0,
    "algorithm.overlong.penalty": 1.0,
    "algorithm.overlong.length": None,
    "algorithm.overlong.filter": False,
}
GRPO = {**ROWS, **POLICY, "algorithm.advantage": "grpo", "algorithm.loss": "clipped"}
TEACHER = {"algorithm.teacher": "teacher", "algorithm.teacher_key": None}
REMOTE = {**ROWS, "algorithm.loss_fn_config": {}}
SAMPLED = {**REMOTE, "algorithm.loss_fn": "importance_sampling"}
HARNESS = {
    "optimizer": "adamw",
    "gradient_accumulation_steps": 1,
    "algorithm": "dpo",
}
REPLAY = {"buffer_size": 1_000_000, "learning_starts": 100, "train_freq": 1, "gradient_steps": 1}
CRITICS = {**REPLAY, "critic_hidden": [256, 256], "tau": 0.005}
LOSS = {"critic_coef": 0.5, "entropy_eps": 0.0, "normalize_advantage": True}
TRAINERS = {
    "a2c": {**LOSS, "normalize_advantage": False},
    "dqn": {
        **REPLAY,
        "train_freq": 4,
        "double": False,
        "tau": 1.0,
        "target_update_interval": 10_000,
        "exploration_fraction": 0.1,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.05,
    },
    "ei_pure_text": {
        "rollout_selection_method": "threshold",
        "reward_threshold": 0.9,
        "weighting_sample_size_factor": 0.5,
        "weighting_minimum": None,
        "weighting_use_replacement": True,
        "weighting_epsilon": 0.01,
    },
    "evaluation": {},
    "grpo_pure_text": GRPO,
    "harness": {
        **HARNESS,
        "lr": 0.003,
        "batch_size": 16,
        "training_steps": 1024,
        "num_episodes_per_experience": 8,
    },
    "hf_ast": {
        **HARNESS,
        "lr": 1e-5,
        "batch_size": 4,
        "training_steps": 1000,
        "num_episodes_per_experience": 2,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "schedule": "constant",
        "warmup_steps": 0,
        "mixed_precision": "no",
        "eval_every": 100,
        "dev_split": "development",
        "best_by": "reward",
        "early_stopping_patience": None,
        "early_stopping_min_delta": 0.0,
    },
    "malt_pure_text": {"num_responses_per_timestep": 2},
    "reinforce": {**LOSS, "use_advantage_and_critic": False},
    "remote_api_cross_entropy": {**REMOTE, "algorithm.loss_fn": "cross_entropy"},
    "remote_api_grpo": {**SAMPLED, "algorithm.advantage": "grpo"},
    "remote_api_opd": {**SAMPLED, **TEACHER, "algorithm.advantage": "opd"},
    "reward_model": {**STEPS, "algorithm.loss": "bradley_terry"},
    "rollout_analysis": {
        "rollouts": "latest",
        "files": [],
        "max_rollouts": None,
        "model": "judge",
        "questions": {
            "prover_role_conformance": True,
            "prover_direct_quotation": True,
            "prover_accurate_quotation": True,
            "follow_up": True,
        },
        "temperature": 0.0,
        "max_answer_length": 256,
    },
    "sac": {**CRITICS, "alpha": 1.0, "auto_alpha": True, "target_entropy": None},
    "self_hosted_cross_entropy": {
        **ROWS,
        "algorithm.advantage": "grpo",
        "algorithm.loss": "cross_entropy",
    },
    "self_hosted_dpo": {
        **STEPS,
        "algorithm.loss": "dpo",
        "algorithm.reference": "reference",
        "algorithm.reference_weights": "source",
    },
    "self_hosted_grpo": GRPO,
    "self_hosted_opd": {
        **GRPO,
        **TEACHER,
        "algorithm.advantage": "opd",
        "algorithm.loss": "importance_sampling",
    },
    "sequence": {"phases": []},
    "solo_agent": {
        "num_epochs": 100,
        "batch_size": 256,
        "learning_rate": 0.001,
        "max_grad_norm": None,
        "body_lr_factor_override": False,
        "test_size": 0.2,
    },
    "spg": {
        **LOSS,
        "variant": "psos",
        "stackelberg_sequence": None,
        "lookahead": None,
        "additional_lola_term": True,
        "sos_scaling_factor": 0.5,
        "sos_threshold_factor": 0.1,
        "ihvp_variant": "nystrom",
        "ihvp_num_iterations": 5,
        "ihvp_rank": 5,
        "ihvp_rho": 0.1,
        "clip_epsilon": 0.2,
    },
    "td3": {
        **CRITICS,
        "policy_delay": 2,
        "action_noise": 0.1,
        "target_policy_noise": 0.2,
        "target_noise_clip": 0.5,
    },
    "vanilla_ppo": {
        **LOSS,
        "loss_type": "clip",
        "clip_epsilon": 0.2,
        "anneal_clip": False,
        "kl_target": 0.01,
        "kl_beta": 1.0,
        "kl_decrement": 0.5,
        "kl_increment": 2.0,
        "implementation": "plugrl",
    },
}
RL = {
    "num_iterations": 100,
    "frames_per_batch": 2048,
    "steps_per_env_per_iteration": None,
    "num_epochs": 4,
    "minibatch_size": 64,
    "optimizer": "adam",
    "lr": 3e-4,
    "adam_eps": 1e-5,
    "anneal_lr": False,
    "max_grad_norm": 0.5,
    "loss_critic_type": "l2",
    "clip_value": False,
    "gamma": 0.99,
    "lmbda": 0.95,
    "use_shared_body": False,
    "normalize_observations": False,
    "normalize_rewards": False,
    "num_normalization_steps": 1000,
    "num_test_iterations": 0,
    "compile": "auto",
}
ONCE = {**RL, "num_epochs": 1, "minibatch_size": None}
OLD_STEPS = {
    **RL,
    "frames_per_batch": 1000,
    "minibatch_size": 256,
    "adam_eps": 1e-8,
    "max_grad_norm": None,
}
OF_RL = {
    "a2c": ONCE,
    "reinforce": ONCE,
    "spg": RL,
    "vanilla_ppo": RL,
    "sac": OLD_STEPS,
    "td3": OLD_STEPS,
    "dqn": {
        **OLD_STEPS,
        "lr": 1e-4,
        "minibatch_size": 32,
        "max_grad_norm": 10.0,
        "loss_critic_type": "smooth_l1",
    },
}
TABLES = {
    "loss": LOSSES,
    "advantage": ADVANTAGES,
    "harness_algorithm": HARNESS_ALGORITHMS,
    "trainer": TRAINERS,
}


def defaults(rows):
    return {row["key"]: row["default"] for row in rows}


@pytest.mark.parametrize("kind", TABLES)
def test_all_that_is_registered_stands_here(registry, kind):
    own = {each.name for each in registry.records(kind) if each.distribution == "plugrl"}
    assert own == set(TABLES[kind])


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("loss", "advantage") for name in TABLES[kind]]
)
def test_a_function_has_these_options_and_says_this_of_itself(registry, kind, name):
    function, (options, marks) = registry.get(kind, name), TABLES[kind][name]
    assert dataclasses.is_dataclass(function.Config)
    assert defaults(describe_component(function)) == options
    said = {key: value for key, value in vars(function).items() if not callable(value)}
    assert said == marks


@pytest.mark.parametrize("name", HARNESS_ALGORITHMS)
def test_an_algorithm_of_the_harness_has_these_options(registry, name):
    found = describe_component(registry.get("harness_algorithm", name))
    assert defaults(found) == HARNESS_ALGORITHMS[name]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_has_these_options(registry, name):
    cls = registry.get("trainer", name)
    section = cls.sections.get({"vanilla_ppo": "ppo"}.get(name, name))
    found = describe_component(cls) if section is None else describe(section)
    assert defaults(found) == TRAINERS[name]


@pytest.mark.parametrize("name", OF_RL)
def test_a_trainer_of_small_networks_collects_like_this(registry, name):
    assert defaults(describe(registry.get("trainer", name).sections["rl"])) == OF_RL[name]


LEAST = 5e-324  # The smallest number above 0.
BELOW_1 = 1 - 2**-53
ABOVE_1 = 1 + 2**-52
NOT_NEGATIVE = [0], [-LEAST]
COUNT = [1], [0]
COUNT_OR_NONE = [0], [-1]
ABOVE_0 = [LEAST], [0]
SHARE = [0, 1], [-LEAST, ABOVE_1]
PART = [LEAST, 1], [0, ABOVE_1]
INSIDE = [LEAST, BELOW_1], [0, 1]
BOUNDS = {
    A2cConfig: {"critic_coef entropy_eps": NOT_NEGATIVE},
    BradleyTerryConfig: {"center_coefficient": NOT_NEGATIVE},
    CispoConfig: {"clip_ratio_high": NOT_NEGATIVE},
    ClipRange: {"clip_ratio_low": SHARE, "clip_ratio_high": NOT_NEGATIVE},
    ClippedConfig: {"clip_ratio_dual": ([ABOVE_1, None], [1]), "clip_ratio_low": SHARE},
    DpoConfig: {"beta": ABOVE_0, "label_smoothing": ([0, 0.5 - 2**-54], [-LEAST, 0.5])},
    DqnConfig: {
        "tau exploration_fraction exploration_initial_eps exploration_final_eps": SHARE,
        "target_update_interval buffer_size": COUNT,
    },
    ExpertIterationConfig: {
        "weighting_sample_size_factor": ABOVE_0,
        "weighting_epsilon": NOT_NEGATIVE,
    },
    GaeConfig: {"gamma lam": SHARE, "epsilon": NOT_NEGATIVE},
    GrpoConfig: {"epsilon": NOT_NEGATIVE},
    HarnessGrpoConfig: {"epsilon": NOT_NEGATIVE, "epochs": COUNT},
    HarnessPpoConfig: {"epsilon": NOT_NEGATIVE, "lam": SHARE, "epochs": COUNT},
    IpoConfig: {"beta": ABOVE_0},
    KtoConfig: {"beta": ABOVE_0, "desirable_weight undesirable_weight": NOT_NEGATIVE},
    MaltConfig: {"num_responses_per_timestep": ([2], [1])},
    OffPolicyRlConfig: {"minibatch_size": COUNT},
    OpdConfig: {"coefficient": ABOVE_0, "discount": SHARE},
    PairConfig: {"gamma": SHARE, "min_margin": NOT_NEGATIVE},
    PolicyGradientConfig: {"gamma": SHARE, "epochs": COUNT},
    PpoConfig: {
        "clip_epsilon": INSIDE,
        "kl_target": ABOVE_0,
        "kl_decrement": PART,
        "kl_increment": ([1], [BELOW_1]),
        "kl_beta critic_coef entropy_eps": NOT_NEGATIVE,
    },
    ReinforceConfig: {"critic_coef entropy_eps": NOT_NEGATIVE},
    ReinforcePpConfig: {"gamma": SHARE, "epsilon": NOT_NEGATIVE},
    ReplayConfig: {
        "buffer_size train_freq": COUNT,
        "learning_starts": COUNT_OR_NONE,
        "gradient_steps": ([1, -1], [0, -2]),
    },
    ReverseKlConfig: {"coefficient": ABOVE_0, "clip_ratio": ([LEAST, None], [0])},
    RlConfig: {
        "frames_per_batch num_epochs": COUNT,
        "minibatch_size": ([1, None], [0]),
        "num_iterations num_test_iterations num_normalization_steps": COUNT_OR_NONE,
        "steps_per_env_per_iteration": ([1, None], [0]),
        "gamma lmbda": SHARE,
    },
    RolloutAnalysisConfig: {
        "max_rollouts": ([1, None], [0]),
        "temperature": NOT_NEGATIVE,
        "max_answer_length": COUNT,
    },
    SacConfig: {"alpha": ABOVE_0, "tau": PART, "train_freq": COUNT},
    SoloAgentConfig: {
        "num_epochs": COUNT_OR_NONE,
        "batch_size": COUNT,
        "learning_rate": ABOVE_0,
        "max_grad_norm": ([LEAST, None], [0]),
        "test_size": ([0, BELOW_1], [-LEAST, 1]),
    },
    SpgConfig: {
        "clip_epsilon sos_scaling_factor": INSIDE,
        "lookahead": ([0, None], [-LEAST]),
        "critic_coef entropy_eps sos_threshold_factor": NOT_NEGATIVE,
        "ihvp_rho": ([LEAST], [0, float("inf"), float("nan")]),
        "ihvp_num_iterations ihvp_rank": COUNT,
    },
    Td3Config: {
        "policy_delay": COUNT,
        "tau": PART,
        "action_noise target_policy_noise target_noise_clip": NOT_NEGATIVE,
    },
    TurnGrpoConfig: {"epsilon": NOT_NEGATIVE},
    TwinCriticsConfig: {
        "tau": PART,
        "critic_hidden": ([[], [1, 2]], [[0], [2, 0]]),
        "buffer_size": COUNT,
    },
}


@pytest.mark.parametrize("config", BOUNDS, ids=lambda config: config.__name__)
def test_an_option_may_be_as_large_and_as_small_as_it_says(config):
    for options, (admitted, refused) in BOUNDS[config].items():
        for option in options.split():
            for value in admitted:
                assert not [f for f in _faults(config, option, value) if option in str(f)]
            for value in refused:
                assert any(option in str(f) for f in _faults(config, option, value)), (
                    option,
                    value,
                )


def _faults(config, option, value):
    checker = Checker()
    checker.fields({option: value}, config, ())
    return checker.faults


#: Those whose preflight is the first of all.
FIRST = {"harness", "rollout_analysis", "sequence", "solo_agent"}


@pytest.mark.parametrize("name", sorted(set(TRAINERS) - FIRST))
def test_what_any_base_of_a_trainer_finds_is_told(config, registry, monkeypatch, name):
    cls = registry.get("trainer", name)
    bases = [each for each in cls.__mro__ if "preflight" in vars(each) and each is not Trainer]
    tree = config(name, **dict(getattr(cls, "conformance", {})))
    validated = prepare(tree, preflight=False).validated
    check = Preflight("trainer", validated.hyper_params, validated, registry)
    # All of them have this section, which a trainer that only evaluates reads too.
    finding = ("validate.enabled", "found by a base")
    assert len(bases) > 1
    for base in bases[1:]:
        with monkeypatch.context() as patched:
            patched.setattr(base, "preflight", classmethod(lambda cls, check: iter([finding])))
            assert finding in list(cls.preflight(check)), base
