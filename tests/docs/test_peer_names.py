"""The pages for people who come from Stable-Baselines3, TRL and verl: every row is tried."""

from __future__ import annotations

import re

import pytest

from tests.docs.name_tables import NamePage

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
    "`optimizer_class`": ("tree(optimizer_class=torch.optim.SGD)", None),
    "`use_sde`": ("tree(use_sde=True)", None),
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
    "`clip_range`": ("tree(clip_range=0.2)", "default(0.2, plugrl.PPO, 'ppo', 'clip_epsilon')"),
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

PAGES = [
    NamePage("from-stable-baselines3.md", _CONTROL, SB3),
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
