"""Names of other frameworks that mean nothing here, and what to write instead, in one table.

Keys of configurations have theirs in :mod:`plugrl.core.config.aliases`.
"""

from __future__ import annotations

from collections.abc import Mapping

_BIND = "bind(self, context), which is called once, before train"
_STEP = "train_step(self, trajectories), or train(self) for a loop of its own"
_SET_UP = "_get_loss_module_and_gae(self), or train(self) for a loop of its own"
_KL = "the options trainer.algorithm.kl.reward, or do it in _prepare_batch(self, batch)"
_RL_STATS = (
    "_run_iteration(self, iteration), which returns the metrics, and add to those of super()"
)

#: Methods and attributes of trainers.
OF_TRAINERS: Mapping[str, str] = {
    "initialize_workers": _BIND,
    "set_module_references": _BIND,
    "run": "train(self); self.run is the run, whose end_step ends a step",
    "_main_loop": _STEP,
    "stop": "raise plugrl.StopRun in a hook such as plugrl_step_end, which ends the run cleanly",
    "_apply_kl_penalty": _KL,
    "_compute_data_metrics": "the metrics into the dictionary that _prepare_batch returns",
    "_log_step": "self.run.end_step(step, metrics)",
    "_activity_tracker": "metrics into the dictionary that train_step or _prepare_batch returns",
    "_trajectory_pool": "train_step(self, trajectories), which is given what the pool has",
    "_weight_sync_controller": "weight.sync_mode; weights are synced after each train_step",
    "_train_step": "train_step(self, trajectories); the hook plugrl_step_end is told the number",
    "_total_train_steps": "self.config.total_train_steps",
    "_stop_event": "plugrl.StopRun, raised in a hook, which ends the run cleanly",
    "_use_kl_in_reward": "the options trainer.algorithm.kl.reward",
    "_train_service_client": "self.models[name].trained(), the train service of a model",
    "save_checkpoint": "state_dict(self); settings.checkpoint_every says when it is saved",
    "load_and_set_state_from_checkpoint": "load_state_dict(self, state)",
    "_initialise_state": "state_dict(self) and load_state_dict(self, state)",
    "_pretrain_agents": "trainer.phases, whose first trains with trainer.type: solo_agent",
    "_build_operators": _SET_UP,
    "_get_data_collectors": _SET_UP,
    "_get_replay_buffer": _SET_UP,
    "_get_optimizer_and_param_freezer": _SET_UP,
    "_train_on_replay_buffer": _SET_UP,
    "_train_and_test": "_run_train_loop and _run_test_loop, or train(self)",
    "_get_log_stats": _RL_STATS,
    "_stage_sample_rollouts": "_sample_rollouts(self, iteration, *, is_test=False)",
    "_stage_log_stats": "_get_log_stats(self, rollouts, *, train=True)",
    "_stage_run_test_loop": "_sample_rollouts(self, iteration, *, is_test=False)",
    "_stage_await_fine_tune_jobs": "a fine_tune_service, whose status says when a job is done",
    "_sample_rollouts_for_single_environment": "_sample_rollouts(self, iteration, *, "
    "is_test=False)",
    "protocol_handler": "self.scenario_instance, or self.protocol of a PureTextRlTrainer",
    "agent_names": "list(self.agents)",
    "num_agents": "len(self.agents)",
    "max_message_rounds": "self.hyper_params.protocol.max_message_rounds",
    "state": "state_dict(self) and load_state_dict(self, state)",
    "train_dataset": 'self.scenario_instance.dataset("train")',
    "test_dataset": 'self.scenario_instance.dataset("test")',
}

#: Methods and attributes of rollout workers.
OF_WORKERS: Mapping[str, str] = {
    "set_module_references": "__init__(self, config); an attempt is given its task",
    "initialize_workers": "__init__(self, config)",
    "run": "rollout(self, task), one attempt at one problem",
    "step": "rollout(self, task), one attempt at one problem",
    "_main_loop": "rollout(self, task), one attempt at one problem",
    "stop": "rollout(self, task); an attempt ends when it returns",
    "trace_processor": "get_train_loss_mask(self, messages); tokens are recorded as sampled",
    "trace_prefix_merge": "get_train_loss_mask(self, messages); turns that go on are one already",
    "add_loss_mask": "get_train_loss_mask(self, messages)",
    "load_agent_from_config": "rollout_worker.agent_config, the agent's file",
    "_check_and_truncate": "rollout_worker.max_response_length",
    "_activity_tracker": "self.log_metrics({name: number})",
    "_inference_client": "await task.ask(model, tokens), or task.ask_now in a plain function",
    "_trajectory_pool": "return the trajectories from rollout(self, task)",
    "_dataloader": "task.data, the problem of an attempt",
}

_TRAINERS = "from plugrl.trainers."
_ALIAS = "from plugrl import "
#: What ``from plugrl import NAME`` is answered with.
IMPORTS: Mapping[str, str] = {
    "BaseNexAURolloutWorker": _ALIAS + "AgentRolloutWorker",
    "DefaultNexAURolloutWorker": _ALIAS + "AgentRolloutWorker",
    "NexAUEvaluationTarget": _ALIAS + "AgentEvaluationTarget",
    "BaseRolloutWorker": _ALIAS + "RolloutWorker",
    "SimpleRolloutWorker": "from plugrl.scenarios.rollout_workers.single_turn import "
    "SingleTurnRolloutWorker",
    "BaseTrainer": _ALIAS + "TrajectoryTrainer",
    "SelfHostedGrpoTrainer": _TRAINERS + "self_hosted_grpo import SelfHostedGrpoTrainer",
    "RemoteApiGrpoTrainer": _TRAINERS + "remote_api_grpo import RemoteApiGrpoTrainer",
    "RemoteApiCrossEntropyTrainer": _TRAINERS
    + "remote_api_cross_entropy import RemoteApiCrossEntropyTrainer",
    "TrajectoryPool": "train_step(self, trajectories), which is given what the pool has",
    "WeightSyncController": "weight.sync_mode in the configuration",
    "PureTextSharedModelGroup": _ALIAS + "SharedModelGroup",
    "Objective": "any torch.nn.Module whose forward(td) gives loss_... scalars",
    "SubParameters": "a dataclass as the class attribute Config",
    "TrainerType": _ALIAS + 'register_trainer, and @register_trainer("name") above the class',
    "run_experiment": _ALIAS + "train, and train(configuration)",
    "prepare_experiment": _ALIAS + "train, or plugrl validate FILE to see whether all is built",
    "VanillaPpoTrainer": _TRAINERS + "vanilla_ppo import VanillaPpoTrainer",
    "ReinforceTrainer": _TRAINERS + "reinforce import ReinforceTrainer",
    "SoloAgentTrainer": _TRAINERS + "solo_agent import SoloAgentTrainer",
    "ASTSystem": _ALIAS + "LanguageModelSystem",
    "HFASTSystem": _ALIAS + "LanguageModelSystem",
    "HFASTProblem": _ALIAS + "LanguageModelSystem",
    "ASTProblem": _ALIAS + "LanguageModelSystem",
    "Problem": _ALIAS + "System",
    "Sampler": _ALIAS + "Environment",
    "ASTSampler": _ALIAS + "DialogueEnvironment",
    "ASTEnvironment": _ALIAS + "DialogueEnvironment",
    "Moderator": _ALIAS + "Scorer",
    "Algorithm": _ALIAS + "HarnessAlgorithm",
    "Graph": _ALIAS + "RolloutTree",
    "Node": _ALIAS + "RolloutNode",
    "DetoxifyScorer": "scorer: {type: classifier} in the configuration, with the model",
    "LlamaGuardScorer": "scorer: {type: guard} in the configuration, with the model",
    "ASTEvaluator": _ALIAS + "evaluate_red_team",
    "HFEvaluationSystem": _ALIAS + "load_run",
    "ADV_BENCH_PROMPTS": "scenario: {type: red_team}, which reads prompts of yours from files",
    "logger": 'logging.getLogger("plugrl.mine"), whose lines are in log.txt of the run',
}
