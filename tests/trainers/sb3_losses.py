"""One update of each algorithm of Stable-Baselines3, with all that goes in and comes out.

It runs where Stable-Baselines3 is installed: ``python sb3_losses.py FOLDER`` writes ``NAME.npz``
for each case. Its own code collects batches in environments whose episodes terminate and are
truncated, ``train`` is its own, and its optimizers note gradients in place of taking steps. Between
collection and update weights move a little, so that ratios are not 1 and targets not the networks.
One case is a whole iteration instead, from the first weights to those after all steps of Adam.

Networks are lists of linear layers: ``NAME/weights/NETWORK/LAYER/weight`` and ``bias``, and
``gradients`` of the same names.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from torch import nn

ENVIRONMENTS, ROWS = 4, 64
torch.set_num_threads(1)


class Noting(torch.optim.SGD):
    """Keeps the gradients of its only step, which changes nothing."""

    def step(self, closure=None):
        self.noted = [p.grad.clone() for p in self.parameters()]

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"]]

    def of(self, parameter):
        return next(g for p, g in zip(self.parameters(), self.noted, strict=True) if p is parameter)


def noting(parameters):
    return Noting(list(parameters), lr=0.0)


class Steps(BaseCallback):
    """Keeps what the environments gave, with the true last observations of episodes."""

    def __init__(self):
        super().__init__()
        self.kept = {name: [] for name in ("next", "reward", "terminated", "done")}

    def _on_step(self):
        seen, infos = self.locals["new_obs"].copy(), self.locals["infos"]
        done = self.locals["dones"].copy()
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        for number in np.flatnonzero(done):
            seen[number] = infos[number]["terminal_observation"]
        rows = (seen, self.locals["rewards"].copy(), done & ~cut, done)
        for name, row in zip(self.kept, rows, strict=True):
            self.kept[name].append(row)
        return True


def environments(name, *, length, scaled=False):
    def wrapped(env):
        return gymnasium.wrappers.RescaleAction(env, -1.0, 1.0) if scaled else env

    return make_vec_env(
        name,
        n_envs=ENVIRONMENTS,
        seed=3,
        env_kwargs={"max_episode_steps": length},
        wrapper_class=wrapped,
    )


def moved(*modules, seed=5, size=0.05):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters():
                parameter.add_(size * torch.randn(parameter.shape, generator=draw))


def linears(*modules):
    return [m for module in modules for m in module.modules() if isinstance(m, nn.Linear)]


def layers(networks, read):
    """Arrays by name of what ``read`` gives of each parameter."""
    found = {}
    for network, parts in networks.items():
        for number, part in enumerate(parts):
            if isinstance(part, torch.Tensor):
                found[f"{network}/{number}"] = read(part)
            else:
                found[f"{network}/{number}/weight"] = read(part.weight)
                found[f"{network}/{number}/bias"] = read(part.bias)
    return found


def save(case, model, networks, optimizers, arrays):
    def gradient(parameter):
        return next(
            o.of(parameter) for o in optimizers if any(p is parameter for p in o.parameters())
        )

    weights = layers(networks, lambda p: p.detach())
    trained = {name: parts for name, parts in networks.items() if not name.startswith("target")}
    given = {f"weights/{name}": value for name, value in weights.items()}
    given |= {f"gradients/{name}": value for name, value in layers(trained, gradient).items()}
    given |= {
        name.replace("train/", "logged/"): v for name, v in model.logger.name_to_value.items()
    }
    np.savez(FOLDER / f"{case}.npz", **{k: np.asarray(v) for k, v in {**given, **arrays}.items()})


def on_policy(case, kind, env, **options):
    torch.manual_seed(1)
    architecture = {"net_arch": {"pi": [16, 12], "vf": [16, 12]}, "log_std_init": -0.3}
    model = kind(
        "MlpPolicy",
        env,
        gamma=0.97,
        gae_lambda=0.9,
        vf_coef=0.4,
        ent_coef=0.02,
        max_grad_norm=1e9,
        policy_kwargs=architecture,
        seed=2,
        device="cpu",
        **options,
    )
    model.set_logger(configure(None, []))
    moved(model.policy, seed=4, size=0.3)
    steps = Steps()
    _, callback = model._setup_learn(1, steps)
    model.collect_rollouts(env, callback, model.rollout_buffer, model.n_steps)
    buffer, policy = model.rollout_buffer, model.policy
    networks = {
        "policy": linears(policy.mlp_extractor.policy_net, policy.action_net),
        "value": linears(policy.mlp_extractor.value_net, policy.value_net),
    }
    if hasattr(policy, "log_std"):
        networks["free"] = [policy.log_std]
    arrays = {
        f"collected/{name}": value.clone()
        for name, value in layers(networks, lambda p: p.detach()).items()
    }
    for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
        arrays[name] = getattr(buffer, name).copy()
    arrays |= {name: np.stack(rows) for name, rows in steps.kept.items()}
    moved(policy)
    optimizer = policy.optimizer = noting(policy.parameters())
    model.train()
    save(case, model, networks, [optimizer], arrays)


def whole_iteration(case, env):
    """An iteration of PPO as it is: its first weights, its noise, its batch, its last weights."""
    torch.manual_seed(1)
    model = PPO(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        n_steps=64,
        batch_size=64,
        n_epochs=5,
        gamma=0.97,
        gae_lambda=0.9,
        max_grad_norm=0.5,
        use_sde=True,
        sde_sample_freq=4,
        policy_kwargs={"net_arch": {"pi": [16, 12], "vf": [16, 12]}},
        seed=2,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    buffer, policy = model.rollout_buffer, model.policy
    networks = {
        "policy": linears(policy.mlp_extractor.policy_net, policy.action_net),
        "value": linears(policy.mlp_extractor.value_net, policy.value_net),
        "free": [policy.log_std],
    }
    named = layers(networks, lambda p: p.detach().clone())
    arrays = {f"collected/{name}": value for name, value in named.items()}
    steps, drawn, draw = Steps(), [], policy.reset_noise

    def noted(count):
        draw(count)
        drawn.append(policy.action_dist.exploration_matrices.detach().clone())

    policy.reset_noise = noted
    _, callback = model._setup_learn(1, steps)
    model.collect_rollouts(env, callback, buffer, model.n_steps)
    # What a rollout begins with is drawn once more before its first step.
    arrays["matrices"] = np.stack(drawn[1:])
    for name in ("observations", "actions", "log_probs"):
        arrays[name] = getattr(buffer, name).copy()
    arrays |= {name: np.stack(rows) for name, rows in steps.kept.items()}
    np.random.seed(9)  # it draws the order of the steps
    model.train()
    named = layers(networks, lambda p: p.detach())
    arrays |= {f"updated/{name}": value for name, value in named.items()}
    np.savez(FOLDER / f"{case}.npz", **{k: np.asarray(v) for k, v in arrays.items()})


def off_policy(case, kind, env, **options):
    torch.manual_seed(1)
    model = kind(
        "MlpPolicy",
        env,
        gamma=0.97,
        learning_starts=10**6,
        policy_kwargs={"net_arch": [16, 12]},
        seed=2,
        device="cpu",
        **options,
    )
    model.set_logger(configure(None, []))
    model.learn(400)
    model.set_logger(configure(None, []))
    batch = model.replay_buffer.sample(ROWS)
    model.replay_buffer.sample = lambda *args, **kwargs: batch
    names = ("observations", "actions", "next_observations", "rewards", "dones")
    return model, {name: getattr(batch, name) for name in names}


def dqn():
    env = environments("CartPole-v1", length=13)
    model, arrays = off_policy("dqn", DQN, env, max_grad_norm=1e9)
    moved(model.q_net, size=0.1)
    optimizer = model.policy.optimizer = noting(model.q_net.parameters())
    networks = {"policy": linears(model.q_net), "target_policy": linears(model.q_net_target)}
    model.train(1, ROWS)
    save("dqn", model, networks, [optimizer], arrays)


def critics(critic):
    return {f"critic{i}": linears(network) for i, network in enumerate(critic.q_networks)}


def actor_critic(case, kind, env, *, act, **options):
    model, arrays = off_policy(case, kind, env, tau=0.1, **options)
    moved(model.actor, model.critic, size=0.1)
    optimizers = [noting(model.actor.parameters()), noting(model.critic.parameters())]
    model.actor.optimizer, model.critic.optimizer = optimizers
    networks = {"policy": act(model.actor), **critics(model.critic)}
    targets = {f"target_{name}": parts for name, parts in critics(model.critic_target).items()}
    if kind is TD3:
        targets["target_policy"] = act(model.actor_target)
    before = layers(targets, lambda p: p.detach().clone())
    arrays |= {f"collected/{name}": value for name, value in before.items()}
    return model, arrays, {**networks, **targets}, optimizers


def td3():
    env = environments("Pendulum-v1", length=20)
    model, arrays, networks, optimizers = actor_critic(
        "td3",
        TD3,
        env,
        act=lambda actor: linears(actor.mu),
        policy_delay=1,
        target_policy_noise=0.2,
        target_noise_clip=0.25,
    )
    torch.manual_seed(7)
    model.train(1, ROWS)
    save("td3", model, networks, optimizers, arrays)


def sac():
    env = environments("Pendulum-v1", length=20, scaled=True)
    model, arrays, networks, optimizers = actor_critic(
        "sac",
        SAC,
        env,
        act=lambda actor: [*linears(actor.latent_pi), actor.mu, actor.log_std],
        ent_coef="auto_0.3",
    )
    model.ent_coef_optimizer = noting([model.log_ent_coef])
    networks["temperature"] = [model.log_ent_coef]
    draw = model.actor.action_log_prob
    calls = iter((1, 0))

    def drawn(observations):
        # Noise of the following observations first, then that of the present ones.
        torch.manual_seed(7)
        for _ in range(next(calls)):
            torch.randn(ROWS, 1)
        return draw(observations)

    model.actor.action_log_prob = drawn
    model.train(1, ROWS)
    save("sac", model, networks, [*optimizers, model.ent_coef_optimizer], arrays)


FOLDER = Path(sys.argv[1])
for scaling in (True, False):
    end = "" if scaling else "_unscaled"
    for ending, name, length in (
        ("discrete", "CartPole-v1", 13),
        ("continuous", "Pendulum-v1", 20),
    ):
        env = environments(name, length=length)
        clip = {"batch_size": 128, "n_epochs": 1, "clip_range": 0.1}
        on_policy(f"ppo_{ending}{end}", PPO, env, n_steps=32, normalize_advantage=scaling, **clip)
        on_policy(f"a2c_{ending}{end}", A2C, env, n_steps=32, normalize_advantage=scaling)
env = environments("Pendulum-v1", length=20)
noise = {"n_steps": 32, "normalize_advantage": True, "use_sde": True, "sde_sample_freq": 8}
on_policy("ppo_gsde", PPO, env, batch_size=128, n_epochs=1, clip_range=0.1, **noise)
on_policy("a2c_gsde", A2C, env, **noise)
whole_iteration("ppo_iteration", environments("Pendulum-v1", length=20))
dqn()
td3()
sac()
