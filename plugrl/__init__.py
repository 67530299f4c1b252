"""plugrl: a trainer framework for reinforcement learning made of plugins.

The names below are the public API. They are imported when first used, so that ``import plugrl``
itself loads neither torch nor any other large package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugrl.__about__ import __version__

if TYPE_CHECKING:
    from plugrl.api import DPO as DPO
    from plugrl.api import DQN as DQN
    from plugrl.api import GRPO as GRPO
    from plugrl.api import PPO as PPO
    from plugrl.api import SAC as SAC
    from plugrl.api import SFT as SFT
    from plugrl.api import TD3 as TD3
    from plugrl.api import resume as resume
    from plugrl.api import train as train
    from plugrl.core.component import Component as Component
    from plugrl.core.component import NoConfig as NoConfig
    from plugrl.core.config.preflight import Preflight as Preflight
    from plugrl.core.config.schemas.schema import component as component
    from plugrl.core.config.schemas.schema import described as described
    from plugrl.core.config.view import ConfigView as ConfigView
    from plugrl.core.config.view import ExperimentSettings as ExperimentSettings
    from plugrl.core.config.view import HyperParameters as HyperParameters
    from plugrl.core.errors import ConfigError as ConfigError
    from plugrl.core.errors import ContractError as ContractError
    from plugrl.core.errors import PluginError as PluginError
    from plugrl.core.errors import PlugrlDeprecationWarning as PlugrlDeprecationWarning
    from plugrl.core.errors import PlugrlError as PlugrlError
    from plugrl.core.errors import RunError as RunError
    from plugrl.core.errors import StopRun as StopRun
    from plugrl.core.errors import UsageError as UsageError
    from plugrl.core.hub.hub import DataSetName as DataSetName
    from plugrl.core.hub.hub import Hub as Hub
    from plugrl.core.hub.hub import Snapshot as Snapshot
    from plugrl.core.launch.launcher import Launcher as Launcher
    from plugrl.core.launch.launcher import LaunchJob as LaunchJob
    from plugrl.core.launch.launcher import LaunchStatus as LaunchStatus
    from plugrl.core.plugins.hookspecs import HOOK_API as HOOK_API
    from plugrl.core.plugins.hookspecs import hookimpl as hookimpl
    from plugrl.core.plugins.registry import Registry as Registry
    from plugrl.core.plugins.registry import register_advantage as register_advantage
    from plugrl.core.plugins.registry import register_body as register_body
    from plugrl.core.plugins.registry import register_data_map as register_data_map
    from plugrl.core.plugins.registry import (
        register_dialogue_environment as register_dialogue_environment,
    )
    from plugrl.core.plugins.registry import register_environment as register_environment
    from plugrl.core.plugins.registry import register_evaluator as register_evaluator
    from plugrl.core.plugins.registry import register_executor as register_executor
    from plugrl.core.plugins.registry import (
        register_fine_tune_service as register_fine_tune_service,
    )
    from plugrl.core.plugins.registry import (
        register_harness_algorithm as register_harness_algorithm,
    )
    from plugrl.core.plugins.registry import register_hub as register_hub
    from plugrl.core.plugins.registry import (
        register_inference_service as register_inference_service,
    )
    from plugrl.core.plugins.registry import register_launcher as register_launcher
    from plugrl.core.plugins.registry import register_loss as register_loss
    from plugrl.core.plugins.registry import register_parser as register_parser
    from plugrl.core.plugins.registry import register_protocol as register_protocol
    from plugrl.core.plugins.registry import register_rollout_worker as register_rollout_worker
    from plugrl.core.plugins.registry import register_sandbox as register_sandbox
    from plugrl.core.plugins.registry import register_scenario as register_scenario
    from plugrl.core.plugins.registry import register_scorer as register_scorer
    from plugrl.core.plugins.registry import register_searcher as register_searcher
    from plugrl.core.plugins.registry import register_tracker as register_tracker
    from plugrl.core.plugins.registry import register_train_service as register_train_service
    from plugrl.core.plugins.registry import register_trainer as register_trainer
    from plugrl.core.protocol.config import ProtocolConfig as ProtocolConfig
    from plugrl.core.protocol.config import ProtocolRoundsConfig as ProtocolRoundsConfig
    from plugrl.core.protocol.nested_array_dict import NestedArrayDict as NestedArrayDict
    from plugrl.core.protocol.protocol import Protocol as Protocol
    from plugrl.core.protocol.protocol import make_protocol as make_protocol
    from plugrl.core.protocol.state import ProtocolOutcome as ProtocolOutcome
    from plugrl.core.protocol.state import ProtocolSignals as ProtocolSignals
    from plugrl.core.protocol.state import ProtocolState as ProtocolState
    from plugrl.core.protocol.state import Tally as Tally
    from plugrl.core.protocol.state import Verdict as Verdict
    from plugrl.core.run.run import Run as Run
    from plugrl.core.run.tracking.tracker import TrackedRun as TrackedRun
    from plugrl.core.run.tracking.tracker import Tracker as Tracker
    from plugrl.core.sandbox.jobs import ProgramJob as ProgramJob
    from plugrl.core.sandbox.jobs import ProgramLimits as ProgramLimits
    from plugrl.core.sandbox.jobs import ProgramOutcome as ProgramOutcome
    from plugrl.core.sandboxes import LocalSandbox as LocalSandbox
    from plugrl.core.sandboxes import Sandbox as Sandbox
    from plugrl.core.scenario import Scenario as Scenario
    from plugrl.core.scenario import ScenarioInstance as ScenarioInstance
    from plugrl.core.searcher import Searcher as Searcher
    from plugrl.core.searcher import Trial as Trial
    from plugrl.core.tensordict.agents.parts import Body as Body
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled as Labelled
    from plugrl.core.tensordict.environment.layout import Layout as Layout
    from plugrl.core.tensordict.environment.message_space import MessageSpace as MessageSpace
    from plugrl.core.tensordict.environment.protocol_environment import (
        ProtocolEnvironment as ProtocolEnvironment,
    )
    from plugrl.core.tensordict.environment.tensor_environment import (
        TensorEnvironment as TensorEnvironment,
    )
    from plugrl.core.tensordict.environment.vector_environment import AgentSpaces as AgentSpaces
    from plugrl.core.tensordict.environment.vector_environment import AgentStep as AgentStep
    from plugrl.core.tensordict.environment.vector_environment import (
        VectorEnvironment as VectorEnvironment,
    )
    from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage as GeneralisedAdvantage
    from plugrl.core.tensordict.policy import Policy as Policy
    from plugrl.core.tensordict.rl_trainer import TensorDictRlTrainer as TensorDictRlTrainer
    from plugrl.core.tensordict.trainer import IterationContext as IterationContext
    from plugrl.core.tensordict.trainer import TensorDictTrainer as TensorDictTrainer
    from plugrl.core.tensordict.trainer import TensorDictTrainerConfig as TensorDictTrainerConfig
    from plugrl.core.tensordict.trainer import attach_progress_bar as attach_progress_bar
    from plugrl.core.text.agents.agent import Agent as Agent
    from plugrl.core.text.agents.conversation import Conversation as Conversation
    from plugrl.core.text.agents.parsing import ParsedReply as ParsedReply
    from plugrl.core.text.agents.parsing import Parser as Parser
    from plugrl.core.text.agents.parsing import ToolCall as ToolCall
    from plugrl.core.text.agents.tracer import InMemoryTracer as InMemoryTracer
    from plugrl.core.text.agents.worker import AgentEvaluationTarget as AgentEvaluationTarget
    from plugrl.core.text.agents.worker import AgentRolloutWorker as AgentRolloutWorker
    from plugrl.core.text.agents.worker import (
        AgentRolloutWorkerConfig as AgentRolloutWorkerConfig,
    )
    from plugrl.core.text.batch import Batch as Batch
    from plugrl.core.text.batch import (
        compute_position_id_with_mask as compute_position_id_with_mask,
    )
    from plugrl.core.text.batch import padding_data as padding_data
    from plugrl.core.text.dialogue.algorithm import HarnessAlgorithm as HarnessAlgorithm
    from plugrl.core.text.dialogue.configuration import DialogueConfig as DialogueConfig
    from plugrl.core.text.dialogue.dialogue import Dialogue as Dialogue
    from plugrl.core.text.dialogue.environment import DialogueEnvironment as DialogueEnvironment
    from plugrl.core.text.dialogue.environment import Environment as Environment
    from plugrl.core.text.dialogue.evaluation.evaluation import (
        evaluate_red_team as evaluate_red_team,
    )
    from plugrl.core.text.dialogue.harness import Harness as Harness
    from plugrl.core.text.dialogue.language_models import LanguageModelSystem as LanguageModelSystem
    from plugrl.core.text.dialogue.scorer import Score as Score
    from plugrl.core.text.dialogue.scorer import Scorer as Scorer
    from plugrl.core.text.dialogue.scorer import ScorerConfig as ScorerConfig
    from plugrl.core.text.dialogue.scorer import make_scorer as make_scorer
    from plugrl.core.text.dialogue.system import System as System
    from plugrl.core.text.dialogue.tree import RolloutNode as RolloutNode
    from plugrl.core.text.dialogue.tree import RolloutTree as RolloutTree
    from plugrl.core.text.evaluate.evaluator import BaseEvaluationTarget as BaseEvaluationTarget
    from plugrl.core.text.evaluate.evaluator import EvaluationRunResult as EvaluationRunResult
    from plugrl.core.text.evaluate.evaluator import Evaluator as Evaluator
    from plugrl.core.text.inference.requests import Completion as Completion
    from plugrl.core.text.inference.requests import GenerationRequest as GenerationRequest
    from plugrl.core.text.inference.sampling import SamplingParams as SamplingParams
    from plugrl.core.text.inference.services import BaseTrainService as BaseTrainService
    from plugrl.core.text.inference.services import InferenceService as InferenceService
    from plugrl.core.text.inference.services import ModelSpec as ModelSpec
    from plugrl.core.text.inference.services import TrainService as TrainService
    from plugrl.core.text.inference.tokenizer import Tokenizer as Tokenizer
    from plugrl.core.text.jobs.fine_tuning import FineTuneConfig as FineTuneConfig
    from plugrl.core.text.jobs.fine_tuning import FineTuneService as FineTuneService
    from plugrl.core.text.jobs.fine_tuning import JobContext as JobContext
    from plugrl.core.text.jobs.fine_tuning import JobStatus as JobStatus
    from plugrl.core.text.jobs.fine_tuning import PreferenceExample as PreferenceExample
    from plugrl.core.text.jobs.fine_tuning import SupervisedExample as SupervisedExample
    from plugrl.core.text.jobs.model_groups import SharedModelGroup as SharedModelGroup
    from plugrl.core.text.learn.advantages import group_numbers as group_numbers
    from plugrl.core.text.learn.losses import WeightedLoss as WeightedLoss
    from plugrl.core.text.learn.losses import masked_sum as masked_sum
    from plugrl.core.text.learn.optimizer import AdamParams as AdamParams
    from plugrl.core.text.learn.optimizer import OptimizerConfig as OptimizerConfig
    from plugrl.core.text.remote.service import NAMED_LOSSES as NAMED_LOSSES
    from plugrl.core.text.remote.service import Datum as Datum
    from plugrl.core.text.remote.service import ForwardBackward as ForwardBackward
    from plugrl.core.text.remote.service import NamedLoss as NamedLoss
    from plugrl.core.text.remote.service import RemoteTrainService as RemoteTrainService
    from plugrl.core.text.remote_api import RemoteAlgorithmConfig as RemoteAlgorithmConfig
    from plugrl.core.text.remote_api import RemoteApiTrainer as RemoteApiTrainer
    from plugrl.core.text.remote_api import RemoteApiTrainerConfig as RemoteApiTrainerConfig
    from plugrl.core.text.remote_api import RemoteLossConfig as RemoteLossConfig
    from plugrl.core.text.rollout.processes.executor import Executor as Executor
    from plugrl.core.text.rollout.processes.executor import ExecutorConfig as ExecutorConfig
    from plugrl.core.text.rollout.processes.handle import WorkerHandle as WorkerHandle
    from plugrl.core.text.rollout.task import RolloutTask as RolloutTask
    from plugrl.core.text.rollout.worker import RolloutWorker as RolloutWorker
    from plugrl.core.text.rollout.worker import RolloutWorkerConfig as RolloutWorkerConfig
    from plugrl.core.text.rollout.worker import trajectory_of as trajectory_of
    from plugrl.core.text.self_hosted import AlgorithmConfig as AlgorithmConfig
    from plugrl.core.text.self_hosted import SelfHostedTrainer as SelfHostedTrainer
    from plugrl.core.text.self_hosted import SelfHostedTrainerConfig as SelfHostedTrainerConfig
    from plugrl.core.text.staged.examples import supervised_examples as supervised_examples
    from plugrl.core.text.staged.trainer import PureTextRlTrainer as PureTextRlTrainer
    from plugrl.core.text.trajectory import Trajectory as Trajectory
    from plugrl.core.text.trajectory_functions import (
        compute_grpo_advantage_for_trajectories as compute_grpo_advantage_for_trajectories,
    )
    from plugrl.core.text.trajectory_functions import log_grpo_metrics as log_grpo_metrics
    from plugrl.core.text.trajectory_functions import log_rollout_metrics as log_rollout_metrics
    from plugrl.core.text.trajectory_trainer import TrajectoryTrainer as TrajectoryTrainer
    from plugrl.core.text.trajectory_trainer import (
        TrajectoryTrainerConfig as TrajectoryTrainerConfig,
    )
    from plugrl.core.trainer import Capabilities as Capabilities
    from plugrl.core.trainer import Trainer as Trainer
    from plugrl.core.trainer import TrainerContext as TrainerContext
    from plugrl.core.trainer import TrainingResult as TrainingResult
    from plugrl.results import RunResult as RunResult
    from plugrl.results import load_run as load_run
    from plugrl.trainers.harness import HarnessTrainer as HarnessTrainer
    from plugrl.trainers.harness import TrainingConfiguration as TrainingConfiguration
    from plugrl.trainers.hf_ast import HFASTConfiguration as HFASTConfiguration
    from plugrl.trainers.hf_ast import HFASTTrainer as HFASTTrainer

_MODULES = {
    "plugrl.api": ("DPO", "DQN", "GRPO", "PPO", "SAC", "SFT", "TD3", "resume", "train"),
    "plugrl.core.component": ("Component", "NoConfig"),
    "plugrl.core.config.preflight": ("Preflight",),
    "plugrl.core.config.schemas.schema": ("component", "described"),
    "plugrl.core.config.view": ("ConfigView", "ExperimentSettings", "HyperParameters"),
    "plugrl.core.errors": (
        "ConfigError",
        "ContractError",
        "PluginError",
        "PlugrlDeprecationWarning",
        "PlugrlError",
        "RunError",
        "StopRun",
        "UsageError",
    ),
    "plugrl.core.hub.hub": ("DataSetName", "Hub", "Snapshot"),
    "plugrl.core.launch.launcher": ("LaunchJob", "LaunchStatus", "Launcher"),
    "plugrl.core.plugins.hookspecs": ("HOOK_API", "hookimpl"),
    "plugrl.core.protocol.nested_array_dict": ("NestedArrayDict",),
    "plugrl.core.protocol.protocol": ("Protocol", "make_protocol"),
    "plugrl.core.protocol.config": ("ProtocolConfig", "ProtocolRoundsConfig"),
    "plugrl.core.protocol.state": (
        "ProtocolOutcome",
        "ProtocolSignals",
        "ProtocolState",
        "Tally",
        "Verdict",
    ),
    "plugrl.core.plugins.registry": (
        "Registry",
        "register_advantage",
        "register_body",
        "register_data_map",
        "register_dialogue_environment",
        "register_environment",
        "register_evaluator",
        "register_executor",
        "register_fine_tune_service",
        "register_harness_algorithm",
        "register_hub",
        "register_inference_service",
        "register_launcher",
        "register_loss",
        "register_parser",
        "register_protocol",
        "register_rollout_worker",
        "register_sandbox",
        "register_scenario",
        "register_scorer",
        "register_searcher",
        "register_tracker",
        "register_train_service",
        "register_trainer",
    ),
    "plugrl.core.run.run": ("Run",),
    "plugrl.core.run.tracking.tracker": ("TrackedRun", "Tracker"),
    "plugrl.core.sandbox.jobs": ("ProgramJob", "ProgramLimits", "ProgramOutcome"),
    "plugrl.core.sandboxes": ("LocalSandbox", "Sandbox"),
    "plugrl.core.scenario": ("Scenario", "ScenarioInstance"),
    "plugrl.core.searcher": ("Searcher", "Trial"),
    "plugrl.core.tensordict.learn.advantages": ("GeneralisedAdvantage",),
    "plugrl.core.tensordict.environment.vector_environment": (
        "AgentSpaces",
        "AgentStep",
        "VectorEnvironment",
    ),
    "plugrl.core.tensordict.environment.tensor_environment": ("TensorEnvironment",),
    "plugrl.core.tensordict.environment.labelled_dataset": ("Labelled",),
    "plugrl.core.tensordict.environment.layout": ("Layout",),
    "plugrl.core.tensordict.environment.message_space": ("MessageSpace",),
    "plugrl.core.tensordict.agents.parts": ("Body",),
    "plugrl.core.tensordict.policy": ("Policy",),
    "plugrl.core.tensordict.environment.protocol_environment": ("ProtocolEnvironment",),
    "plugrl.core.tensordict.rl_trainer": ("TensorDictRlTrainer",),
    "plugrl.core.tensordict.trainer": (
        "IterationContext",
        "TensorDictTrainer",
        "TensorDictTrainerConfig",
        "attach_progress_bar",
    ),
    "plugrl.core.text.learn.advantages": ("group_numbers",),
    "plugrl.core.text.agents.agent": ("Agent",),
    "plugrl.core.text.agents.conversation": ("Conversation",),
    "plugrl.core.text.agents.parsing": ("ParsedReply", "Parser", "ToolCall"),
    "plugrl.core.text.agents.tracer": ("InMemoryTracer",),
    "plugrl.core.text.agents.worker": (
        "AgentEvaluationTarget",
        "AgentRolloutWorker",
        "AgentRolloutWorkerConfig",
    ),
    "plugrl.core.text.batch": ("Batch", "compute_position_id_with_mask", "padding_data"),
    "plugrl.core.text.evaluate.evaluator": (
        "BaseEvaluationTarget",
        "EvaluationRunResult",
        "Evaluator",
    ),
    "plugrl.core.text.jobs.fine_tuning": (
        "FineTuneConfig",
        "FineTuneService",
        "JobContext",
        "JobStatus",
        "PreferenceExample",
        "SupervisedExample",
    ),
    "plugrl.core.text.trajectory_functions": (
        "compute_grpo_advantage_for_trajectories",
        "log_grpo_metrics",
        "log_rollout_metrics",
    ),
    "plugrl.core.text.learn.losses": ("WeightedLoss", "masked_sum"),
    "plugrl.core.text.jobs.model_groups": ("SharedModelGroup",),
    "plugrl.core.text.learn.optimizer": ("AdamParams", "OptimizerConfig"),
    "plugrl.core.text.staged.examples": ("supervised_examples",),
    "plugrl.core.text.staged.trainer": ("PureTextRlTrainer",),
    "plugrl.core.text.dialogue.algorithm": ("HarnessAlgorithm",),
    "plugrl.core.text.dialogue.configuration": ("DialogueConfig",),
    "plugrl.core.text.dialogue.dialogue": ("Dialogue",),
    "plugrl.core.text.dialogue.environment": ("DialogueEnvironment", "Environment"),
    "plugrl.core.text.dialogue.evaluation.evaluation": ("evaluate_red_team",),
    "plugrl.core.text.dialogue.harness": ("Harness",),
    "plugrl.core.text.dialogue.language_models": ("LanguageModelSystem",),
    "plugrl.core.text.dialogue.scorer": ("Score", "Scorer", "ScorerConfig", "make_scorer"),
    "plugrl.core.text.dialogue.system": ("System",),
    "plugrl.core.text.dialogue.tree": ("RolloutNode", "RolloutTree"),
    "plugrl.core.text.remote_api": (
        "RemoteAlgorithmConfig",
        "RemoteApiTrainer",
        "RemoteApiTrainerConfig",
        "RemoteLossConfig",
    ),
    "plugrl.core.text.remote.service": (
        "NAMED_LOSSES",
        "Datum",
        "ForwardBackward",
        "NamedLoss",
        "RemoteTrainService",
    ),
    "plugrl.core.text.inference.sampling": ("SamplingParams",),
    "plugrl.core.text.self_hosted": (
        "AlgorithmConfig",
        "SelfHostedTrainer",
        "SelfHostedTrainerConfig",
    ),
    "plugrl.core.text.inference.requests": ("Completion", "GenerationRequest"),
    "plugrl.core.text.inference.services": (
        "BaseTrainService",
        "InferenceService",
        "ModelSpec",
        "TrainService",
    ),
    "plugrl.core.text.inference.tokenizer": ("Tokenizer",),
    "plugrl.core.text.trajectory": ("Trajectory",),
    "plugrl.core.text.trajectory_trainer": ("TrajectoryTrainer", "TrajectoryTrainerConfig"),
    "plugrl.core.text.rollout.processes.executor": ("Executor", "ExecutorConfig"),
    "plugrl.core.text.rollout.processes.handle": ("WorkerHandle",),
    "plugrl.core.text.rollout.task": ("RolloutTask",),
    "plugrl.core.text.rollout.worker": ("RolloutWorker", "RolloutWorkerConfig", "trajectory_of"),
    "plugrl.core.trainer": ("Capabilities", "Trainer", "TrainerContext", "TrainingResult"),
    "plugrl.results": ("RunResult", "load_run"),
    "plugrl.trainers.harness": ("HarnessTrainer", "TrainingConfiguration"),
    "plugrl.trainers.hf_ast": ("HFASTConfiguration", "HFASTTrainer"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name from the module that holds it."""
    if name not in _HOME:
        from plugrl.core.foreign_names import IMPORTS

        if name in IMPORTS:
            # An AttributeError would become one that says nothing in ``from plugrl import NAME``.
            raise ImportError(f"plugrl has no {name}; write {IMPORTS[name]}")
        raise AttributeError(f"module 'plugrl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
