"""Every setting whose value is the name of something is looked up before the run."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import yaml
from schemas import all_schemas
from written_rollouts import chat, rollouts

from plugrl.core.config.check import Checker, hints_of
from plugrl.core.config.schemas.schema import COMPONENT, FILE, PHASES
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare, start
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.staged.files import RunFiles
from plugrl.testing import tiny
from plugrl.trainers import kit

#: What a row begins with: a trainer of text with sections over those of the kit, or a whole tree.
TASK = {"type": "arithmetic", "digits": 1, "validation": 5, "development": 5, "demonstrations": 6}
_AGENT = {"type": "agent", "protocol": None, "agent_config": "agent.yaml"}
_PAIRS = tiny.merged(kit.JUDGED, {"models": {"reference": kit.FROZEN}})
_LABELS = {"layout": "labels", "completion_key": "answer"}
_TEXT: dict[str, tuple[str, Any]] = {
    "text": ("self_hosted_grpo", {}),
    "task": (
        "self_hosted_grpo",
        {"scenario": TASK, "data": {"data_files": None}, "validate": {"data": None}},
    ),
    "judge": ("self_hosted_grpo", {"models": {"judge": kit.FROZEN}}),
    "agent": (
        "self_hosted_grpo",
        tiny.merged(kit.TALKING_ON, {"rollout_worker": {**_AGENT, "evaluator": "exact_match"}}),
    ),
    "agent_demonstration": (
        "self_hosted_cross_entropy",
        tiny.merged(
            kit.TALKING_ON,
            {
                "data": {"rollout_repeat_n": 1},
                "rollout_worker": {
                    **_AGENT,
                    "type": "agent_demonstration",
                    "demonstration_key": "answer",
                    "evaluator": "exact_match",
                },
            },
        ),
    ),
    "external": (
        "self_hosted_grpo",
        {"rollout_worker": {"type": "external", "function": "tools:ask"}},
    ),
    "pairs": ("self_hosted_dpo", _PAIRS),
    "labels": (
        "self_hosted_dpo",
        tiny.merged(_PAIRS, {"rollout_worker": _LABELS, "trainer": {"algorithm": {"loss": "kto"}}}),
    ),
    "margins": (
        "reward_model",
        tiny.merged(
            kit.JUDGED,
            {
                "models": {"policy": {"train": {"value_head": True}}},
                "rollout_worker": {"margin_key": "label"},
            },
        ),
    ),
    "teacher": ("self_hosted_opd", {"models": {"teacher": kit.FROZEN}}),
    "protocol": ("self_hosted_grpo", kit.TALKING_ON),
    "staged": ("ei_pure_text", kit.TALKING),
    "red_team": ("harness", kit.RED_TEAM),
    "tree_ppo": ("hf_ast", kit.RED_TEAM),
    "remote": ("remote_api_grpo", {"models": {"policy": kit.NAMED_LOSSES}}),
}
_GRAPHS = {"type": "graph_isomorphism", "num_envs": 4, "train_size": 8, "test_size": 8}
_RL = {"rl": {"num_iterations": 1, "frames_per_batch": 64}, "validate": {"episodes": 2}}
_TREES: dict[str, dict[str, Any]] = {
    "cartpole": {
        "trainer": "vanilla_ppo", "scenario": {"type": "gymnasium", "id": "CartPole-v1"}, **_RL,
    },
    "tensors": {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "tensor", "environment": "CartPole-v1", "num_envs": 4},
        **_RL,
    },
    "torchrl": {
        "trainer": "vanilla_ppo",
        "scenario": {
            "type": "torchrl",
            "environment": "torchrl.envs:GymEnv",
            "env_kwargs": {"env_name": "CartPole-v1"},
        },
        **_RL,
    },
    "several": {
        "trainer": "vanilla_ppo",
        "scenario": {"type": "pettingzoo", "environment": "tictactoe_v3"},
        **_RL,
    },
    "graphs": {
        "trainer": "vanilla_ppo",
        "scenario": _GRAPHS,
        **_RL,
    },
    "leaders": {
        "trainer": "spg",
        "scenario": _GRAPHS,
        **_RL,
    },
    "analysis": {
        "trainer": {"type": "rollout_analysis", "rollouts": "walker"},
        "models": {"judge": kit.FROZEN},
    },
}  # fmt: skip


class Row(NamedTuple):
    """A misspelt name: its field, over which configuration, where its fault is, what is meant."""

    field: str
    base: str
    sections: dict[str, Any]
    path: str
    meant: str


ROWS = [
    Row(
        "AdapterConfig.target_modules",
        "text",
        {"models": {"policy": {"adapter": {"target_modules": ["q_prj"]}}}},
        "models.policy.adapter.target_modules[0]",
        "q_proj",
    ),
    Row(
        "CurriculumConfig.column",
        "text",
        {"data": {"curriculum": {"column": "lable"}}},
        "data.curriculum.column",
        "label",
    ),
    Row("DataConfig.split", "task", {"data": {"split": "trian"}}, "data.split", "train"),
    Row(
        "DataConfig.prompt_key",
        "text",
        {"data": {"prompt_key": "promt"}},
        "data.prompt_key",
        "prompt",
    ),
    Row(
        "DataConfig.answer_key",
        "text",
        {"data": {"answer_key": "anser"}},
        "data.answer_key",
        "answer",
    ),
    Row(
        "DataConfig.keep", "text", {"data": {"keep": {"lable": [0, 1]}}}, "data.keep.lable", "label"
    ),
    Row(
        "ModelSourceConfig.config",
        "text",
        {"models": {"policy": {"source": {"config": {"model_type": "qwen33"}}}}},
        "models.policy.source.config",
        "qwen3",
    ),
    Row(
        "PluginsConfig.require",
        "text",
        {"plugins": {"require": ["nmupy"]}},
        "plugins.require",
        "numpy",
    ),
    Row(
        "SettingsConfig.device", "text", {"settings": {"device": "cdua"}}, "settings.device", "cuda"
    ),
    Row(
        "SettingsConfig.progress",
        "text",
        {"settings": {"progress": "plian"}},
        "settings.progress",
        "plain",
    ),
    Row(
        "SettingsConfig.torch_threads",
        "text",
        {"settings": {"torch_threads": "auot"}},
        "settings.torch_threads",
        "auto",
    ),
    Row(
        "SettingsConfig.deadlines",
        "text",
        {"settings": {"deadlines": {"rolout": 1}}},
        "settings.deadlines.rolout",
        "rollout",
    ),
    Row(
        "TrajectoryPoolConfig.key_list",
        "text",
        {"trajectory_pool": {"key_list": ["lable"]}},
        "trajectory_pool.key_list[0]",
        "label",
    ),
    Row(
        "ValidateConfig.pass_metric",
        "text",
        {"validate": {"pass_metric": "exact_mach"}},
        "validate.pass_metric",
        "exact_match",
    ),
    Row(
        "ValidateConfig.data_source_key",
        "text",
        {"validate": {"data_source_key": "lable"}},
        "validate.data_source_key",
        "label",
    ),
    Row(
        "ValidateConfig.score",
        "text",
        {"validate": {"score": "validation/rewrd"}},
        "validate.score",
        "validation/reward",
    ),
    Row(
        "ValidationDataConfig.splits",
        "task",
        {"validate": {"data": {"splits": ["validatoin"]}}},
        "validate.data.splits[0]",
        "validation",
    ),
    Row(
        "AgentConfig.scripted",
        "graphs",
        {"agents": {"verifier": {"scripted": "checking_verifer"}}},
        "agents.verifier.scripted",
        "checking_verifier",
    ),
    Row(
        "AgentConfig.load_from",
        "cartpole",
        {"agents": {"agent": {"load_from": "walkr"}}},
        "agents.agent.load_from",
        "walker",
    ),
    Row(
        "AgentConfig.load_checkpoint",
        "cartpole",
        {"agents": {"agent": {"load_from": "walker", "load_checkpoint": "bset"}}},
        "agents.agent.load_from",
        "best",
    ),
    Row(
        "AgentConfig.load_policy",
        "cartpole",
        {"agents": {"agent": {"load_from": "walker", "load_policy": "agnet"}}},
        "agents.agent.load_policy",
        "agent",
    ),
    Row(
        "MessageRegressionConfig.agents",
        "graphs",
        {"message_regression": {"enabled": True, "agents": ["verifer"]}},
        "message_regression",
        "verifier",
    ),
    Row(
        "EpisodesConfig.opponent",
        "several",
        {"validate": {"opponent": "randm"}},
        "validate.opponent",
        "random",
    ),
    Row(
        "AgentSection.stop_tools",
        "agent",
        {"rollout_worker": {"agent_config": "stops.yaml"}},
        "rollout_worker.agent_config",
        "add",
    ),
    Row(
        "ToolSection.binding",
        "agent",
        {"rollout_worker": {"agent_config": "binds.yaml"}},
        "rollout_worker.agent_config",
        "add",
    ),
    Row(
        "RolloutWorkerConfig.model",
        "text",
        {"rollout_worker": {"model": "polcy"}},
        "rollout_worker.model",
        "policy",
    ),
    Row(
        "DialogueConfig.baseline",
        "red_team",
        {"red_team": {"baseline": "testr"}},
        "red_team.baseline",
        "tester",
    ),
    Row(
        "DialogueConfig.split",
        "red_team",
        {"red_team": {"split": "trian"}},
        "red_team.split",
        "train",
    ),
    Row(
        "DialogueConfig.prompt_key",
        "red_team",
        {"red_team": {"prompt_key": "promt"}},
        "red_team.prompt_key",
        "prompt",
    ),
    Row(
        "DialogueConfig.category_key",
        "red_team",
        {"red_team": {"category_key": "catgory"}},
        "red_team.category_key",
        "category",
    ),
    Row(
        "DialogueConfig.eval_split",
        "red_team",
        {"red_team": {"eval_split": "tset"}},
        "red_team.eval_split",
        "test",
    ),
    Row(
        "RewardConfig.categories",
        "red_team",
        {
            "red_team": {
                "reward": {"categories": {"colur": 1.0}},
                "scorer": {
                    "type": "weighted",
                    "patterns": None,
                    "reads": None,
                    "parts": [{"name": "colour", "scorer": {"type": "regex", "patterns": ["red"]}}],
                },
            }
        },
        "red_team.reward.categories.colur",
        "colour",
    ),
    Row(
        "TargetConfig.model",
        "red_team",
        {"red_team": {"target": {"model": "targt"}}},
        "red_team.target.model",
        "target",
    ),
    Row(
        "TesterConfig.model",
        "red_team",
        {"red_team": {"tester": {"model": "testr"}}},
        "red_team.tester.model",
        "tester",
    ),
    Row(
        "KlConfig.model",
        "text",
        {"trainer": {"algorithm": {"kl": {"model": "polcy", "loss": {"coefficient": 0.1}}}}},
        "trainer.algorithm.kl.model",
        "policy",
    ),
    Row(
        "ProtocolWorkerConfig.agents",
        "protocol",
        {"rollout_worker": {"agents": {"verifer": {"model": "policy"}}}},
        "rollout_worker.agents.verifer",
        "verifier",
    ),
    Row(
        "ProtocolWorkerConfig.label_key",
        "protocol",
        {"rollout_worker": {"label_key": "lable"}},
        "rollout_worker.label_key",
        "label",
    ),
    Row(
        "ProtocolWorkerConfig.solution_key",
        "protocol",
        {"rollout_worker": {"solution_key": "anser"}},
        "rollout_worker.solution_key",
        "answer",
    ),
    Row(
        "ProtocolWorkerConfig.channel_names",
        "protocol",
        {"rollout_worker": {"channel_names": {"mian": "x"}}},
        "rollout_worker.channel_names.mian",
        "main",
    ),
    Row(
        "SpeakerConfig.model",
        "protocol",
        {"rollout_worker": {"agents": {"verifier": {"model": "polcy"}}}},
        "rollout_worker.agents.verifier.model",
        "policy",
    ),
    Row(
        "SpeakerConfig.script",
        "protocol",
        {"rollout_worker": {"agents": {"verifier": {"script": "anser"}}}},
        "rollout_worker.agents.verifier.script",
        "answer",
    ),
    Row(
        "RemoteLossConfig.loss_fn",
        "remote",
        {"trainer": {"algorithm": {"loss_fn": "cipso"}}},
        "trainer.algorithm.loss_fn",
        "cispo",
    ),
    Row(
        "RemoteLossConfig.loss_fn_config",
        "remote",
        {
            "trainer": {
                "algorithm": {"loss_fn": "ppo", "loss_fn_config": {"clip_low_treshold": 0.1}}
            }
        },
        "trainer.algorithm.loss_fn_config",
        "clip_low_threshold",
    ),
    Row(
        "TrajectoryTrainerConfig.stop_at",
        "text",
        {"trainer": {"stop_at": {"rollout/rewrd": 1}}},
        "trainer.stop_at.rollout/rewrd",
        "rollout/reward",
    ),
    Row(
        "HeldOutConfig.score",
        "staged",
        {"validate": {"score": "test/acuracy"}},
        "validate.score",
        "test/accuracy",
    ),
    Row(
        "TextRlConfig.prices",
        "staged",
        {"text_rl": {"prices": {"polcy": {"output": 1}}}},
        "text_rl.prices.polcy",
        "policy",
    ),
    Row(
        "RewardModelConfig.run",
        "text",
        {"rollout_worker": {"evaluator": {"type": "reward_model", "run": "walkr"}}},
        "rollout_worker.evaluator.run",
        "walker",
    ),
    Row(
        "RewardModelConfig.checkpoint",
        "text",
        {
            "rollout_worker": {
                "evaluator": {"type": "reward_model", "run": "walker", "checkpoint": "bset"}
            }
        },
        "rollout_worker.evaluator.run",
        "best",
    ),
    Row(
        "RewardModelConfig.model",
        "text",
        {
            "rollout_worker": {
                "evaluator": {"type": "reward_model", "run": "walker", "model": "polcy"}
            }
        },
        "rollout_worker.evaluator.run",
        "policy",
    ),
    Row(
        "OpenAiConfig.api_key",
        "judge",
        {
            "models": {
                "judge": {
                    "inference": {
                        "type": "openai",
                        "base_url": "http://127.0.0.1:9/v1",
                        "model": "m",
                        "api_key": "PLUGRL_TEST_KYE",
                    }
                }
            }
        },
        "models.judge.inference.api_key",
        "PLUGRL_TEST_KEY",
    ),
    Row(
        "OpenAiJobsConfig.api_key",
        "staged",
        {
            "models": {
                "policy": {
                    "inference": {
                        "type": "openai",
                        "base_url": "http://127.0.0.1:9/v1",
                        "model": "m",
                    },
                    "fine_tune": {"type": "openai", "train": None, "api_key": "PLUGRL_TEST_KYE"},
                }
            }
        },
        "models.policy.fine_tune.api_key",
        "PLUGRL_TEST_KEY",
    ),
    Row(
        "RemoteSettings.api_key",
        "remote",
        {
            "models": {
                "policy": {
                    "inference": {"type": "tinker", "base_model": "m"},
                    "train": {
                        "type": "tinker",
                        "api_key": "PLUGRL_TEST_KYE",
                        "base_url": "http://192.0.2.1",
                    },
                }
            }
        },
        "models.policy.train.api_key",
        "PLUGRL_TEST_KEY",
    ),
    Row(
        "CodeConfig.tests_key",
        "text",
        {"rollout_worker": {"evaluator": {"type": "code", "tests_key": "anser", "unsafe": True}}},
        "rollout_worker.evaluator.tests_key",
        "answer",
    ),
    Row(
        "ExactMatchConfig.answer_key",
        "text",
        {"rollout_worker": {"evaluator": {"type": "exact_match", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    Row(
        "MathConfig.answer_key",
        "text",
        {"rollout_worker": {"evaluator": {"type": "math", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    Row(
        "RegexConfig.answer_key",
        "text",
        {"rollout_worker": {"evaluator": {"type": "regex", "pattern": "a", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    Row(
        "RegexConfig.group",
        "text",
        {
            "rollout_worker": {
                "evaluator": {"type": "regex", "pattern": "(?P<number>a)", "group": "nubmer"}
            }
        },
        "rollout_worker.evaluator",
        "number",
    ),
    Row(
        "LlmJudgeConfig.model",
        "text",
        {"rollout_worker": {"evaluator": {"type": "llm_judge", "model": "polcy"}}},
        "rollout_worker.evaluator.model",
        "policy",
    ),
    Row(
        "LlmJudgeConfig.template",
        "judge",
        {"rollout_worker": {"evaluator": {"type": "llm_judge", "template": "{questoin} {answer}"}}},
        "rollout_worker.evaluator.template",
        "{question}",
    ),
    Row(
        "LlmJudgeConfig.question_key",
        "judge",
        {"rollout_worker": {"evaluator": {"type": "llm_judge", "question_key": "promt"}}},
        "rollout_worker.evaluator.question_key",
        "prompt",
    ),
    Row(
        "LlmJudgeConfig.answer_key",
        "judge",
        {"rollout_worker": {"evaluator": {"type": "llm_judge", "answer_key": "anser"}}},
        "rollout_worker.evaluator.answer_key",
        "answer",
    ),
    Row(
        "GymnasiumConfig.id",
        "cartpole",
        {"scenario": {"id": "CartPol-v1"}},
        "scenario.id",
        "CartPole-v1",
    ),
    Row(
        "GymnasiumConfig.wrappers",
        "cartpole",
        {"scenario": {"wrappers": ["gymnasium.wrappers:FlattenObservatoin"]}},
        "scenario",
        "FlattenObservation",
    ),
    Row(
        "PettingZooConfig.environment",
        "several",
        {"scenario": {"environment": "tictacto_v3"}},
        "scenario.environment",
        "tictactoe_v3",
    ),
    Row(
        "BracketsConfig.tool",
        "agent",
        {"rollout_worker": {"tool_parser": {"type": "brackets", "tool": "ad"}}},
        "rollout_worker.tool_parser.tool",
        "add",
    ),
    Row(
        "TaskConfig.name",
        "task",
        {
            "scenario": {
                "type": "reasoning_gym",
                "tasks": [{"name": "chain_smu"}],
                "digits": None,
                "validation": None,
                "development": None,
                "demonstrations": None,
            }
        },
        "scenario",
        "chain_sum",
    ),
    Row(
        "RedTeamConfig.prompt_key",
        "red_team",
        {"scenario": {"file": "goals.jsonl", "categories": [], "prompt_key": "gaol"}},
        "scenario",
        "goal",
    ),
    Row(
        "RedTeamConfig.category_key",
        "red_team",
        {"scenario": {"file": "goals.jsonl", "categories": [], "category_key": "kidn"}},
        "scenario",
        "kind",
    ),
    Row(
        "RedTeamConfig.template",
        "red_team",
        {"scenario": {"template": "say {wrod}"}},
        "scenario",
        "word",
    ),
    Row(
        "RedTeamConfig.categories",
        "red_team",
        {"scenario": {"categories": ["tre"]}},
        "scenario",
        "tree",
    ),
    Row(
        "AgentDemonstrationConfig.demonstration_key",
        "agent_demonstration",
        {"rollout_worker": {"demonstration_key": "anser"}},
        "rollout_worker.demonstration_key",
        "answer",
    ),
    Row(
        "ExternalRolloutWorkerConfig.function",
        "external",
        {"rollout_worker": {"function": "tools:akk"}},
        "rollout_worker.function",
        "ask",
    ),
    Row(
        "ExternalRolloutWorkerConfig.model_names",
        "external",
        {"rollout_worker": {"model_names": {"gpt": "polcy"}}},
        "rollout_worker.model_names.gpt",
        "policy",
    ),
    Row(
        "PreferenceConfig.chosen_key",
        "pairs",
        {"rollout_worker": {"chosen_key": "anser"}},
        "rollout_worker.chosen_key",
        "answer",
    ),
    Row(
        "PreferenceConfig.rejected_key",
        "pairs",
        {"rollout_worker": {"rejected_key": "promt"}},
        "rollout_worker.rejected_key",
        "prompt",
    ),
    Row(
        "PreferenceConfig.completion_key",
        "labels",
        {"rollout_worker": {"completion_key": "anser"}},
        "rollout_worker.completion_key",
        "answer",
    ),
    Row(
        "PreferenceConfig.label_key",
        "labels",
        {"rollout_worker": {"label_key": "lable"}},
        "rollout_worker.label_key",
        "label",
    ),
    Row(
        "PreferenceConfig.margin_key",
        "margins",
        {"rollout_worker": {"margin_key": "lable"}},
        "rollout_worker.margin_key",
        "label",
    ),
    Row(
        "LexiconConfig.words_key",
        "red_team",
        {
            "red_team": {
                "scorer": {"patterns": None, "reads": None, "type": "lexicon", "words_key": "wrd"}
            }
        },
        "red_team.scorer.words_key",
        "word",
    ),
    Row(
        "LlmJudgeScorerConfig.model",
        "red_team",
        {
            "red_team": {
                "scorer": {"patterns": None, "reads": None, "type": "llm_judge", "model": "targt"}
            }
        },
        "red_team.scorer.model",
        "target",
    ),
    Row(
        "LlmJudgeScorerConfig.template",
        "red_team",
        {
            "red_team": {
                "scorer": {
                    "patterns": None,
                    "reads": None,
                    "type": "llm_judge",
                    "model": "target",
                    "template": "{prob} {response}",
                }
            }
        },
        "red_team.scorer.template",
        "{probe}",
    ),
    Row(
        "TensorConfig.environment",
        "tensors",
        {"scenario": {"environment": "CartPole-v0"}},
        "scenario.environment",
        "CartPole-v1",
    ),
    Row(
        "TorchrlConfig.environment",
        "torchrl",
        {"scenario": {"environment": "torchrl.envs:GymEnvv"}},
        "scenario.environment",
        "GymEnv",
    ),
    Row(
        "TorchrlConfig.transforms",
        "torchrl",
        {"scenario": {"transforms": ["torchrl.envs:StepCountr"]}},
        "scenario.transforms",
        "StepCounter",
    ),
    Row(
        "TorchrlConfig.observation",
        "torchrl",
        {"scenario": {"observation": "observatoin"}},
        "scenario",
        "observation",
    ),
    Row(
        "HFASTConfiguration.dev_split",
        "tree_ppo",
        {"trainer": {"eval_every": 1, "dev_split": "devlopment"}},
        "trainer.dev_split",
        "development",
    ),
    Row(
        "TeacherOptions.teacher",
        "teacher",
        {"trainer": {"algorithm": {"teacher": "techer"}}},
        "trainer.algorithm.teacher",
        "teacher",
    ),
    Row(
        "TeacherOptions.teacher_key",
        "teacher",
        {"trainer": {"algorithm": {"teacher_key": "lable"}}},
        "trainer.algorithm.teacher_key",
        "label",
    ),
    Row(
        "RolloutAnalysisConfig.rollouts",
        "analysis",
        {"trainer": {"rollouts": "walkr"}},
        "trainer.rollouts",
        "walker",
    ),
    Row(
        "RolloutAnalysisConfig.files",
        "analysis",
        {"trainer": {"files": ["iteraton-0001"]}},
        "trainer.rollouts",
        "iteration-0001",
    ),
    Row(
        "RolloutAnalysisConfig.model",
        "analysis",
        {"trainer": {"model": "juge"}},
        "trainer.model",
        "judge",
    ),
    Row(
        "RolloutAnalysisConfig.questions",
        "analysis",
        {"trainer": {"questions": {"folow_up": True}}},
        "trainer.questions",
        "follow_up",
    ),
    Row(
        "DpoAlgorithmConfig.reference",
        "pairs",
        {"trainer": {"algorithm": {"reference": "refernce"}}},
        "trainer.algorithm.reference",
        "reference",
    ),
    Row(
        "SpgConfig.stackelberg_sequence",
        "leaders",
        {"spg": {"stackelberg_sequence": [["verifer"]]}},
        "spg.stackelberg_sequence",
        "verifier",
    ),
]

#: Why a text is not looked up before the run.
_OWN = "it is a text of its own, or gives something its name"
_ELSEWHERE = "a server elsewhere knows it, and its answer names what it has"
_ANY_WORDS = "these are words or patterns to look for, and any may be meant"
_THEIRS = "it is an argument of other software, whose own error names it"
_NO_LIST = "what is not there is refused, and anything may be there: folders, programs"
_NO_EFFECT = "it is accepted from other systems and says that it has no effect"
_AUTO = "it is a number or true, or else the one word that the message names"
REASONS: dict[str, str] = {
    **dict.fromkeys(
        [
            *("ResourceConfig.image", "ResourceConfig.namespace", "ResourceConfig.queue"),
            *(
                "ResourceConfig.service_account",
                "ResourceConfig.secret_name",
                "ResourceConfig.secrets",
            ),
            *("ResourceConfig.partition", "ResourceConfig.account", "ResourceConfig.time_limit"),
            *("VolumeConfig.source", "VolumeConfig.path"),
            "InferenceMachinesConfig.served_model_name",
            *("ray.Config.address", "kubernetes.Config.address"),
        ],
        "is of a cluster, which says so when a job is sent",
    ),
    **dict.fromkeys(
        [
            *("ClusterConfig.address", "ClusterConfig.namespace", "ClusterConfig.variables"),
            *("ExecutorConfig.resources", "RayInferenceConfig.resources"),
            # Of a machine that may be another; what is wrong with it is told when it starts.
            "ServerConfig.command",
        ],
        "is of a cluster, which is asked when actors start there",
    ),
    **dict.fromkeys(
        [
            "AgentSection.name",
            "AgentSection.description",
            "AgentSection.system_prompt",
            "McpServerSection.env",
            "ToolSection.name",
            "ToolSection.description",
            "ToolSection.parameters",
            "RolloutWorkerConfig.task_name",
            "AgentConfig.policy",
            "AgentRolloutWorkerConfig.error_message",
            "CriterionConfig.name",
            "PartConfig.name",
            "TaskConfig.label",
            "EnvironmentConfig.variables",
            "SettingsConfig.runs_folder",
            "SettingsConfig.checkpoint_path",
            "TokenizerConfig.characters",
            "TokenizerConfig.chat_template",
            "SpeakingConfig.system_prompt",
            "SpeakingConfig.separator",
            "ReasoningGymConfig.template",
            "LlmJudgeScorerConfig.system_prompt",
            "TaskConfig.config",
            "OpenAiJobsConfig.suffix",
            "jsonl.Config.path",
            "mlflow.Config.experiment",
            "mlflow.Config.run_name",
            "mlflow.Config.tags",
            "mlflow.Config.folder",
            "tensorboard.Config.log_dir",
            "trackio.Config.project",
            "trackio.Config.name",
            "trackio.Config.group",
            "wandb.Config.notes",
            "wandb.Config.job_type",
            "ServedModelConfig.weights_folder",
            "trackio.Config.folder",
            "wandb.Config.project",
            "wandb.Config.name",
            "wandb.Config.group",
            "wandb.Config.tags",
            "wandb.Config.folder",
            "ImageClassificationConfig.data_folder",
            "ProtocolWorkerConfig.decision_form",
            "ProtocolWorkerConfig.channel_header",
            "ProtocolWorkerConfig.accept_word",
            "ProtocolWorkerConfig.reject_word",
        ],
        _OWN,
    ),
    **dict.fromkeys(
        [
            "ParameterConfig.values",
            "SweepConfig.space",
            "SweepConfig.metric",
            "SweepConfig.searcher",
        ],
        "plugrl sweep looks it up before its first run: tests/commands/test_search.py",
    ),
    **dict.fromkeys(
        [
            "OpenAiJobsConfig.base_url",
            "OpenAiJobsConfig.base_model",
            "OpenAiConfig.base_url",
            "ServedModelConfig.model",
            "RemoteSettings.base_url",
            "RemoteSettings.base_model",
            "TinkerInferenceConfig.model_path",
            "AdapterTrainConfig.start_from",
            "mlflow.Config.tracking_uri",
            "trackio.Config.space_id",
            "trackio.Config.server_url",
            "wandb.Config.entity",
            "wandb.Config.host",
            "McpServerSection.command",
            "McpServerSection.tools",
            "McpServerSection.url",
            "DataConfig.name",
            "DataConfig.subset",
            "DataConfig.revision",
            "ModelSourceConfig.revision",
            "ValidationDataConfig.name",
            "ValidationDataConfig.subset",
            "ValidationDataConfig.revision",
        ],
        _ELSEWHERE,
    ),
    **dict.fromkeys(
        [
            "SamplingSection.stop",
            "RolloutWorkerConfig.stop",
            "GuardScorerConfig.unsafe",
            "GuardScorerConfig.safe",
            "GuardScorerConfig.prefix",
            "LlmJudgeConfig.pattern",
            "LlmJudgeConfig.json_key",
            "RegexConfig.pattern",
            "RegexConfig.reference_pattern",
            "TagsConfig.opening",
            "TagsConfig.closing",
            "ReasoningGymEvaluatorConfig.tag",
            "LexiconConfig.words",
            "LexiconConfig.categories",
            "LlmJudgeScorerConfig.pattern",
            "LlmJudgeScorerConfig.categories",
            "RegexScorerConfig.patterns",
            "RegexScorerConfig.categories",
        ],
        _ANY_WORDS,
    ),
    **dict.fromkeys(
        [
            "GymnasiumConfig.env_kwargs",
            "PettingZooConfig.env_kwargs",
            "TensorConfig.env_kwargs",
            "TorchrlConfig.env_kwargs",
        ],
        _THEIRS,
    ),
    **dict.fromkeys(
        [
            "BubblewrapConfig.program",
            "ExternalRolloutWorkerConfig.command",
            "ModelSourceConfig.path",
            "RewardModelConfig.path",
            "CodeValidationConfig.data_files",
        ],
        _NO_LIST,
    ),
    **dict.fromkeys(
        [
            "AgentSection.tracers",
            "SamplingSection.model",
            "SamplingSection.base_url",
            "SamplingSection.api_key",
            "SamplingSection.api_type",
            "SamplingSection.stream",
            "SamplingSection.timeout",
            "SamplingSection.max_retries",
        ],
        _NO_EFFECT,
    ),
    **dict.fromkeys(
        [
            "OpenAiJobsConfig.epochs",
            "OpenAiJobsConfig.batch_size",
            "OpenAiJobsConfig.learning_rate_multiplier",
            "OpenAiJobsConfig.beta",
            "LocalTrainConfig.master_weights",
        ],
        _AUTO,
    ),
}

#: Tried where what they name is at hand.
BESIDE: dict[str, str] = {
    "ClassifierScorerConfig.device": "tests/plugins_transformers/test_scorers.py",
    "GuardScorerConfig.device": "tests/plugins_transformers/test_scorers.py",
    "ClassifierScorerConfig.labels": "tests/plugins_transformers/test_scorers.py",
    "CodeValidationConfig.difficulty": "tests/scenarios/test_code_validation_apps.py",
    "PluginsConfig.disable": "tests/core/plugins/test_registry.py",
}


class Text(NamedTuple):
    """A field of a schema that may hold text."""

    schema: type
    field: dataclasses.Field[Any]
    hint: Any

    @property
    def names(self) -> set[str]:
        """The field as each class says it that has it: subclasses repeat fields of others."""
        found = set()
        for base in filter(dataclasses.is_dataclass, self.schema.__mro__):
            module = base.__module__.split(".")[2] if base.__name__ == "Config" else ""
            found.add(f"{module}.{base.__name__}.{self.field.name}".lstrip("."))
        return found


def holds_text(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return False
    return hint in (str, Any, Path) or any(map(holds_text, get_args(hint)))


@functools.cache
def texts() -> list[Text]:
    return [
        Text(schema, field, hints_of(schema)[field.name])
        for schema in all_schemas()
        for field in dataclasses.fields(schema)
        if field.init and holds_text(hints_of(schema)[field.name]) and PHASES not in field.metadata
    ]


def is_file(text: Text) -> bool:
    return text.field.metadata.get(FILE) not in (None, "optional")


def test_every_text_is_looked_up_or_says_why_not() -> None:
    assert len(texts()) > 200
    tried = {row.field for row in ROWS} | set(BESIDE)
    left = [t for t in texts() if COMPONENT not in t.field.metadata and not is_file(t)]
    assert {min(t.names) for t in left if not t.names & (tried | set(REASONS))} == set()
    # What has a reason is there, and is not tried after all.
    assert set(REASONS) <= set().union(*(t.names for t in left))
    assert not tried & set(REASONS)
    root = Path(__file__).parents[2]
    for name, file in BESIDE.items():
        assert name.rpartition(".")[2] in (root / file).read_text("utf-8"), name


def said_of(text: Text, value: Any) -> list[str]:
    """What the check of a schema says of the value of one field, in a section of its own."""
    wanted = [value] if list in (text.hint, get_origin(text.hint)) else value
    checker = Checker()
    checker.fields({text.field.name: wanted}, text.schema, ("section",))
    key = f"section.{text.field.name}"
    return [str(fault) for fault in checker.faults if fault.path.startswith(key)]


def test_every_misspelt_component_is_told() -> None:
    registry, tried = default_registry(), 0
    for text in texts():
        kind = text.field.metadata.get(COMPONENT)
        if kind is None:
            continue
        name = max((record.name for record in registry.records(kind)), key=len)
        slip = name[:2] + name[3:]
        for value in (slip, {"type": slip}):
            (said,) = said_of(text, value)
            assert f"unknown {kind} {slip!r}; did you mean {name}" in said, said
            tried += 1
    assert tried > 40


def test_every_misspelt_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "templates").mkdir()
    for name in ("problems.jsonl", "my_code.py"):
        (tmp_path / name).write_text("", "utf-8")
    tried = 0
    for text in filter(is_file, texts()):
        sort = text.field.metadata[FILE]
        slip, meant = {
            "folder": ("tempaltes", "templates"),
            "code": ("my_cdoe.py:Thing", "my_code.py"),
        }.get(sort, ("probelms.jsonl", "problems.jsonl"))
        (said,) = said_of(text, slip)
        assert said.endswith(f"no such file: {slip.partition(':')[0]}; did you mean {meant}?"), said
        tried += 1
    assert tried > 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run, and with what rows name by file."""
    folder = tmp_path_factory.mktemp("names")
    tool = 'def add(a: int) -> int:\n    """Add one."""\n    return a + 1\n'
    (folder / "tools.py").write_text(
        f"{tool}\n\ndef ask(base_url, api_key, problem):\n    return 1\n", "utf-8"
    )
    agent = {"type": "agent", "name": "a", "tools": [{"name": "add", "binding": "tools:add"}]}
    binding = [{"name": "add", "binding": "tools:addd"}]
    for name, changes in {
        "agent": {}, "stops": {"stop_tools": ["ad"]}, "binds": {"tools": binding},
    }.items():  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(agent | changes), "utf-8")
    goals = [json.dumps({"goal": f"say {word}", "kind": "plain"}) for word in "abcdefgh"]
    (folder / "goals.jsonl").write_text("\n".join(goals), "utf-8")
    tree = tiny.merged(
        _TREES["cartpole"],
        {
            "experiment_name": "walker",
            "settings": {"runs_folder": str(folder / "runs"), "progress": "none"},
        },
    )
    run = start(prepare(tree)).folder
    # An analysis reads of a run what protocol its rollouts are of.
    protocol = {"type": "nip", "max_message_rounds": 4}
    talks = tiny.merged(kit.TALKING_ON, {"rollout_worker": {"protocol": protocol}})
    saved = yaml.safe_dump(tiny.config("self_hosted_grpo", folder, talks))
    (run / "config.yaml").write_text(saved, "utf-8")
    said = [{"verifier": (chat("q"), "Why?")}, {"prover": (chat("q"), "So.")}]
    episode = {"y": 1, "question": "Is it?", "rounds": said}
    RunFiles(run).save(rollouts([episode], protocol), 0, is_test=False)
    yield folder
    shutil.rmtree(folder)


def tree_of(base: str, folder: Path) -> dict[str, Any]:
    if base in _TREES:
        return tiny.merged(_TREES[base], {"settings": {"runs_folder": str(folder / "runs")}})
    trainer, sections = _TEXT[base]
    return tiny.config(trainer, folder, sections)


def faults(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        prepare(tree)
    return list(caught.value.faults)


@pytest.mark.parametrize("base", [*_TEXT, *_TREES])
def test_what_rows_begin_with_is_right(
    base: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    prepare(tree_of(base, place))


@pytest.mark.parametrize("row", ROWS, ids=[row.field for row in ROWS])
def test_a_misspelt_name_is_found_and_told(
    row: Row, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PLUGRL_TEST_KEY", "secret")
    told = faults(tiny.merged(tree_of(row.base, place), row.sections))
    found = [fault for fault in told if fault.startswith(f"{row.path} (")]
    assert found, told
    # Services of one vendor share their keys, so that both say what is missing.
    assert len(told) == len(found) or row.field.endswith("api_key")
    # What is meant comes after what was written, as the close name or among those that there are.
    assert all(row.meant in fault.partition(" (")[2] for fault in found), found
    assert not any("\n" in fault or "secret" in fault for fault in found)
