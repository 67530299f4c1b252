"""The pages for people who come from other systems: every row is tried, and says what happens."""

from __future__ import annotations

import re

import pytest

from tests.docs.name_tables import NamePage

PRELUDE = """
import numpy as np, torch, plugrl
from contextlib import ExitStack
from plugrl import *
from plugrl.core.config.check import Checker
from plugrl.core.plugins.registry import default_registry
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.environment.labelled_dataset import Labelled
from tests.core.tensordict.counting import Counting

def instance():
    return ScenarioInstance(
        name="counting", make_environment=lambda split: Counting([4, 4]),
        make_labelled=lambda split: Labelled({"x": np.zeros((4, 1))}, np.array([0, 1, 2, 1])),
        datasets={"train": [{"prompt": "a"}]},
    )

class Loop(TensorDictTrainer):
    def train(self): ...

def loop(**sections):
    return Loop(scenario_instance=instance(), hyper_params=sections)

class Loss(torch.nn.Module):
    def forward(self, td): return {"loss_objective": torch.zeros(())}

class Rl(TensorDictRlTrainer):
    def _get_loss_module_and_gae(self): return Loss(), None

def has(kind, *names):
    for name in names:
        default_registry().resolve(kind, name)

def accepts(schema, **section):
    checker = Checker(); checker.value(section, schema, ("section",), {})
    if checker.faults: raise ConfigError(str(checker.faults))

def overridden(base, name, method=lambda self, *args, **kwargs: None):
    assert hasattr(base, name), name
    return type("Mine", (base,), {name: method})
"""

#: By page and name: what is written there, and for "instead" what is written here.
NIP = {
    '`@register_trainer("name")`': (
        "@register_trainer('mine_of_nip')\nclass Mine(Loop): ...", None),
    "`TrainerType`": ("from plugrl import TrainerType", "register_trainer('x')"),
    "`SubParameters`": (
        "from plugrl import SubParameters",
        "import dataclasses\n"
        "Config = dataclasses.make_dataclass('Config', [('k', int, 3)])\n"
        "assert type('Mine', (Loop,), {'Config': Config})({'k': 4}).config.k == 4"),
    "`Trainer`, `train(self)`": ("type('Mine', (Trainer,), {'train': lambda self: None, "
        "'Config': TensorDictTrainerConfig})({}).train()", None),
    "`TensorDictTrainer`": ("loop().train()", None),
    "`TensorDictRlTrainer`": ("Rl(scenario_instance=instance())", None),
    "`_get_loss_module_and_gae(self)`": ("Rl({})._get_loss_module_and_gae()", None),
    "`Objective`": ("from plugrl import Objective", "Loss()({})"),
    "`make_value_estimator(ValueEstimators.GAE)`": (
        "from torchrl.objectives import ClipPPOLoss, ValueEstimators\n"
        "agent = loop().agents['agent']\n"
        "loss = ClipPPOLoss(agent.policy_operator, agent.value_operator)\n"
        "loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.9)\n"
        "assert loss.value_estimator is not None", None),
    "`Objective.backward(loss_vals)`": (
        "own = type('Own', (Loss,), {'backward': lambda self, losses: None})()\n"
        "mine = overridden(Rl, '_get_loss_module_and_gae', lambda self: (own, None))\n"
        "mine(scenario_instance=instance(), hyper_params={'rl': {'num_iterations': 0}}).train()",
        "assert 'loss_objective' in Loss()({})"),
    "`_run_train_loop`, `_run_test_loop`": (
        "overridden(Rl, '_run_train_loop'); overridden(Rl, '_run_test_loop')", None),
    "`@attach_progress_bar(...)`": (
        "mine = overridden(Loop, 'train', attach_progress_bar(lambda self: 3)("
        "lambda self, iteration_context: iteration_context.num_iterations))\n"
        "assert mine(scenario_instance=instance()).train() == 3", None),
    "`IterationContext`": (
        "context = IterationContext(loop(), 3)\n"
        "context.set_description('Training'); context.step(); context.close()", None),
    "`_build_train_context(stack)`, `_build_test_context(stack)`": (
        "with ExitStack() as stack:\n"
        "    loop()._build_train_context(stack); loop()._build_test_context(stack)", None),
    "`get_total_num_iterations()`": ("assert loop().get_total_num_iterations() == 0", None),
    '`trainer_type = "rl"`, `"solo_agent"`': (
        "type('Mine', (Loop,), {'trainer_type': 'solo_agent'})", None),
    "another `trainer_type`": (
        "type('Mine', (Loop,), {'trainer_type': 'x'})",
        "type('Mine', (Loop,), {'trainer_type': 'x', '_agent_parts': lambda self: {}})"),
    "`use_critic`": ("type('Mine', (Loop,), {'use_critic': False})", None),
    "`_build_operators`, `_get_data_collectors`, `_get_replay_buffer`": (
        "type('Mine', (Rl,), {'_build_operators': lambda self: None})", "Rl({})"),
    "`_pretrain_agents`": (
        "type('Mine', (Rl,), {'_pretrain_agents': lambda self: None})",
        "has('trainer', 'sequence', 'solo_agent')"),
    "`_get_log_stats` of a `TensorDictRlTrainer`": (
        "type('Mine', (Rl,), {'_get_log_stats': lambda self, td: {}})",
        "overridden(Rl, '_run_iteration')"),
    "`save_checkpoint`, `load_and_set_state_from_checkpoint`, `self.state`": (
        "loop().state",
        "overridden(Rl, 'state_dict'); overridden(Rl, 'load_state_dict')"),
    "`run_experiment(hyper_params)`": ("from plugrl import run_experiment", "plugrl.train"),
    "`self.hyper_params.rl.num_iterations`": ("assert loop().hyper_params.rl.num_iterations", None),
    "`self.hyper_params.ppo` of a trainer of your own": (
        "from plugrl.trainers.vanilla_ppo import PpoConfig\n"
        "mine = type('Mine', (Rl,), {'sections': {**Rl.sections, 'ppo': PpoConfig}})\n"
        "assert mine(scenario_instance=instance()).hyper_params.ppo.clip_epsilon == 0.2", None),
    '`hyper_params.get("rl.lr")`, `hyper_params["rl.lr"]`': (
        "params = loop().hyper_params\n"
        "assert params['rl.lr'] == params.get('rl.lr') == params.rl.lr", None),
    "`HyperParameters({...})`": (
        "given = HyperParameters({'rl': {'lr': 0.5}})\n"
        "assert Loop(scenario_instance=instance(), hyper_params=given).hyper_params.rl.lr == 0.5",
        None),
    "`self.settings`, `ExperimentSettings`": (
        "assert isinstance(loop().settings, ExperimentSettings) and loop().settings.device", None),
    "`self.scenario_instance`, `ScenarioInstance`": (
        "assert isinstance(loop().scenario_instance, plugrl.ScenarioInstance)", None),
    "`scenario_instance.agents[name]`": (
        "agent = loop().scenario_instance.agents['agent']\n"
        "assert agent.policy_body and agent.policy_head and agent.value_body and agent.value_head",
        None),
    "`scenario_instance.train_environment`, `.test_environment`": (
        "loop().scenario_instance.train_environment, loop().scenario_instance.test_environment",
        None),
    "`scenario_instance.train_dataset`, `.test_dataset`": (
        "instance().train_dataset", "instance().dataset('train'), instance().labelled('train')"),
    "`scenario_instance.combined_body`, `combined_policy_head`, ...": (
        "instance().combined_body", None),
    "`scenario_instance.message_regressor`": (
        "instance().message_regressor", "assert 'message_regression' in Rl.sections"),
    "`self.protocol_handler`": (
        "loop().protocol_handler", "assert PureTextRlTrainer.protocol"),
    "`self.agent_names` of a `TensorDictTrainer`": (
        "loop().agent_names", "assert list(loop().agents) == ['agent']"),
    "`agents.NAME.is_random`, `agent_lr_factor`, `update_schedule`": (
        "loop(agents={'agent': {'is_random': True, 'agent_lr_factor': {'actor': 0.5},"
        " 'update_schedule': {'type': 'constant'}}, '_default': {}}).hyper_params", None),
    "`load_checkpoint_and_parameters`": (
        "loop(agents={'agent': {'load_checkpoint_and_parameters': True}}).hyper_params",
        "loop(agents={'agent': {'load_from': 'runs/x'}}).hyper_params"),
    "`PureTextRlTrainer`": ("assert issubclass(PureTextRlTrainer, Trainer)", None),
    "`_stage_create_fine_tune_jobs(self, rollouts)`": (
        "overridden(PureTextRlTrainer, '_stage_create_fine_tune_jobs')", None),
    "`_sample_rollouts(self, iteration)`": (
        "overridden(PureTextRlTrainer, '_sample_rollouts')", None),
    "`_get_log_stats(self, rollouts, train=...)`": (
        "overridden(PureTextRlTrainer, '_get_log_stats')", None),
    "`_stage_sample_rollouts`": (
        "type('Mine', (PureTextRlTrainer,), {'_stage_sample_rollouts': lambda self: None,"
        " '_stage_create_fine_tune_jobs': lambda self, rollouts: None})",
        "overridden(PureTextRlTrainer, '_sample_rollouts')"),
    "`NestedArrayDict`": ("NestedArrayDict({'a': np.zeros(2)}, batch_size=(2,))", None),
    "`PureTextSharedModelGroup`": ("from plugrl import PureTextSharedModelGroup",
        "SharedModelGroup"),
    "`create_supervised_fine_tune_job`, `create_dpo_fine_tune_job`": (
        "SharedModelGroup.create_supervised_fine_tune_job, "
        "SharedModelGroup.create_dpo_fine_tune_job, SupervisedExample, PreferenceExample", None),
    "`get_fine_tune_job_status`, `switch_to_next_model`": (
        "SharedModelGroup.get_fine_tune_job_status, SharedModelGroup.switch_to_next_model", None),
    "`text_rl.test_scheme`": (
        "for scheme in ('none', 'all', 'last', 'first_and_last'):\n"
        "    accepts(PureTextRlTrainer.sections['text_rl'], test_scheme=scheme)", None),
    "`trainer: pure_text_ei`, `pure_text_malt`": (
        "has('trainer', 'pure_text_ei')", "has('trainer', 'ei_pure_text', 'malt_pure_text')"),
    "`dataset`": (
        "loop(dataset='eru10000').hyper_params",
        "default_registry().load(default_registry().resolve('scenario', 'graph_isomorphism'))("
        "{'train_size': 8, 'test_size': 8})"),
    "`interaction_protocol: nip`": (
        "loop(interaction_protocol='nip').hyper_params",
        "assert make_protocol({'type': 'nip'}).agent_names"),
    "`nip`, `adp`, `debate`, `mnip`, `merlin_arthur`, `solo_verifier`": (
        "has('protocol', 'nip', 'adp', 'debate', 'mnip', 'merlin_arthur', 'solo_verifier')", None),
    "`multi_channel_test`": (
        "has('protocol', 'multi_channel_test')", "has('protocol', 'multi_channel')"),
    "`graph_isomorphism`, `image_classification`, `code_validation`": (
        "has('scenario', 'graph_isomorphism', 'image_classification', 'code_validation')", None),
    "`spg.variant`, `spg.stackelberg_sequence`": (
        "from plugrl.trainers.spg import SpgTrainer\n"
        "accepts(SpgTrainer.sections['spg'], variant='lola', stackelberg_sequence=[['a'], ['b']])",
        None),
    "`vanilla_ppo`, `reinforce`, `spg`, `solo_agent`": (
        "has('trainer', 'vanilla_ppo', 'reinforce', 'spg', 'solo_agent')", None),
}  # fmt: skip

_ASTRA = """
from testers import PolicyGradient, make_environment, make_system
from plugrl.trainers.hf_ast import HFASTTrainer
from plugrl.trainers.harness import HarnessTrainer

def config(cls=TrainingConfiguration, **more):
    return cls(**{"training_steps": 1, "num_episodes_per_experience": 1, **more})

def trainer(cls=HarnessTrainer, **more):
    return cls(config=config(**more), environment=make_environment(make_system()),
               algorithm=PolicyGradient())

def harness():
    return Harness(make_environment(make_system()), PolicyGradient(), batch_size=4)
"""

ASTRA = {
    "`Trainer(config=, environment=, algorithm=)`": (
        "type('Mine', (Trainer,), {'train': lambda self: None})("
        "config=config(), environment=None, algorithm=None)",
        "trainer()"),
    "`Trainer.train()`, overridden": (
        "mine = type('Mine', (HarnessTrainer,), {'train': lambda self: (self.config, self.harness,"
        " self.optimizer, self.environment, self.algorithm)})\n"
        "assert all(trainer(mine).train())", None),
    "`TrainingConfiguration(...)`": (
        "TrainingConfiguration(lr=1e-5, batch_size=4, optimizer='adamw',"
        " gradient_accumulation_steps=1, training_steps=10, num_episodes_per_experience=2)", None),
    "`class MyConfig(TrainingConfiguration)` with fields of its own": (
        "class MyConfig(TrainingConfiguration):\n"
        "    def __init__(self):\n"
        "        super().__init__(lr=1e-5, batch_size=4)\n"
        "        self.eval_every = 100\n"
        "made = HarnessTrainer(MyConfig(), make_environment(make_system()), PolicyGradient())\n"
        "assert made.config.eval_every == 100", None),
    '`optimizer="adam"`, `"adamw"`, `"sgd"`, `"rmsprop"`, `"adagrad"`': (
        "for name in ('adam', 'adamw', 'sgd', 'rmsprop', 'adagrad'): config(optimizer=name)", None),
    "`HFASTTrainer(..., dev_prompts=, eval_every=, ckpt_dir=)`": (
        "HFASTTrainer(config=config(), environment=make_environment(make_system()),"
        " algorithm=PolicyGradient(), dev_prompts=['abc'], eval_every=100, ckpt_dir='none')", None),
    "`HFASTConfiguration()`": ("HFASTConfiguration()", None),
    "`_save_hf(self, step)`, `_eval_dev(self, step, tag)`": (
        "type('Mine', (HarnessTrainer,), {'_save_hf': lambda self, step: None,"
        " '_eval_dev': lambda self, step, tag='dev': None})\noverridden(HFASTTrainer, 'eval_dev')",
        None),
    "`scheduler.step()` in `train()`": (
        "torch.optim.lr_scheduler.ConstantLR(trainer().optimizer)\n"
        "overridden(HFASTTrainer, 'learning_rate')", None),
    "`eval_epoch` of an `HFASTTrainer`": (
        "HFASTTrainer.eval_epoch", "overridden(HFASTTrainer, 'eval_dev')"),
    "`gradient_accumulation_steps`": (
        "assert trainer(gradient_accumulation_steps=2).config.gradient_accumulation_steps == 2",
        None),
    "`seed`": ("HarnessTrainer(config(), make_environment(make_system()), PolicyGradient(),"
        " seed=1)", None),
    "`Harness(environment, algorithm)`": ("harness()", None),
    "`harness.experience()`": ("assert len(list(harness().experience()))", None),
    "`loss, step_logs = harness.step(batch)`": (
        "made = harness(); loss, step_logs = made.step(next(iter(made.experience())))\n"
        "assert loss.requires_grad and step_logs", None),
    "`harness.log_current_step(...)`": ("harness().log_current_step({})", "PolicyGradient().step"),
    "`Algorithm`": ("from plugrl import Algorithm",
        "HarnessAlgorithm.flatten, HarnessAlgorithm.collate_fn, HarnessAlgorithm.step"),
    "`DPO(system)`, `IPO(system)`, `PPO(system)`": (
        "plugrl.DPO(make_system())",
        "has('harness_algorithm', 'dpo', 'ipo', 'ppo', 'grpo')\n"
        "section = {'type': 'dpo', 'beta': 0.1}\n"
        "assert HarnessTrainer({'algorithm': section})._make_algorithm(section)"),
    "`system._get_tester_logprobs_and_validate(...)`": (
        "make_system()._get_tester_logprobs_and_validate([], [])", "make_system().log_probs"),
    "`ASTEnvironment`, `ASTSampler`": (
        "from plugrl import ASTEnvironment",
        "DialogueEnvironment({'tree_width': 2, 'tree_depth': 3}, prompts=['abc'])"),
    "`Environment`, `Sampler`": (
        "from plugrl import Sampler", "Environment.rollouts, Environment.eval_rollouts"),
    "`environment.rollout(seed)`": (
        "made = make_environment(make_system())\n"
        "assert made.rollout(7) == made.rollout(7)", None),
    "`Graph`, `Node`": ("from plugrl import Graph",
        "RolloutTree, RolloutNode(Dialogue('a'), probe='b').probe"),
    "`HFASTProblem`, `HFASTSystem`": (
        "from plugrl import HFASTProblem", "assert isinstance(make_system(), LanguageModelSystem)"),
    "`Problem`, `ASTSystem`": (
        "from plugrl import Problem", "System.probes, System.responses, System.log_probs"),
    "`problem.attacker.save_pretrained(folder)`, `problem.tokenizer`": (
        "made = make_system()\n"
        "made.attacker.save_pretrained, made.tester.save_pretrained, "
        "made.tokenizer.save_pretrained", None),
    "`problem.advance(...)`": (
        "make_system().advance('', '', '')", "overridden(DialogueEnvironment, 'advance')"),
    "`problem.reward(...)`": (
        "make_system().reward([], [], [])", "overridden(DialogueEnvironment, 'reward')"),
    "`ppl_weight`": (
        "DialogueEnvironment({'ppl_weight': 0.1})",
        "DialogueEnvironment({'reward': {'fluency': 0.1}, 'baseline': 'baseline'})"),
    "`Moderator`, `moderate(x)`": (
        "from plugrl import Moderator",
        "type('Mine', (Scorer,), {'score': lambda self, dialogues: [0.0] * len(dialogues)})()\n"
        "make_environment(make_system(), scorer=lambda dialogue: 0.5)"),
    "`DetoxifyScorer`": ("from plugrl import DetoxifyScorer", "has('scorer', 'classifier')"),
    "`LlamaGuardScorer`": ("from plugrl import LlamaGuardScorer", "has('scorer', 'guard')"),
    "`ASTEvaluator(...).evaluate()`": (
        "from plugrl import ASTEvaluator",
        "evaluate_red_team(make_environment(make_system()), ['abc'], attempts=1)"),
    "`HFEvaluationSystem`": ("from plugrl import HFEvaluationSystem", "plugrl.load_run"),
    "`ADV_BENCH_PROMPTS`, `CONVOKIT_REDDIT_TRAIN`": ("from plugrl import ADV_BENCH_PROMPTS", None),
    "`from astra_rl.logging import logger`": (
        "from plugrl import logger", "import logging; logging.getLogger('plugrl.mine')"),
    "`use_wandb`, `ASTRAWandbLogger`": (
        "Harness(make_environment(make_system()), PolicyGradient(), use_wandb=True)",
        "has('tracker', 'wandb')"),
    "`astra train`": (
        "import shutil; assert shutil.which('astra')",
        "import plugrl.cli; assert 'train' in {row.name for row in plugrl.cli.COMMANDS}"),
    "`astra evaluate`": (
        "import shutil; assert shutil.which('astra')",
        "assert 'red_team' in HarnessTrainer.reports"),
}  # fmt: skip

_NEXRL = """
import logging
from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer
from plugrl.testing.tiny import merged
from plugrl.core.experiment import prepare
from plugrl.core.text.rollout.task import CURRENT
from plugrl.core.text.rollout.validate_rollout import TokenLimits, validate_trajectories
from plugrl.trainers.remote_api_grpo import RemoteApiGrpoTrainer

def trajectories():
    return [Trajectory([2, 3, 4], [0, 1, 1], logprobs=[0.0, -1.0, -1.0], reward=r, group_id="g",
                       run_id=i) for i, r in enumerate((1.0, 0.0))]

def batch():
    return Batch.from_trajectories(trajectories())

def task():
    return RolloutTask(data={"prompt": "1+1=", "question": "q"}, item=0, run_id=0, group_id="g",
                       is_val=False, sampling=SamplingParams(), ask=None, tokenizers={})

ADDER = {
    "defaults": ["common/adder"], "data": {"batch_size": 2, "rollout_repeat_n": 2},
    "models": {"policy": {"train": "local"}}, "trainer": "self_hosted_grpo",
}

def checked(**sections):
    return prepare(merged(ADDER, sections))

def returned(value):
    limits = {"policy": TokenLimits(vocabulary=12, context=32)}
    return validate_trajectories(Worker({}), value, limits)

class Worker(AgentRolloutWorker): ...
class Judge(Evaluator):
    def __init__(self):
        super().__init__()
    def evaluate(self, data, evaluation_target):
        return EvaluationRunResult(reward=float(evaluation_target.final_answer == data["answer"]))
class Mine(SelfHostedTrainer):
    def _prepare_batch(self, batch): return batch, {}
"""

NEXRL = {
    "`SelfHostedTrainer`, `_prepare_batch(self, batch)`": (
        "Mine({})._prepare_batch(batch())", None),
    "`_prepare_batch(self, batch, metrics)`": (
        "type('Own', (SelfHostedTrainer,), {'_prepare_batch': lambda self, batch, metrics: 0})",
        "type('Own', (SelfHostedTrainer,), {'_prepare_batch': lambda self, batch: (batch, {})})"),
    "`RemoteApiTrainer`, `_prepare_trajectories(self, trajectories, metrics)`": (
        "type('Own', (RemoteApiTrainer,), {'_prepare_trajectories':"
        " lambda self, trajectories, metrics: trajectories})", None),
    "`BaseTrainer`": ("from plugrl import BaseTrainer", "TrajectoryTrainer"),
    "`train(self, trajectories)`": (
        "type('Own', (TrajectoryTrainer,), {'train': lambda self, trajectories: {}})",
        "type('Own', (TrajectoryTrainer,), {'train_step': lambda self, trajectories: {}})"),
    "`SelfHostedGrpoTrainer`": ("from plugrl import SelfHostedGrpoTrainer",
        "SelfHostedGrpoTrainer"),
    "`RemoteApiGrpoTrainer`, `RemoteApiCrossEntropyTrainer`": (
        "from plugrl import RemoteApiGrpoTrainer",
        "from plugrl.trainers.remote_api_grpo import RemoteApiGrpoTrainer\n"
        "from plugrl.trainers.remote_api_cross_entropy import RemoteApiCrossEntropyTrainer"),
    "`MODULE_REGISTRY` of the controller": (
        "from plugrl.core.controller import MODULE_REGISTRY", "register_trainer('my_custom')"),
    "`initialize_workers`, `set_module_references`": (
        "type('Own', (Mine,), {'initialize_workers': lambda self: None})",
        "overridden(Mine, 'bind')"),
    "`run`, `_main_loop`": (
        "type('Own', (Mine,), {'_main_loop': lambda self: None})",
        "overridden(Mine, 'train_step')"),
    "`stop`": ("type('Own', (Mine,), {'stop': lambda self: None})", "StopRun('enough')"),
    "`_apply_kl_penalty` that `_prepare_batch` calls": (
        "class Own(SelfHostedTrainer):\n"
        "    def _prepare_batch(self, batch): return self._apply_kl_penalty(batch, 0.1), {}\n"
        "    def _apply_kl_penalty(self, batch, beta): return batch\n"
        "Own({})._prepare_batch(batch())", None),
    "`_apply_kl_penalty`, `_compute_data_metrics`, overridden alone": (
        "type('Own', (SelfHostedGrpoTrainer,), {'_apply_kl_penalty': lambda self, b, beta: b})",
        "SelfHostedGrpoTrainer({'algorithm': {'kl': {'reward': {'coefficient': 0.1}}}})"),
    '`self._config`, `config.algorithm.get("x", 1)`': (
        "assert Mine({'algorithm': {'x': 2}})._config.algorithm.get('x', 1) == 2", None),
    "`_log_rollout_metrics`, `_pad_token_id`, `_reward_fn`, `_compute_old_log_probs`, "
    "`_compute_advantage`": (
        "made = SelfHostedGrpoTrainer({})\n"
        "made._log_rollout_metrics(batch()), made._pad_token_id, made._reward_fn(batch())\n"
        "made._compute_advantage(batch()), made._compute_old_log_probs", None),
    "`self._activity_tracker` of a trainer": ("Mine({})._activity_tracker",
        "Mine({})._prepare_batch(batch())[1]"),
    "`self._trajectory_pool`, `self._train_step`, `self._stop_event`": (
        "Mine({})._trajectory_pool", "Mine({}).train_step"),
    "`Batch`: `values`, `metadata`, `len(batch)`": (
        "assert batch().values['input_ids'].shape[0] == len(batch().metadata['rewards'])"
        " == len(batch()) == 2", None),
    "`Batch.remove_redundant_left_padding`, `remove_redundant_right_padding`": (
        "for side in ('left', 'right'):\n"
        "    getattr(Batch, f'remove_redundant_{side}_padding')(batch(), pad_token_id=0,"
        " anchor_field='input_ids', fields=['input_ids', 'attention_mask',"
        " 'position_ids', 'loss_mask'])", None),
    "`padding_data`, `compute_position_id_with_mask`": (
        "padding_data(batch(), pad_token_id=0); compute_position_id_with_mask(torch.ones(1, 3))",
        None),
    "`log_rollout_metrics`, `log_grpo_metrics`": (
        "log_rollout_metrics(trajectories(), {}), log_grpo_metrics(trajectories(), {})", None),
    "`compute_grpo_advantage_for_trajectories`": (
        "compute_grpo_advantage_for_trajectories(trajectories(), logger=logging.getLogger('x'),"
        " use_run_ids=True)", None),
    '`Trajectory`: `traj.reward`, `traj["custom"] = 1`, `traj.get("run_id")`, `traj.advantage`': (
        "traj = trajectories()[1]; traj['custom'] = 1; traj.advantage = 0.5\n"
        "assert (traj.reward, traj['custom'], traj.get('run_id'), traj['advantage'])"
        " == (0.0, 1, 1, 0.5)", None),
    "`BaseNexAURolloutWorker`": ("from plugrl import BaseNexAURolloutWorker", "AgentRolloutWorker"),
    "`NexAUEvaluationTarget`": ("from plugrl import NexAUEvaluationTarget",
        "AgentEvaluationTarget(final_answer='a', observation=[{'trace': {}}])"),
    "`format_task_query`, `get_train_loss_mask`": (
        "overridden(AgentRolloutWorker, 'format_task_query')\n"
        "assert overridden(AgentRolloutWorker, 'get_train_loss_mask')", None),
    "`run_agent(self, task)`": (
        "overridden(AgentRolloutWorker, 'run_agent')\n"
        "assert task()['question'] == task().get('question') == {**task()}['question']", None),
    "`InMemoryTracer`, `self.child_processor`": (
        "found = []; Worker({}).child_processor(InMemoryTracer().get_trace(), found)\n"
        "assert not found", None),
    "`self._generate_tokens`, `self._put_trajectory`": (
        "assert Worker({})._generate_tokens([{'tokens': [1]}]) == [[1]]; Worker._put_trajectory",
        None),
    "`self.logger`, `self.evaluator`, `self.client`": (
        "worker = Worker({}); worker.logger.debug('x'); worker.evaluator, worker.client", None),
    '`f"{task}"`': ("f'{task()}'", "assert task().prompt == '1+1='; task().data"),
    "`self._activity_tracker` of a worker": (
        "Worker({})._activity_tracker",
        "given = task(); CURRENT.set(given); Worker({}).log_metrics({'calls': 1.0})\n"
        "CURRENT.set(None); assert given.logged == {'calls': 1.0}"),
    "`Evaluator`, `evaluate(self, data, evaluation_target)`": (
        "assert Judge().evaluate({'answer': 'a'}, BaseEvaluationTarget('a')).reward == 1.0", None),
    "`BaseEvaluationTarget(final_answer=...)`": (
        "assert BaseEvaluationTarget(final_answer='a').final_answer == 'a'", None),
    "`EvaluationRunResult(reward=, ground_truth=, metrics=, extra_info=)`": (
        "EvaluationRunResult(reward=1.0, ground_truth='a', metrics={'b': 1.0}, extra_info={})",
        None),
    "groups by `run_id`, `trajectory_pool.key_list: [run_id]`": (
        "checked(trajectory_pool={'key_list': ['run_id']})",
        "checked(trajectory_pool={'key_list': ['group_id']})"),
    "workers that return text, or a status": (
        "returned('text')",
        "sampled = Trajectory([2, 3], [0, 1], logprobs=[0.0, -1.0], versions=[-1, 0])\n"
        "assert returned(sampled) == [sampled]"),
    "`set_service_holder(service)`": (
        "RemoteApiGrpoTrainer({}).set_service_holder(object())",
        "checked(models={'policy': {'train': {'type': 'local'}}})"),
    "`trainer.teachers` with addresses": (
        "checked(trainer={'type': 'self_hosted_opd', 'teachers': ['http://x']})",
        "checked(trainer={'type': 'self_hosted_opd', 'algorithm': {'teacher': 'teacher'}},"
        " models={'teacher': {'source': '${models.policy.source}'}})"),
    "a loss function for a remote service": (
        "remote = {'type': 'remote_api_grpo', 'algorithm': {'loss_fn': lambda logp: logp}}\n"
        "checked(trainer=remote)",
        "checked(trainer={'type': 'remote_api_grpo', 'algorithm': {'loss_fn': 'ppo'}},"
        " models={'policy': {'train': 'in_process'}})"),
}  # fmt: skip

PAGES = [
    NamePage("from-nip.md", PRELUDE, NIP),
    NamePage("from-astra-rl.md", PRELUDE + _ASTRA, ASTRA),
    NamePage("second-spellings.md", PRELUDE + _NEXRL, NEXRL),
]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "name", "state"), [row for page in PAGES for row in page.params()]
)
def test_a_row_says_what_happens(page, name, state):
    page.try_row(name, state)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_every_trial_is_of_a_row(page):
    rows = [row[0] for row in page.rows]
    assert set(page.trials) == set(rows)
    assert len(set(rows)) == len(rows) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_a_row_that_is_replaced_says_with_what(page):
    assert all(len(row) == 3 and len(row[2]) > 3 for row in page.rows if row[1] != "works")
    assert all(re.fullmatch(r"[^|]+", row[0]) for row in page.rows)
