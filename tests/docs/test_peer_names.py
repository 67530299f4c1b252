"""The pages for people who come from Stable-Baselines3, TRL and verl: every row is tried."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.docs.name_tables import DOCS, NamePage

RECIPES = DOCS.parent / "plugrl" / "recipes"

#: Networks and environments: a form, checked; a run of a few steps; a form that must be refused.
_CONTROL = """
import functools, inspect, shutil, tempfile
import gymnasium, numpy as np, torch, plugrl
import plugrl.cli
from pathlib import Path
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry

FOLDER = tempfile.mkdtemp()
SHORT = {
    "rl": {"frames_per_batch": 64}, "validate": {"episodes": 1, "every": 1},
    "settings": {"runs_folder": FOLDER, "progress": "none"},
}

def tree(form=plugrl.PPO, environment=None, **sections):
    environment = environment or ("CartPole-v1" if form in (plugrl.PPO, plugrl.DQN) else "Pendulum-v1")
    return prepare(form(environment, **sections).config).validated.tree

def default(value, form, *path):
    found = tree(form)
    for key in path: found = found[key]
    assert found == value, found

def body(form):
    return tree(form)["agents"]["_default"]["body"]

@functools.cache
def run(): return plugrl.PPO("CartPole-v1", **SHORT).train(total_steps=64)

def has(kind, *names):
    for name in names: default_registry().resolve(kind, name)

def command(name):
    assert name in {row.name for row in plugrl.cli.COMMANDS}
"""  # noqa: E501
_SEEN = "np.zeros(4, dtype=np.float32)"

SB3 = {
    '`PPO("MlpPolicy", "CartPole-v1")`': (
        "plugrl.PPO('MlpPolicy', 'CartPole-v1')", "tree(plugrl.PPO)"),
    "`DQN`, `SAC`, `TD3`": ("tree(plugrl.DQN), tree(plugrl.SAC), tree(plugrl.TD3)", None),
    "`A2C`": ("plugrl.A2C('CartPole-v1')",
        "found = prepare({'scenario': {'type': 'gymnasium', 'id': 'CartPole-v1'},"
        " 'trainer': 'a2c'}).validated.tree['rl']\n"
        "assert (found['lr'], found['frames_per_batch'], found['lmbda']) == (3e-4, 2048, 0.95)"),
    "`DDPG`": ("plugrl.DDPG('Pendulum-v1')", None),
    "`HerReplayBuffer`": ("plugrl.HerReplayBuffer", None),
    "`RecurrentPPO`, `TQC`, `QRDQN`, `TRPO`, `ARS`, `CrossQ` of sb3-contrib": (
        "plugrl.RecurrentPPO", None),
    "`MaskablePPO` of sb3-contrib": (
        "plugrl.MaskablePPO",
        "assert prepare('tictactoe_ppo').validated.tree['trainer']['type'] == 'vanilla_ppo'"),
    "`make_vec_env(id, n_envs=8)`": (
        "plugrl.make_vec_env('CartPole-v1')",
        "assert tree(num_envs=8)['scenario']['num_envs'] == 8\n"
        "default(4, plugrl.PPO, 'scenario', 'num_envs')\n"
        "for form in (plugrl.DQN, plugrl.SAC, plugrl.TD3): default(1, form, 'scenario', 'num_envs')"
    ),
    "an environment object, `gymnasium.make(...)`": (
        "plugrl.PPO(gymnasium.make('CartPole-v1'))",
        "file = Path(FOLDER) / 'own.py'\n"
        "entry = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
        "file.write_text(f'import gymnasium\\ngymnasium.register(\"Own-v0\", {entry!r})')\n"
        "tree(environment=f'{file}:Own-v0')"),
    "`env_kwargs`": ("tree(env_kwargs={'render_mode': None})",
        "tree(scenario={'env_kwargs': {'render_mode': None}})"),
    "`wrapper_class`": ("tree(wrapper_class=gymnasium.wrappers.TimeAwareObservation)",
        "tree(scenario={'wrappers': ['gymnasium.wrappers:TimeAwareObservation']})"),
    "`DummyVecEnv`, `SubprocVecEnv`": ("plugrl.DummyVecEnv",
        "tree(scenario={'vectorization': 'sync'}); tree(scenario={'vectorization': 'async'})\n"
        "default('auto', plugrl.PPO, 'scenario', 'vectorization')"),
    "`VecNormalize(norm_obs=True, norm_reward=True)`": ("plugrl.VecNormalize",
        "tree(rl={'normalize_observations': True, 'normalize_rewards': True})\n"
        "default(False, plugrl.PPO, 'rl', 'normalize_observations')\n"
        "default(False, plugrl.PPO, 'rl', 'normalize_rewards')\n"
        "from plugrl.core.tensordict.collect import normalisation as n\n"
        "for each in (n.ObservationNormaliser, n.RewardNormaliser):\n"
        "    assert inspect.signature(each).parameters['clip'].default == 10.0"),
    '`VecNormalize.save("stats.pkl")`': ("plugrl.VecNormalize",
        "scaled = plugrl.PPO('CartPole-v1', **{**SHORT, 'rl': {'frames_per_batch': 64,"
        " 'normalize_observations': True}}).train(total_steps=64)\n"
        "path = scaled.policy.save(Path(FOLDER) / 'scaled.safetensors')\n"
        "assert torch.equal(plugrl.Policy.load(path).mean, scaled.policy.mean)"),
    "`VecFrameStack(envs, 4)`": ("plugrl.VecFrameStack",
        "stack = 'gymnasium.wrappers:FrameStackObservation'\n"
        "tree(scenario={'wrappers': [{'path': stack, 'kwargs': {'stack_size': 4}}]})"),
    "`make_atari_env`, `AtariWrapper`": ("plugrl.make_atari_env",
        "wrappers = ['gymnasium.wrappers:AtariPreprocessing']\n"
        "pong = plugrl.PPO('ALE/Pong-v5', scenario={'wrappers': wrappers})\n"
        "prepare(pong.config, preflight=False)"),
    "`VecVideoRecorder`": ("plugrl.VecVideoRecorder",
        "prepare(plugrl.PPO('CartPole-v1', validate={'film': 'gif'}).config, preflight=False)\n"
        "prepare(plugrl.PPO('CartPole-v1', validate={'film': 'mp4'}).config, preflight=False)"),
    "`Monitor`": ("plugrl.Monitor", "run().metrics['rollout/mean_episode_return']"),
    "`check_env(env)`": ("plugrl.check_env", "command('validate')"),
    '`policy_kwargs={"net_arch": [64, 64]}`': (
        "tree(policy_kwargs={'net_arch': [64, 64]})",
        "assert tree(hidden=[32])['agents']['_default']['body']['hidden'] == [32]\n"
        "assert body(plugrl.PPO)['hidden'] == body(plugrl.DQN)['hidden'] == [64, 64]\n"
        "assert body(plugrl.SAC)['hidden'] == body(plugrl.TD3)['hidden'] == [256, 256]\n"
        "default([256, 256], plugrl.TD3, 'td3', 'critic_hidden')"),
    '`net_arch={"pi": [...], "vf": [...]}`': ("tree(net_arch={'pi': [64], 'vf': [32]})",
        "mlp = {'type': 'mlp', 'hidden': [32]}\n"
        "tree(agents={'_default': {'body': mlp, 'value_body': mlp}})\n"
        "tree(plugrl.SAC, sac={'critic_hidden': [32]})"),
    "`activation_fn`": ("tree(activation_fn=torch.nn.ReLU)",
        "tree(agents={'_default': {'body': {'activation': 'relu'}}})\n"
        "assert body(plugrl.PPO)['activation'] == 'tanh'\n"
        "for form in (plugrl.DQN, plugrl.SAC, plugrl.TD3):"
        " assert body(form)['activation'] == 'relu'"),
    "`ortho_init`": ("tree(ortho_init=False)",
        "tree(agents={'_default': {'use_orthogonal_initialisation': False}})\n"
        "default(True, plugrl.PPO, 'agents', '_default', 'use_orthogonal_initialisation')"),
    "`share_features_extractor`": ("tree(share_features_extractor=True)",
        "tree(rl={'use_shared_body': True})"),
    "`features_extractor_class`": ("tree(features_extractor_class=torch.nn.Linear)",
        "plugrl.register_body"),
    '`"CnnPolicy"`': ("tree(environment='CnnPolicy')",
        "prepare(plugrl.PPO('CartPole-v1', agents={'_default': {'body': {'type': 'nature_cnn'}}})"
        ".config, preflight=False)"),
    '`"MultiInputPolicy"`': ("tree(environment='MultiInputPolicy')",
        "tree(scenario={'wrappers': ['gymnasium.wrappers:FlattenObservation']})"),
    "`optimizer_class`": ("tree(optimizer_class=torch.optim.SGD)",
        "tree(rl={'optimizer': 'rmsprop'}); default('adam', plugrl.PPO, 'rl', 'optimizer')"),
    "`use_sde`, `sde_sample_freq`, `use_expln`, `log_std_init`": ("tree(use_sde=True)",
        "head = {'use_sde': True, 'sde_sample_freq': 4, 'use_expln': True, 'log_std_init': -2}\n"
        "tree(plugrl.SAC, agents={'_default': {'policy_head': head}})"),
    "`learning_rate=3e-4`": (
        "assert tree(learning_rate=1e-3)['rl']['lr'] == 1e-3\n"
        "for form in (plugrl.PPO, plugrl.SAC): default(3e-4, form, 'rl', 'lr')\n"
        "default(1e-4, plugrl.DQN, 'rl', 'lr')", None),
    "a schedule as `learning_rate`": ("tree(learning_rate=lambda left: left * 1e-3)",
        "tree(rl={'anneal_lr': True})"),
    "`n_steps`": ("tree(n_steps=2048)", "default(2048, plugrl.PPO, 'rl', 'frames_per_batch')"),
    "`batch_size`": ("tree(batch_size=64)",
        "default(64, plugrl.PPO, 'rl', 'minibatch_size')\n"
        "default(32, plugrl.DQN, 'rl', 'minibatch_size')\n"
        "for form in (plugrl.SAC, plugrl.TD3): default(256, form, 'rl', 'minibatch_size')"),
    "`n_epochs`": ("tree(n_epochs=10)",
        "default(10, plugrl.PPO, 'rl', 'num_epochs')\n"
        "task = {'type': 'gymnasium', 'id': 'CartPole-v1'}\n"
        "found = prepare({'scenario': task, 'trainer': 'vanilla_ppo'}).validated.tree\n"
        "assert found['rl']['num_epochs'] == 4"),
    "`gamma`": ("tree(gamma=0.99)", "default(0.99, plugrl.PPO, 'rl', 'gamma')"),
    "`gae_lambda`": ("tree(gae_lambda=0.95)", "default(0.95, plugrl.PPO, 'rl', 'lmbda')"),
    "`clip_range`": ("tree(clip_range=0.2)", "default(0.2, plugrl.PPO, 'ppo', 'clip_epsilon')\n"
        "tree(ppo={'anneal_clip': True})"),
    "`clip_range_vf`": ("tree(clip_range_vf=0.2)",
        "tree(rl={'clip_value': True}); default(False, plugrl.PPO, 'rl', 'clip_value')"),
    "`normalize_advantage`": ("tree(normalize_advantage=True)",
        "default(True, plugrl.PPO, 'ppo', 'normalize_advantage')"),
    "`ent_coef`": ("tree(ent_coef=0.0)", "default(0.0, plugrl.PPO, 'ppo', 'entropy_eps')"),
    "`vf_coef`": ("tree(vf_coef=0.5)", "default(0.5, plugrl.PPO, 'ppo', 'critic_coef')"),
    "`max_grad_norm`": ("tree(max_grad_norm=0.5)",
        "default(0.5, plugrl.PPO, 'rl', 'max_grad_norm')\n"
        "default(10.0, plugrl.DQN, 'rl', 'max_grad_norm')"),
    "`target_kl`": ("tree(target_kl=0.01)", None),
    "`stats_window_size`": ("tree(stats_window_size=100)", None),
    "`tensorboard_log`": ("tree(tensorboard_log='logs')",
        "prepare(plugrl.PPO('CartPole-v1', trackers=['tensorboard']).config, preflight=False)"),
    "`verbose`": ("tree(verbose=0)", "tree(settings={'progress': 'none'})"),
    "`seed`": ("assert tree(seed=3)['seed'] == 3; default(0, plugrl.PPO, 'seed')", None),
    "`device`": ("tree(device='cpu')", "default('auto', plugrl.PPO, 'settings', 'device')"),
    "`buffer_size`, `learning_starts`, `tau`, `gradient_steps`": (
        "tree(plugrl.DQN, buffer_size=1000)",
        "given = {'buffer_size': 1_000_000, 'learning_starts': 100, 'gradient_steps': 1}\n"
        "for form, name, tau in ((plugrl.DQN, 'dqn', 1.0), (plugrl.SAC, 'sac', 0.005),"
        " (plugrl.TD3, 'td3', 0.005)):\n"
        "    assert {**given, 'tau': tau}.items() <= dict(tree(form)[name]).items()"),
    "`train_freq=4`": ("tree(plugrl.DQN, train_freq=4)",
        "default(4, plugrl.DQN, 'dqn', 'train_freq'); default(1, plugrl.SAC, 'sac', 'train_freq')"),
    "`target_update_interval`, `exploration_fraction`, `exploration_initial_eps`, "
    "`exploration_final_eps`": (
        "tree(plugrl.DQN, exploration_fraction=0.1)",
        "given = {'target_update_interval': 10_000, 'exploration_fraction': 0.1,"
        " 'exploration_initial_eps': 1.0, 'exploration_final_eps': 0.05}\n"
        "assert given.items() <= dict(tree(plugrl.DQN)['dqn']).items()"),
    "`n_steps` of returns": ("tree(plugrl.DQN, dqn={'n_steps': 3})", None),
    "`replay_buffer_class`, `optimize_memory_usage`": (
        "tree(plugrl.DQN, dqn={'optimize_memory_usage': True})", None),
    '`ent_coef="auto_0.1"`': ("tree(plugrl.SAC, ent_coef='auto_0.1')",
        "tree(plugrl.SAC, sac={'auto_alpha': True, 'alpha': 0.1})\n"
        "default(True, plugrl.SAC, 'sac', 'auto_alpha'); default(1.0, plugrl.SAC, 'sac', 'alpha')"),
    '`target_entropy="auto"`': ("tree(plugrl.SAC, target_entropy='auto')",
        "default(None, plugrl.SAC, 'sac', 'target_entropy')"),
    "`policy_delay`, `target_policy_noise`, `target_noise_clip`": (
        "tree(plugrl.TD3, policy_delay=2)",
        "given = {'policy_delay': 2, 'target_policy_noise': 0.2, 'target_noise_clip': 0.5}\n"
        "assert given.items() <= dict(tree(plugrl.TD3)['td3']).items()"),
    "`action_noise=NormalActionNoise(...)`": ("tree(plugrl.SAC, sac={'action_noise': 0.1})",
        "default(0.1, plugrl.TD3, 'td3', 'action_noise')"),
    "`learning_rate` of TD3": (
        "tree(plugrl.TD3, learning_rate=1e-3); default(3e-4, plugrl.TD3, 'rl', 'lr')", None),
    "`model.learn(total_timesteps=100_000)`": (
        "plugrl.PPO('CartPole-v1').learn(total_timesteps=100)",
        "form = plugrl.PPO('CartPole-v1', total_steps=2049)\n"
        "assert form.config['rl']['num_iterations'] == 2\n"
        "assert 'total_steps' in inspect.signature(form.train).parameters"),
    "`learn(..., reset_num_timesteps=False)`": (
        "plugrl.PPO('CartPole-v1').train(total_steps=64, reset_num_timesteps=False)",
        "assert plugrl.resume(run()).status == run().status\n"
        "tree(agents={'_default': {'load_from': str(run().folder)}})"),
    "`learn(..., progress_bar=True)`": (
        "plugrl.PPO('CartPole-v1').train(total_steps=64, progress_bar=True)",
        "default('auto', plugrl.PPO, 'settings', 'progress')"),
    "`model.predict(obs)`": (f"run().predict({_SEEN})", f"run().policy.act({_SEEN})"),
    "`predict(obs, deterministic=True)`": (
        f"run().policy.act({_SEEN}, deterministic=True)",
        f"policy = run().policy\n"
        f"drawn = {{int(policy.act({_SEEN}, sample=True)) for _ in range(64)}}\n"
        f"assert drawn == {{0, 1}}\n"
        f"assert len({{int(policy.act({_SEEN})) for _ in range(64)}}) == 1"),
    "`model.policy`": ("assert isinstance(run().policy, torch.nn.Module)", None),
    '`model.save("model")`': ("run().save('model')",
        "assert run().policy.save(Path(FOLDER) / 'policy.safetensors').is_file()"),
    '`PPO.load("model")`': ("plugrl.PPO.load('model')",
        "path = run().policy.save(Path(FOLDER) / 'loaded.safetensors')\n"
        f"assert plugrl.Policy.load(path).act({_SEEN}) == run().policy.act({_SEEN})\n"
        "assert plugrl.load_run('latest', FOLDER).folder"),
    "`model.save_replay_buffer(path)`": ("run().save_replay_buffer('x')",
        "from plugrl.core.tensordict.off_policy import OffPolicyLearner\n"
        "assert '\"buffer\"' in inspect.getsource(OffPolicyLearner.state_dict)"),
    "`evaluate_policy(model, env, n_eval_episodes=10)`": ("plugrl.evaluate_policy",
        "run().evaluate()['validation/mean_episode_return']\n"
        "default(10, plugrl.PPO, 'validate', 'episodes')\n"
        "default(True, plugrl.PPO, 'validate', 'deterministic')"),
    "`model.set_env(env)`": ("run().set_env('CartPole-v1')",
        "command('eval')\n"
        "file = Path(FOLDER) / 'other.yaml'\n"
        "file.write_text('scenario: {type: gymnasium, id: CartPole-v1, max_episode_steps: 5}')\n"
        "assert run().evaluate(str(file))['validation/mean_episode_return'] == 5"),
    "`results_plotter.plot_results`": ("plugrl.results_plotter",
        "import matplotlib; matplotlib.use('Agg'); run().plot('rollout/mean_episode_return')"),
    "`BaseCallback`, `_on_step(self)`": ("plugrl.BaseCallback",
        "steps = []\n"
        "plugrl.PPO('CartPole-v1', **SHORT).train(128, callbacks=[lambda step, metrics:"
        " steps.append(step)])\n"
        "assert steps == [0, 1, 2]"),
    "`return False`": (
        "def no(step, metrics): return False\n"
        "stopped = plugrl.PPO('CartPole-v1', **SHORT).train(128, callbacks=[no])\n"
        "assert stopped.status['step'] < 2",
        "def no(step, metrics):\n"
        "    if step: raise plugrl.StopRun('enough')\n"
        "stopped = plugrl.PPO('CartPole-v1', **SHORT).train(128, callbacks=[no])\n"
        "assert stopped.status['step'] == 1"),
    "`CallbackList([...])`": ("plugrl.CallbackList", "run()"),
    "`CheckpointCallback(save_freq=...)`": ("plugrl.CheckpointCallback",
        "tree(settings={'checkpoint_every': 10})\n"
        "default(5.0, plugrl.PPO, 'settings', 'checkpoint_minutes')"),
    "`EvalCallback(env, eval_freq=..., n_eval_episodes=5)`": ("plugrl.EvalCallback",
        "found = tree(total_steps=204_800)\n"
        "assert found['rl']['num_iterations'] == 10 * found['validate']['every']\n"
        "tree(validate={'every': 10, 'episodes': 5})"),
    "`StopTrainingOnRewardThreshold`, `StopTrainingOnNoModelImprovement`": (
        "plugrl.StopTrainingOnRewardThreshold",
        "seen = []\n"
        "class Watch:\n"
        "    def plugrl_evaluation_end(self, metrics): seen.append(metrics)\n"
        "plugrl.PPO('CartPole-v1', **SHORT).train(64, callbacks=[Watch()])\n"
        "assert 'validation/mean_episode_return' in seen[0]"),
    "`EveryNTimesteps`": ("plugrl.EveryNTimesteps", "run()"),
    "`self.logger.record(...)`": ("plugrl.configure_logger", None),
    "`python -m rl_zoo3.train --algo ppo --env CartPole-v1`": (
        "prepare('ppo')",
        "for name in ('cartpole_ppo', 'cartpole_a2c', 'cartpole_dqn', 'cartpole_reinforce',"
        " 'pendulum_sac', 'pendulum_td3'): prepare(name)"),
    "`rl_zoo3.train -optimize`": ("plugrl.optimize", "command('sweep')"),
    "`load_from_hub(...)`, trained agents": ("plugrl.load_from_hub", None),
}  # fmt: skip

#: Language models: a form, checked without its rows; and a run of one step, rewarded by functions.
_TEXT = """
import functools, inspect, json, tempfile
import datasets, torch, plugrl
import plugrl.cli
from pathlib import Path
from plugrl.core.config.schemas.describe import describe_component
from plugrl.core.experiment import prepare
from plugrl.core.plugins.registry import default_registry

FOLDER = tempfile.mkdtemp()
MODEL = {
    "config": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
    },
    "tokenizer": {
        "characters": "0123456789+= ",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    },
}
ROWS = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(10, 20)]
SHORT = {
    "steps": 1, "batch_size": 2, "max_prompt_length": 16, "max_response_length": 8,
    "settings": {"runs_folder": FOLDER, "progress": "none"},
}

def form(kind=plugrl.GRPO, data=ROWS, model=MODEL, **sections):
    return kind(model, data, **sections)

def tree(kind=plugrl.GRPO, data=None, model=MODEL, **sections):
    made = form(kind, data, model, **{"scenario": {"type": "arithmetic", "digits": 1}, **sections})
    return prepare(made.config, preflight=False).validated.tree

def file(name, text=""):
    path = Path(FOLDER) / name
    path.write_text(text)
    return str(path)

def default(value, *path, kind=plugrl.GRPO):
    found = tree(kind)
    for key in path: found = found[key]
    assert found == value, found

def loss(**options): return tree(trainer={"algorithm": {"loss": options}})
def algorithm(kind=plugrl.GRPO, **options): return tree(kind, trainer={"algorithm": options})
def trained(**options): return tree(models={"policy": {"train": options}})
def train(reward, data=ROWS, **more):
    return plugrl.GRPO(MODEL, data, reward, samples=2, **SHORT, **more).train()

def short(prompts, completions, **kwargs): return [-float(len(said)) for said in completions]
def learned(rows, kind=plugrl.SFT):
    return kind(MODEL, rows, **SHORT).train()

@functools.cache
def run(): return train(short)

def has(kind, *names):
    for name in names: default_registry().resolve(kind, name)

def command(name):
    assert name in {row.name for row in plugrl.cli.COMMANDS}

#: A configuration of GRPO, with ``key=value``.
BASE = {"defaults": ["common/adder"], "models": {"policy": {"train": "local"}},
        "trainer": "self_hosted_grpo"}
TRAIN, ALGORITHM = ("models", "policy", "train"), ("trainer", "algorithm")
LOSS = (*ALGORITHM, "loss")
REFERENCE = "models.reference={source: '${models.policy.source}'}"

def keys(*words): return prepare(BASE, words, preflight=False).validated.tree

def base(value, *path):
    found = keys()
    for key in path: found = found[key]
    assert found == value, found

def options(kind, name):
    rows = describe_component(default_registry().load(default_registry().resolve(kind, name)))
    return {row["key"]: row["default"] for row in rows}
"""

TRL = {
    "`GRPOTrainer(model, reward_funcs, train_dataset=...)`": (
        "plugrl.GRPOTrainer", "assert run().status['state'] == 'done'"),
    "`SFTTrainer(model, train_dataset=...)`": ("plugrl.SFTTrainer", "tree(plugrl.SFT)"),
    "`DPOTrainer(model, train_dataset=...)`": ("plugrl.DPOTrainer",
        "models = tree(plugrl.DPO)['models']\n"
        "assert models['reference']['source'] == models['policy']['source']"),
    "`KTOTrainer`": ("plugrl.KTOTrainer",
        "found = algorithm(plugrl.DPO, loss='kto')['trainer']['algorithm']['loss']\n"
        "assert (found['beta'], found['desirable_weight'], found['undesirable_weight'])"
        " == (0.1, 1.0, 1.0)"),
    "`RLOOTrainer`": ("plugrl.RLOOTrainer", "algorithm(advantage='rloo')"),
    "`RewardTrainer`": ("plugrl.RewardTrainer", "has('trainer', 'reward_model')"),
    "`DistillationTrainer`": ("plugrl.DistillationTrainer", "has('trainer', 'self_hosted_opd')"),
    "`AsyncGRPOTrainer` of trl.experimental": ("plugrl.AsyncGRPOTrainer",
        "tree(weight={'sync_mode': 'fully-async', 'staleness_threshold': 1})"),
    "`ORPOTrainer`, `CPOTrainer`, `OnlineDPOTrainer`, `GKDTrainer` of trl.experimental": (
        "plugrl.ORPOTrainer", None),
    "a model object": ("form(model=torch.nn.Linear(1, 1))", "form(model=Path('folder'))"),
    "vision-language models": (
        "looks = {'config': {'model_type': 'qwen2_vl'}, 'tokenizer': MODEL['tokenizer']}\n"
        "plugrl.GRPO(looks, ROWS, short, **SHORT).train()", None),
    "`ref_model`": ("tree(plugrl.DPO, ref_model='folder')",
        "tree(plugrl.DPO, models={'reference': {'source': {'path': 'folder'}}})"),
    "`processing_class`": ("tree(processing_class=None)", "run()"),
    "`eval_dataset`": ("tree(eval_dataset=ROWS)",
        "held = file('held-out.jsonl', '{}')\n"
        "found = tree(validation=held)['validate']\n"
        "assert found['data']['data_files'] == [held] and found['validate_before_train']"),
    "`peft_config=LoraConfig(r=16, lora_alpha=32)`": ("tree(peft_config={'r': 16})",
        "tree(models={'policy': {'adapter': {'r': 16, 'alpha': 32}}})\n"
        "found = tree(models={'policy': {'adapter': {}}})['models']['policy']['adapter']\n"
        "assert (found['r'], found['alpha'], found['target_modules']) == (8, 16.0, 'auto')"),
    "`quantization_config`": ("tree(quantization_config={})",
        "tree(models={'policy': {'source': {'quantization': 'nf4'}, 'adapter': {}}})"),
    "`tools`": ("tree(tools=[print])", "has('rollout_worker', 'agent')"),
    "`rollout_func`, `environment_factory`": ("tree(rollout_func=print)",
        "plugrl.register_rollout_worker, plugrl.RolloutWorker"),
    "`formatting_func`": ("tree(plugrl.SFT, formatting_func=print)",
        "text = 'def f(row): return {\"text\": row[\"prompt\"] + row[\"answer\"]}'\n"
        "rows, mapped = file('f.jsonl', json.dumps(ROWS[0])), file('formatting.py', text)\n"
        "learned({'data_files': [rows], 'map': f'{mapped}:f'})"),
    "`data_collator`, `compute_metrics`, `optimizers`": ("tree(compute_metrics='f')", None),
    "`callbacks`": ("tree(callbacks=[print])",
        "steps = []\n"
        "form(reward=short, **SHORT).train(callbacks=[lambda step: steps.append(step)])\n"
        "assert steps[-1] == 1"),
    "`trainer.train()`": ("assert form(reward=short, **SHORT).train().result.steps == 1", None),
    "`trainer.train(resume_from_checkpoint=True)`": (
        "form().train(resume_from_checkpoint=True)",
        "assert plugrl.resume(run(), reward=short).status['state'] == 'done'"),
    "`trainer.evaluate()`": ("form().evaluate()",
        "held = file('held.jsonl', json.dumps(ROWS[0]))\n"
        "assert train('exact_match', validation=held).evaluate()"),
    "`trainer.save_model(folder)`": ("run().save_model('folder')",
        "assert (run().export(Path(FOLDER) / 'model') / 'config.json').is_file()"),
    "`trainer.push_to_hub()`": ("run().push_to_hub()", "command('push')"),
    "`trainer.state.log_history`": ("run().state", "assert run().metrics['rollout/reward']"),
    "overriding `_generate_and_score_completions`, `_compute_loss`": (
        "from plugrl.trainers.self_hosted_grpo import SelfHostedGrpoTrainer\n"
        "SelfHostedGrpoTrainer._compute_loss",
        "plugrl.register_advantage, plugrl.register_loss"),
    "`f(prompts, completions, **kwargs)`": (
        "seen = []\n"
        "def f(prompts, completions, **kwargs):\n"
        "    seen.append((prompts[0], completions[0], kwargs['answer'][0]))\n"
        "    return [0.0] * len(prompts)\n"
        "train(f)\n"
        "assert all(isinstance(each, str) for each in seen[0])\n"
        "asked = [{'role': 'user', 'content': '1+1='}]\n"
        "train(f, [{**row, 'prompt': asked} for row in ROWS])\n"
        "assert seen[-1][0][0]['role'] == 'user' and seen[-1][1][0]['role'] == 'assistant'", None),
    "`completion_ids`, columns by name": (
        "def f(completions, completion_ids, answer):\n"
        "    assert isinstance(completion_ids[0][0], int) and answer[0].isdigit()\n"
        "    return [1.0] * len(completions)\n"
        "assert train(f).metrics['rollout/reward'] == [1.0]", None),
    "`None` as a reward": (
        "def none(completions): return [None] * len(completions)\n"
        "def one(completions): return [1.0] * len(completions)\n"
        "assert train([none, one]).metrics['rollout/reward'] == [1.0]", None),
    "`async def f(...)`": (
        "async def f(completions, **kwargs): return [0.5] * len(completions)\n"
        "assert train(f).metrics['rollout/reward'] == [0.5]", None),
    "`log_metric`, `log_extra`": (
        "def f(completions, log_metric, log_extra):\n"
        "    log_metric('seen', 2.0); log_extra('word', ['a'] * len(completions))\n"
        "    return [0.5] * len(completions)\n"
        "found = train(f)\n"
        "assert any('seen' in name for name in found.metrics.columns)", None),
    "a list of functions, `reward_weights`": (
        "def one(completions): return [1.0] * len(completions)\n"
        "def two(completions): return [2.0] * len(completions)\n"
        "found = train([one, two], reward_weights=[1.0, 0.5])\n"
        "assert found.metrics['rollout/reward'] == [2.0]", None),
    "functions of `trl.rewards`": (
        "def think_format_reward(completions: list, **kwargs) -> list[float]:\n"
        "    return [0.0 for said in completions]\n"
        "def accuracy_reward(completions, solution, log_extra=None, log_metric=None, **kwargs):\n"
        "    return [0.0 for said in completions]\n"
        "train([think_format_reward, accuracy_reward], [{**row, 'solution': '1'} for row in ROWS])",
        None),
    "`trainer_state`, `environments`": (
        "def f(completions, trainer_state): return [0.0] * len(completions)\n"
        "train(f)", None),
    "a name of a model as reward function": (
        "train('Qwen/a-reward-model')",
        "tree(rollout_worker={'evaluator': {'type': 'reward_model', 'path': 'folder'}})"),
    "`accuracy_reward`": ("train('accuracy_reward')", "has('evaluator', 'math')"),
    "`get_soft_overlong_punishment`": ("train('get_soft_overlong_punishment')",
        "algorithm(overlong={'buffer': 256})"),
    '`multi_objective_aggregation="normalize_then_sum"`': (
        "tree(multi_objective_aggregation='normalize_then_sum')", None),
    "rows with `prompt`, `messages`, `text`, `completion`, `chosen`, `rejected`, `label`": (
        "said = [{'role': 'user', 'content': '1+1='}, {'role': 'assistant', 'content': '2'}]\n"
        "learned([{'messages': said}] * 2); learned([{'text': '1+1=2'}] * 2)\n"
        "learned([{'prompt': '1+1=', 'completion': '2'}] * 2)\n"
        "learned([{'prompt': said[:1], 'completion': said[1:]}] * 2)\n"
        "learned([{'prompt': '1+1=', 'chosen': '2', 'rejected': '3'}] * 2, plugrl.DPO)\n"
        "learned([{'chosen': '1+1=2', 'rejected': '1+1=3'}] * 2, plugrl.DPO)\n"
        "labels = [{'prompt': f'1+{n}=', 'completion': '2', 'label': n == 1} for n in (1, 2)]\n"
        "plugrl.DPO(MODEL, labels, trainer={'algorithm': {'loss': 'kto'}}, **SHORT).train()", None),
    "`datasets.Dataset`": ("train(short, datasets.Dataset.from_list(ROWS))", None),
    '`load_dataset("openai/gsm8k", "main", split="train")`': (
        "form(data=('openai/gsm8k', 'main', {'split': 'train'}))",
        "tree(data={'name': 'openai/gsm8k', 'subset': 'main', 'split': 'train'})"),
    "`dataset.map(f)`": (
        "tree(data={'map': lambda row: row})",
        "mapped = file('mapped.py', 'def f(row): return row')\n"
        "tree(data={'data_files': [file('x.jsonl', '{}')], 'map': f'{mapped}:f'})\n"
        "rows = datasets.Dataset.from_list(ROWS)\n"
        "train(short, rows.map(lambda row: {'prompt': row['prompt'] + '='}))"),
    "`IterableDataset`, streaming": ("tree(data={'name': 'a/b', 'streaming': True})", None),
    "columns of images, `chat_template_kwargs`": (
        "said = [{'role': 'user', 'content': '1'}, {'role': 'assistant', 'content': '2'}]\n"
        "learned([{'messages': said, 'chat_template_kwargs': {'x': 1}}] * 2)", None),
    "`dataset_text_field`, other columns": ("tree(plugrl.SFT, dataset_text_field='body')",
        "keys = {'prompt_key': 'q', 'answer_key': 'a'}\n"
        "tree(data={'data_files': [file('y.jsonl', '{}')], **keys})"),
    "`assistant_only_loss=True`": ("tree(plugrl.SFT, assistant_only_loss=True)",
        "tree(plugrl.SFT, rollout_worker={'learned': 'all'})\n"
        "default('replies', 'rollout_worker', 'learned', kind=plugrl.SFT)"),
    "`completion_only_loss=False`": ("tree(plugrl.SFT, completion_only_loss=False)",
        "tree(plugrl.SFT, rollout_worker={'learned': 'all'})"),
    "`max_length`, `truncation_mode`": (
        "learned([{'prompt': '1', 'completion': '1' * 9}] * 2)",
        "tree(plugrl.SFT, max_prompt_length=16, max_response_length=9)"),
    "`packing=True`": ("tree(plugrl.SFT, packing=True)",
        "default('auto', 'models', 'policy', 'train', 'packing', kind=plugrl.SFT)"),
    "`output_dir`": ("tree(output_dir='out')", "default('runs', 'settings', 'runs_folder')"),
    "`max_steps`": ("tree(max_steps=100)", "default(100, 'trainer', 'total_train_steps')"),
    "`num_train_epochs`": ("tree(num_train_epochs=3)", None),
    "`per_device_train_batch_size`, `gradient_accumulation_steps`": (
        "tree(per_device_train_batch_size=8)",
        "default(16, 'data', 'batch_size'); trained(micro_batch_size=8)"),
    "`learning_rate`": (
        "assert tree(learning_rate=1e-5)['models']['policy']['train']['learning_rate'] == 1e-5\n"
        "for kind in (plugrl.GRPO, plugrl.SFT, plugrl.DPO):\n"
        "    default(1e-6, 'models', 'policy', 'train', 'learning_rate', kind=kind)", None),
    "`lr_scheduler_type`, `warmup_steps`": ("tree(lr_scheduler_type='linear')",
        "trained(schedule={'decay': 'linear', 'total_steps': 100, 'warmup_steps': 10})\n"
        "default('constant', 'models', 'policy', 'train', 'schedule', 'decay')"),
    "`weight_decay`": ("tree(weight_decay=0.0)",
        "default(0.01, 'models', 'policy', 'train', 'weight_decay')"),
    "`max_grad_norm`": ("tree(max_grad_norm=1.0)",
        "default(1.0, 'models', 'policy', 'train', 'grad_clip_norm')"),
    "`adam_beta1`, `adam_beta2`, `adam_epsilon`": ("tree(adam_beta1=0.9)",
        "default([0.9, 0.999], 'models', 'policy', 'train', 'betas')\n"
        "default(1e-8, 'models', 'policy', 'train', 'eps')"),
    "`optim`": ("tree(optim='muon')", "trained(optimizer='muon')\ntrained(optimizer='adamw_8bit')"),
    "`bf16`": ("tree(bf16=True)",
        "keys('models.policy.source.dtype=bfloat16')\n"
        "default('float32', 'models', 'policy', 'source', 'dtype')\n"
        "default('auto', 'models', 'policy', 'train', 'master_weights')"),
    "`gradient_checkpointing`": ("tree(gradient_checkpointing=True)",
        "default(False, 'models', 'policy', 'train', 'gradient_checkpointing')"),
    "`torch_compile`": ("tree(torch_compile=True)",
        "default('auto', 'models', 'policy', 'train', 'compile')"),
    "`use_liger_kernel`": ("tree(use_liger_kernel=True)", None),
    "`fsdp`, several GPUs": ("tree(fsdp='full_shard')",
        "keys('models.policy.train.type=fsdp', 'models.policy.train.workers=8')"),
    "`deepspeed`": ("tree(deepspeed='zero3.json')", None),
    "`logging_steps`": ("tree(logging_steps=10)", "assert run().metrics[-1]['step'] == 1"),
    "`save_steps`, `save_total_limit`": ("tree(save_steps=500)",
        "tree(settings={'checkpoint_every': 100, 'keep_checkpoints': 2})\n"
        "default(2, 'settings', 'keep_checkpoints')\n"
        "default(5.0, 'settings', 'checkpoint_minutes')"),
    "`eval_steps`": ("tree(eval_steps=20)", "tree(validate={'every': 20})"),
    "`load_best_model_at_end`, `metric_for_best_model`": ("tree(load_best_model_at_end=True)",
        "tree(validate={'score': 'validation/reward'})\n"
        "assert 'checkpoint' in inspect.signature(run().export).parameters"),
    '`report_to="wandb"`': ("tree(report_to='wandb')", "tree(trackers=['wandb'])"),
    "`seed`": ("assert tree(seed=3)['seed'] == 3; default(0, 'seed')", None),
    "`num_generations`": ("tree(num_generations=8)",
        "assert tree(samples=4)['data']['rollout_repeat_n'] == 4\n"
        "default(8, 'data', 'rollout_repeat_n')"),
    "`max_completion_length`": ("tree(max_completion_length=512)",
        "default(256, 'rollout_worker', 'max_response_length')"),
    "`temperature`, `top_p`": ("tree(temperature=1.0)",
        "default(1.0, 'rollout_worker', 'temperature'); default(1.0, 'rollout_worker', 'top_p')"),
    "`top_k`, `min_p`, `repetition_penalty`": ("tree(rollout_worker={'top_k': 50})", None),
    "`beta`": ("tree(beta=0.04)",
        "algorithm(kl={'loss': {'coefficient': 0.04}})\n"
        "default(0.0, 'trainer', 'algorithm', 'kl', 'loss', 'coefficient')"),
    "`num_iterations`": ("tree(num_iterations=1)", "default(1, 'trainer', 'algorithm', 'epochs')"),
    "`steps_per_generation`": ("tree(steps_per_generation=2)", "algorithm(minibatches=2)"),
    "`epsilon`, `epsilon_high`": ("tree(epsilon=0.2)",
        "loss(type='clipped', clip_ratio_low=0.2, clip_ratio_high=0.2)\n"
        "for key in ('clip_ratio_low', 'clip_ratio_high'):\n"
        "    default(0.2, 'trainer', 'algorithm', 'loss', key)"),
    "`delta`": ("tree(delta=4.0)", "loss(type='clipped', clip_ratio_dual=4.0)"),
    '`scale_rewards="none"`': ("tree(scale_rewards='none')",
        "algorithm(advantage={'type': 'grpo', 'normalize': False})\n"
        "default(True, 'trainer', 'algorithm', 'advantage', 'normalize')\n"
        "default(1e-6, 'trainer', 'algorithm', 'advantage', 'epsilon')"),
    '`scale_rewards="batch"`': (
        "algorithm(advantage={'type': 'grpo', 'normalize': 'batch'})", None),
    '`loss_type="dapo"`, `"bnpo"`': ("algorithm(loss='dapo')",
        "default('token-mean', 'trainer', 'algorithm', 'aggregation')"),
    '`loss_type="grpo"`': (
        "algorithm(loss='grpo')", "algorithm(aggregation='seq-mean-token-mean')"),
    '`loss_type="dr_grpo"`': ("algorithm(loss='dr_grpo')",
        "algorithm(aggregation='seq-mean-token-sum-norm', norm_length=256); prepare('dr_grpo')"),
    '`loss_type="cispo"`, `importance_sampling_level="sequence"`': (
        "tree(importance_sampling_level='sequence')",
        "algorithm(loss='cispo'); algorithm(loss='gspo')"),
    '`loss_type="sapo"`, `"vespo"`, `"luspo"`': ("algorithm(loss='sapo')", None),
    "`mask_truncated_completions`": ("tree(mask_truncated_completions=True)",
        "algorithm(overlong={'filter': True})"),
    "`entropy_coef`": ("tree(entropy_coef=0.0)", "algorithm(entropy_coefficient=0.01)\n"
        "default(0.0, 'trainer', 'algorithm', 'entropy_coefficient')"),
    "`top_entropy_quantile`, `sync_ref_model`": ("tree(top_entropy_quantile=0.2)", None),
    '`use_vllm=True`, `vllm_mode="server"`': ("tree(use_vllm=True)",
        "tree(models={'policy': {'inference': {'type': 'openai', 'engine': 'vllm',"
        " 'base_url': 'http://127.0.0.1:8000/v1'}}})"),
    '`vllm_mode="colocate"`': ("tree(vllm_mode='colocate')", None),
    "`vllm_importance_sampling_correction`": ("tree(vllm_importance_sampling_correction=True)",
        "algorithm(sampler_correction={'level': 'token'})\n"
        "default('none', 'trainer', 'algorithm', 'sampler_correction', 'level')"),
    "`log_completions`": ("tree(log_completions=True)",
        "assert len(run().samples['rollouts']) == 4\n"
        "default(4, 'settings', 'rollout_samples')"),
    "`beta`, `label_smoothing`": ("tree(plugrl.DPO, beta=0.1)",
        "found = tree(plugrl.DPO)['trainer']['algorithm']['loss']\n"
        "assert (found['beta'], found['label_smoothing']) == (0.1, 0.0)"),
    '`loss_type="ipo"`': ("tree(plugrl.DPO, loss_type='ipo')", "algorithm(plugrl.DPO, loss='ipo')"),
    "other `loss_type`, lists of them": ("algorithm(plugrl.DPO, loss='hinge')", None),
    "`precompute_ref_log_probs`, `ld_alpha`, `f_divergence_type`": (
        "tree(plugrl.DPO, precompute_ref_log_probs=True)", None),
    "`trl grpo --model_name_or_path ... --dataset_name ...`": (
        "import plugrl.commands.grpo",
        "tree(data={'name': 'a/b'}, model={'path': 'folder'})"),
    "`trl sft --config run.yaml`": ("import plugrl.commands.sft",
        "assert tree(plugrl.SFT)['trainer']['type'] == 'self_hosted_cross_entropy'\n"
        "path = form(plugrl.SFT, **SHORT).save(Path(FOLDER) / 'run.yaml')\n"
        "prepare(str(path), preflight=False)"),
    "`trl vllm-serve`": ("import plugrl.commands.vllm_serve", "command('serve')"),
    "`trl env`": ("import plugrl.commands.trl", "command('env')"),
    "`accelerate launch`": (
        "from plugrl.core.run.process.launchers import refuse_copies\n"
        "refuse_copies({'WORLD_SIZE': '2', 'LOCAL_RANK': '0', 'RANK': '0'})", None),
}  # fmt: skip

#: As of ``_TEXT``: a key of verl on a configuration of GRPO, and the key of ours beside it.
VERL = {
    "`data.train_files`, `data.val_files`": ("keys('data.train_files=[x.parquet]')",
        "rows = file('rows.jsonl', '{}')\n"
        "keys(f'data.data_files=[{rows}]', f'validate.data.data_files=[{rows}]')"),
    "`data.train_batch_size`": (
        "keys('data.train_batch_size=8')", "base(32, 'data', 'batch_size')"),
    "`data.max_prompt_length`": (
        "keys('data.max_prompt_length=6')\n"
        "assert options('rollout_worker', 'single_turn')['max_prompt_length'] == 1024", None),
    "`data.max_response_length`": ("keys('data.max_response_length=8')",
        "keys('rollout_worker.max_response_length=8')\n"
        "assert options('rollout_worker', 'single_turn')['max_response_length'] == 256"),
    "`data.prompt_key`": ("keys('data.prompt_key=prompt')", None),
    "`data.shuffle`, `data.seed`": (
        "keys('data.shuffle=true', 'data.seed=null')\n"
        "base(True, 'data', 'shuffle'); base(None, 'data', 'seed')", None),
    "columns `reward_model.ground_truth`, `extra_info`": (
        "keys('data.answer_key=reward_model.ground_truth', 'data.reward_model=x')",
        "row = {'prompt': '1', 'reward_model': {'ground_truth': '2'}}\n"
        "text = 'def f(row):\\n'\\\n"
        "    '    answer = row[\"reward_model\"][\"ground_truth\"]\\n'\\\n"
        "    '    return {\"prompt\": row[\"prompt\"], \"answer\": answer}\\n'\n"
        "keys(f'data.data_files=[{file(\"r.jsonl\", json.dumps(row))}]',"
        " f'data.map={file(\"verl_map.py\", text)}:f')"),
    "`data.reward_fn_key`": ("keys('data.reward_fn_key=data_source')",
        "base('data_source', 'validate', 'data_source_key')"),
    "`data.filter_overlong_prompts`": ("keys('data.filter_overlong_prompts=true')",
        "keys('data.filter_prompts=true')"),
    "`data.truncation`": ("keys('data.truncation=left')", None),
    "`data.val_max_samples`": ("keys('data.val_max_samples=8')", "keys('validate.data.limit=8')"),
    "`data.train_max_samples`, `data.gen_batch_size`": ("keys('data.train_max_samples=8')", None),
    "`data.custom_cls`": ("keys('data.custom_cls.path=x.py')",
        "keys(f'data.map={file(\"m.py\", \"def f(row): return row\")}:f')"),
    "`data.sampler`": ("keys('data.sampler.class_path=x.py')",
        "keys('data.curriculum.resample=spread')"),
    "`data.image_key`, `data.video_key`, `data.apply_chat_template_kwargs`": (
        "keys('data.image_key=images')", None),
    "`data.trust_remote_code`": ("keys('data.trust_remote_code=true')", None),
    "`actor_rollout_ref.model.path`": ("keys('actor_rollout_ref.model.path=x')",
        "tree(model={'path': 'folder'})"),
    "`actor_rollout_ref.model.lora_rank`, `lora_alpha`, `target_modules`": (
        "keys('actor_rollout_ref.model.lora_rank=8')",
        "keys('models.policy.adapter={r: 8, alpha: 16, target_modules: auto}')"),
    "`actor_rollout_ref.model.enable_gradient_checkpointing`": (
        "keys('actor_rollout_ref.model.enable_gradient_checkpointing=true')",
        "base(False, *TRAIN, 'gradient_checkpointing')"),
    "`actor_rollout_ref.model.use_remove_padding`": (
        "keys('actor_rollout_ref.model.use_remove_padding=true')",
        "base('auto', *TRAIN, 'packing')"),
    "`use_fused_kernels`, `use_liger`": ("keys('models.policy.use_liger=true')", None),
    "`actor_rollout_ref.actor.optim.lr`, `weight_decay`, `betas`": (
        "keys('actor_rollout_ref.actor.optim.lr=1e-6')",
        "base(1e-6, *TRAIN, 'learning_rate'); base(0.01, *TRAIN, 'weight_decay')\n"
        "base([0.9, 0.999], *TRAIN, 'betas')"),
    "`actor.optim.lr_scheduler_type`, `lr_warmup_steps`": (
        "keys('models.policy.train.lr_scheduler_type=constant')",
        "base('constant', *TRAIN, 'schedule', 'decay'); base(0, *TRAIN, 'schedule', 'warmup_steps')"
    ),
    "`actor.grad_clip`": ("keys('models.policy.train.grad_clip=1.0')",
        "base(1.0, *TRAIN, 'grad_clip_norm')"),
    "`actor.ppo_mini_batch_size`": ("keys('trainer.algorithm.ppo_mini_batch_size=8')",
        "base(1, *ALGORITHM, 'minibatches')"),
    "`actor.ppo_micro_batch_size_per_gpu`": (
        "keys('models.policy.train.ppo_micro_batch_size_per_gpu=8')",
        "keys('models.policy.train.micro_batch_size=8')"),
    "`actor.use_dynamic_bsz`, `ppo_max_token_len_per_gpu`": (
        "keys('models.policy.train.use_dynamic_bsz=true')",
        "keys('models.policy.train.micro_batch_tokens=16384')"),
    "`actor.ppo_epochs`": ("keys('actor.ppo_epochs=1')", "base(1, *ALGORITHM, 'epochs')"),
    "`actor.strategy=fsdp2`, `trainer.n_gpus_per_node`, `nnodes`": (
        "keys('trainer.n_gpus_per_node=8')",
        "keys('models.policy.train.type=fsdp', 'models.policy.train.workers=16')"),
    "`actor.fsdp_config.fsdp_size`": ("keys('models.policy.train.fsdp_size=8')",
        "for shard in ('full', 'hybrid', 'none'):\n"
        "    keys('models.policy.train.type=fsdp', f'models.policy.train.shard={shard}')"),
    "`megatron`, offloading": (
        "keys('models.policy.train.fsdp_config.param_offload=true')", None),
    "`actor.ulysses_sequence_parallel_size`": (
        "keys('models.policy.train.ulysses_sequence_parallel_size=2')", None),
    "`actor.clip_ratio_low`, `clip_ratio_high`": ("keys('actor.clip_ratio_low=0.2')",
        "base(0.2, *LOSS, 'clip_ratio_low'); base(0.2, *LOSS, 'clip_ratio_high')"),
    "`actor.clip_ratio_c`": ("keys('actor.clip_ratio_c=3.0')",
        "base(None, *LOSS, 'clip_ratio_dual')"),
    "`actor.loss_agg_mode`": ("keys('actor.loss_agg_mode=token-mean')",
        "base('token-mean', *ALGORITHM, 'aggregation')\n"
        "for mode in ('seq-mean-token-sum', 'seq-mean-token-mean'):"
        " keys(f'trainer.algorithm.aggregation={mode}')\n"
        "keys('trainer.algorithm.aggregation=seq-mean-token-sum-norm',"
        " 'trainer.algorithm.norm_length=256')"),
    "`actor.loss_scale_factor`": ("keys('trainer.algorithm.loss_scale_factor=256')",
        "keys('trainer.algorithm.norm_length=256',"
        " 'trainer.algorithm.aggregation=seq-mean-token-sum-norm')"),
    "`actor.entropy_coeff`": ("keys('actor.entropy_coeff=0')",
        "base(0.0, *ALGORITHM, 'entropy_coefficient')"),
    "`actor.use_kl_loss`, `kl_loss_coef`, `kl_loss_type`": (
        "keys('trainer.algorithm.use_kl_loss=true')",
        "keys('trainer.algorithm.kl.loss={coefficient: 0.001, kind: low_var_kl}', REFERENCE)\n"
        "base(0.0, *ALGORITHM, 'kl', 'loss', 'coefficient')"),
    "`actor.policy_loss.loss_mode=gspo`, `cispo`": ("keys('actor.policy_loss.loss_mode=gspo')",
        "keys('trainer.algorithm.loss=gspo'); keys('trainer.algorithm.loss=cispo')"),
    "other `loss_mode`: `clip_cov`, `kl_cov`, `geo_mean`, `gpg`, `sapo`": (
        "keys('trainer.algorithm.loss=clip_cov')", None),
    "`actor_rollout_ref.rollout.n`": ("keys('actor_rollout_ref.rollout.n=8')",
        "base(1, 'data', 'rollout_repeat_n')"),
    "`rollout.name=vllm`, `sglang`": ("keys('rollout.name=vllm')",
        "for engine in ('vllm', 'sglang'):\n"
        "    keys(f'models.policy.inference={{type: openai, engine: {engine},"
        " base_url: \"http://127.0.0.1:8000/v1\"}}')\n"
        "base('transformers', 'models', 'policy', 'inference', 'type')"),
    "`rollout.temperature`, `top_p`": ("keys('rollout.temperature=1.0')",
        "base(1.0, 'rollout_worker', 'temperature'); base(1.0, 'rollout_worker', 'top_p')"),
    "`rollout.top_k`": ("keys('rollout_worker.top_k=50')", None),
    "`rollout.val_kwargs.temperature`, `n`": ("keys('rollout.val_kwargs.n=1')",
        "base(0.0, 'validate', 'temperature'); base(1, 'validate', 'samples')"),
    "`rollout.gpu_memory_utilization`, `tensor_model_parallel_size`": (
        "keys('models.policy.inference={type: openai, gpu_memory_utilization: 0.5}')", None),
    "`rollout.calculate_log_probs`": ("keys('rollout.calculate_log_probs=true')",
        "assert 'logprobs' in inspect.signature(plugrl.Trajectory).parameters"),
    "`rollout.multi_turn.enable`, `tool_config_path`": ("keys('rollout.multi_turn.enable=true')",
        "assert 'agent_config' in options('rollout_worker', 'agent')"),
    "`rollout.multi_turn.format`": ("keys('rollout.multi_turn.format=hermes')",
        "assert options('rollout_worker', 'agent')['tool_parser'] == 'hermes'"),
    "`rollout.multi_turn.max_assistant_turns`": ("keys('rollout.multi_turn.max_turns=5')",
        "assert options('rollout_worker', 'agent')['max_turns'] == 10"),
    "`rollout.agent.num_workers`": ("keys('rollout.agent.num_workers=8')",
        "base(0, 'rollout_worker', 'processes')"),
    "`AgentLoopBase`": ("plugrl.AgentLoopBase", "plugrl.RolloutWorker"),
    "`trainer.v1.trainer_mode=separate_async`": ("keys('trainer.v1.trainer_mode=separate_async')",
        "keys('weight.sync_mode=fully-async', 'weight.staleness_threshold=1')"),
    "`trainer.v1.sampler.max_off_policy_threshold`": (
        "keys('trainer.v1.sampler.max_off_policy_threshold=8')",
        "base(0, 'weight', 'staleness_threshold')"),
    "`reward.custom_reward_function.path`, `name`": (
        "keys('reward.custom_reward_function.path=x.py')",
        "text = 'def f(completions, **columns): return [0.0] * len(completions)'\n"
        "keys(f'rollout_worker.evaluator_module_path={file(\"own.py\", text)}:f')"),
    "`compute_score(data_source, solution_str, ground_truth, extra_info)`": (
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return 0.0\n"
        "train(compute_score)",
        "def f(completions, data_source, answer, **columns): return [0.0] * len(completions)\n"
        "train(f, [{**row, 'data_source': 'a'} for row in ROWS])\n"
        "def g(data, target): return float(target.final_answer == data['answer'])\n"
        "train(g)"),
    "a dict with `score`": (
        "def f(data, target): return {'score': 1.0}\ntrain(f)",
        "def f(data, target): return plugrl.EvaluationRunResult(reward=1.0, metrics={'a': 1.0})\n"
        "train(f)"),
    "scores of GSM8K and MATH by `data_source`": ("keys('rollout_worker.evaluator=gsm8k')",
        "has('evaluator', 'math')"),
    "`reward.reward_model.enable`, `model_path`": ("keys('reward.reward_model.enable=true')",
        "keys('rollout_worker.evaluator={type: reward_model, path: folder}')"),
    "`reward.reward_manager.name=dapo`": ("keys('reward.reward_manager.name=dapo')",
        "keys('trainer.algorithm.overlong.buffer=2'); prepare('dapo')"),
    "`reward.sandbox_fusion`": ("keys('reward.sandbox_fusion.url=x')", "has('evaluator', 'code')"),
    "`algorithm.adv_estimator=grpo`": ("keys('algorithm.adv_estimator=grpo')",
        "base('grpo', *ALGORITHM, 'advantage', 'type')"),
    "`rloo`, `reinforce_plus_plus`, `gae`": (
        "keys('trainer.algorithm.advantage=reinforce_plus_plus')",
        "for name in ('rloo', 'reinforce_pp', 'gae'): keys(f'trainer.algorithm.advantage={name}',"
        " 'models.policy.train={type: local, value_head: true}')"),
    "`remax`, `opo`, `gpg`, `gdpo`, `grpo_passk`": (
        "keys('trainer.algorithm.advantage=remax')", None),
    "`algorithm.norm_adv_by_std_in_grpo`": ("keys('algorithm.norm_adv_by_std_in_grpo=true')",
        "base(True, *ALGORITHM, 'advantage', 'normalize')"),
    "`algorithm.gamma`, `algorithm.lam`": ("keys('algorithm.lam=1.0')",
        "found = keys('trainer.algorithm.advantage=gae',"
        " 'models.policy.train={type: local, value_head: true}')\n"
        "found = found['trainer']['algorithm']['advantage']\n"
        "assert (found['gamma'], found['lam']) == (1.0, 0.95)"),
    "`algorithm.use_kl_in_reward`, `kl_penalty`, `kl_ctrl`": (
        "keys('algorithm.use_kl_in_reward=true')",
        "keys('trainer.algorithm.kl.reward={coefficient: 0.001, kind: kl, controller: fixed}',"
        " REFERENCE)\n"
        "base(0.0, *ALGORITHM, 'kl', 'reward', 'coefficient')"),
    "`actor_rollout_ref.ref`": ("keys('actor_rollout_ref.ref.strategy=fsdp')", "keys(REFERENCE)"),
    "`critic`": ("keys('critic.optim.lr=1e-5')",
        "keys('models.policy.train={type: local, value_head: true}')"),
    "`critic.cliprange_value`": ("keys('critic.cliprange_value=0.5')",
        "base(0.2, *ALGORITHM, 'value', 'clip')"),
    "`algorithm.filter_groups.enable`": ("keys('algorithm.filter_groups.enable=true')",
        "keys('trajectory_pool.drop_equal_groups=true')"),
    "`algorithm.rollout_correction.rollout_is=token`": (
        "keys('algorithm.rollout_correction.rollout_is=token')",
        "keys('trainer.algorithm.sampler_correction={level: token, cap: 2.0}')\n"
        "base('none', *ALGORITHM, 'sampler_correction', 'level')"),
    "`algorithm.use_pf_ppo`": ("keys('algorithm.use_pf_ppo=true')", None),
    "`distillation.enabled`": ("keys('distillation.enabled=true')",
        "has('trainer', 'self_hosted_opd')"),
    "`trainer.total_training_steps`": ("keys('trainer.total_training_steps=100')",
        "base(100, 'trainer', 'total_train_steps')"),
    "`trainer.total_epochs`": ("keys('trainer.total_epochs=30')", None),
    "`trainer.project_name`, `trainer.experiment_name`": ("keys('trainer.project_name=x')",
        "keys('project_name=x', 'experiment_name=y')"),
    "`trainer.logger`": ("keys('trainer.logger=[wandb]')", "keys('trackers=[wandb]')\n"
        "base([], 'trackers')"),
    "`trainer.log_val_generations`, `rollout_data_dir`": ("keys('trainer.log_val_generations=1')",
        "assert run().samples['rollouts']"),
    "`trainer.save_freq`": (
        "assert keys('trainer.save_freq=20')['settings']['checkpoint_every'] == 20", None),
    "`trainer.max_actor_ckpt_to_keep`": ("keys('trainer.max_actor_ckpt_to_keep=1')",
        "base(2, 'settings', 'keep_checkpoints')"),
    "`trainer.test_freq`": ("keys('trainer.test_freq=20')", "keys('validate.every=20')"),
    "`trainer.val_before_train`": ("keys('trainer.val_before_train=true')",
        "base(True, 'validate', 'validate_before_train')"),
    "`trainer.val_only`": ("keys('trainer.val_only=true')", "command('eval')"),
    "`trainer.resume_mode=auto`": ("keys('trainer.resume_mode=auto')", "command('resume')"),
    "`trainer.default_local_dir`": ("keys('trainer.default_local_dir=x')",
        "keys('settings.runs_folder=x'); keys('settings.checkpoint_path=x')"),
    "`trainer.critic_warmup`": ("keys('trainer.critic_warmup=10')", None),
    "`python -m verl.trainer.main_ppo k=v`": ("import plugrl.trainer.main_ppo", "command('train')"),
    "`+key=value` of Hydra": ("keys('+data.own=1')", None),
    "`python -m verl.model_merger`": ("import plugrl.model_merger", "command('export')"),
    "`python -m verl.trainer.sft_trainer`": ("import plugrl.trainer.sft_trainer",
        "has('trainer', 'self_hosted_cross_entropy')"),
    "`@register_adv_est`": ("plugrl.register_adv_est", "plugrl.register_advantage('of_verl')"),
    "`@register_policy_loss`": ("plugrl.register_policy_loss", "plugrl.register_loss('of_verl')"),
    "`verl.plugins` and `VERL_USE_EXTERNAL_MODULES`": ("plugrl.plugins.load_all",
        "command('plugins')"),
    "`DataProto`": ("plugrl.DataProto", "plugrl.Batch"),
    "a subclass of `RayPPOTrainer`": ("plugrl.RayPPOTrainer", "plugrl.SelfHostedTrainer"),
}  # fmt: skip

PAGES = [
    NamePage("from-stable-baselines3.md", _CONTROL, SB3),
    NamePage("from-trl.md", _TEXT, TRL),
    NamePage("from-verl.md", _TEXT, VERL),
]
ROWS = [row for page in PAGES for row in page.params()]


@pytest.mark.integration
@pytest.mark.parametrize(("page", "name", "state"), ROWS)
def test_a_row_says_what_happens(page, name, state):
    page.try_row(name, state)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_every_trial_is_of_a_row(page):
    rows = [row[0] for row in page.rows]
    assert set(page.trials) == set(rows)
    assert len(set(rows)) == len(rows) > 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_a_row_that_is_replaced_says_with_what(page):
    assert all(len(row) == 3 and len(row[2]) > 3 for row in page.rows if row[1] == "instead")
    assert all(re.fullmatch(r"[^|]+", row[0]) for row in page.rows)


def test_the_readme_trains_the_recipe_gsm8k():
    """Its second program needs a hub and a GPU, so that its configuration is compared."""
    page = (DOCS.parent / "README.md").read_text("utf-8")
    code = page.partition("<!-- file: gsm8k.py -->\n```python\n")[2].partition("```")[0]
    assert code.count(".train()") == 1
    scope = {}
    exec(code.replace("plugrl.GRPO(", "form = plugrl.GRPO(").replace(".train()", ""), scope)
    config, recipe = scope["form"].config, yaml.safe_load((RECIPES / "gsm8k.yaml").read_text())
    named = ("name", "subset", "map", "rollout_repeat_n")
    assert {key: config["data"][key] for key in named} == {
        key: recipe["data"][key] for key in named
    }
    source = recipe["models"]["policy"]["source"]
    assert config["models"]["policy"]["source"]["path"] == source["path"]
    assert config["trainer"]["type"] == recipe["trainer"]["type"]
    assert f'reward="{recipe["rollout_worker"]["evaluator"]}"' in code


def test_the_numbers_of_the_comparison_are_those_of_the_package():
    from plugrl.core.plugins.kinds import KINDS
    from plugrl.core.plugins.registry import default_registry

    page = (DOCS / "comparison.md").read_text("utf-8")

    def own(kind):
        found = default_registry().records(kind)
        return sum(record.distribution == "plugrl" for record in found)

    assert f"for {len(KINDS)} kinds" in page
    assert f"{own('advantage')} advantages, {own('loss')} losses" in page
    alone = [name for name in RECIPES.glob("*.yaml") if name.stem.startswith(("cart", "pendulum"))]
    assert f"{len(alone)} recipes for single agents" in page
