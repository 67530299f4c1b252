"""Steps, advantages, losses, gradients and updates of small networks beside Stable-Baselines3.

Its own code collects batches and computes updates (``sb3_losses.py``); the same weights and the
same batch give the same numbers here, and the same noise the same batch.
"""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import peers
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.gsde import GsdeHead
from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage
from plugrl.core.tensordict.learn.learner import Learner
from plugrl.core.tensordict.learn.optimizer import optimizer_for
from plugrl.core.tensordict.sections import RlConfig
from plugrl.scenarios.gymnasium import stepped
from plugrl.scenarios.gymnasium.scenario import GymnasiumScenario
from plugrl.trainers.a2c import A2cLoss
from plugrl.trainers.critics import Critics
from plugrl.trainers.dqn import DqnLoss
from plugrl.trainers.sac import SacLoss
from plugrl.trainers.td3 import Td3Loss
from plugrl.trainers.vanilla_ppo import PpoLoss

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GAMMA, LAMBDA = 0.97, 0.9
SPACES = {
    "CartPole-v1": (
        gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        gymnasium.spaces.Discrete(2),
    ),
    "Pendulum-v1": (
        gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32),
    ),
    "Pendulum-v1 scaled": (
        gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32),
    ),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """The arrays of a case by name."""
    folder = tmp_path_factory.mktemp("sb3")
    peers.answer(Path(__file__).with_name("sb3_losses.py"), folder, str(folder))

    def read(case):
        with np.load(folder / f"{case}.npz") as file:
            return {name: torch.from_numpy(np.array(file[name])) for name in file.files}

    return read


def agent_for(environment, activation="tanh", gsde=False, sde_sample_freq=None, **options):
    body = {"type": "mlp", "hidden": [16, 12], "activation": activation}
    spaces = {"agent": AgentSpaces(*SPACES[environment])}
    head = {"use_sde": gsde, "sde_sample_freq": sde_sample_freq}
    section = {"_default": {"body": body, "policy_head": head}}
    return build_agents(spaces, section, **options).policies["agent"]


def linears(*modules):
    return [m for module in modules for m in module.modules() if isinstance(m, nn.Linear)]


def networks_of(agent):
    """The layers of an agent under the names of ``sb3_losses.py``."""
    found = {"policy": linears(agent.policy_body, agent.policy_head)}
    if agent.value_head is not None:
        found["value"] = linears(agent.value_body, agent.value_head)
    return found


def free_of(agent):
    """The weights alone that deviations come from."""
    head = agent.policy_head
    return head.log_std if isinstance(head, GsdeHead) else head.free


@torch.no_grad()
def write(agent, given, prefix):
    """Give an agent the weights of a network of theirs, whose last layer may be in two parts."""
    for network, layers in networks_of(agent).items():
        for number, layer in enumerate(layers):
            for name, parameter in layer.named_parameters():
                rows = [given[f"{prefix}/{network}/{number}/{name}"]]
                if layer is layers[-1] and f"{prefix}/{network}/{number + 1}/{name}" in given:
                    rows.append(given[f"{prefix}/{network}/{number + 1}/{name}"])
                parameter.copy_(torch.cat(rows))
    if f"{prefix}/free/0" in given:
        free_of(agent).copy_(given[f"{prefix}/free/0"])


def check_gradients(agent, given, factor=1.0):
    for network, layers in networks_of(agent).items():
        for number, layer in enumerate(layers):
            for name, parameter in layer.named_parameters():
                rows = [given[f"gradients/{network}/{number}/{name}"]]
                if layer is layers[-1] and f"gradients/{network}/{number + 1}/{name}" in given:
                    rows.append(given[f"gradients/{network}/{number + 1}/{name}"])
                close(parameter.grad, factor * torch.cat(rows), f"{network} {number} {name}")
    if "gradients/free/0" in given:
        close(free_of(agent).grad, given["gradients/free/0"], "free")


def close(ours, wanted, name):
    assert wanted.abs().max() > 0, name
    scale = wanted.abs().max().item()
    torch.testing.assert_close(
        ours.detach(),
        wanted.reshape(ours.shape).float(),
        rtol=1e-4,
        atol=1e-5 * scale,
        msg=lambda text: f"{name}: {text}",
    )


def collected(given, discrete):
    """Their batch ``[E, T]`` as ours; they count time first."""

    def row_first(name):
        return given[name].transpose(0, 1)

    def column(name):
        return row_first(name).unsqueeze(-1)

    following = {
        "observation": row_first("next"),
        "reward": column("reward").float(),
        "terminated": column("terminated"),
        "done": column("done"),
    }
    rows, steps = given["reward"].shape[1], given["reward"].shape[0]
    action = row_first("actions")
    return TensorDict(
        {
            "observation": row_first("observations"),
            "action": action.squeeze(-1).long() if discrete else action,
            "action_log_prob": row_first("log_probs"),
            "next": TensorDict(following, batch_size=[rows, steps]),
        },
        batch_size=[rows, steps],
    )


@pytest.mark.parametrize(
    "ending", ["discrete", "continuous", "discrete_unscaled", "continuous_unscaled", "gsde"]
)
@pytest.mark.parametrize("kind", ["ppo", "a2c"])
def test_on_policy_updates(theirs, kind, ending):
    discrete, scaled = ending.startswith("discrete"), not ending.endswith("unscaled")
    environment = "CartPole-v1" if discrete else "Pendulum-v1"
    given = theirs(f"{kind}_{ending}")
    assert given["done"].any()
    assert (given["done"] & ~given["terminated"]).any()  # truncated episodes keep their value
    agent = agent_for(environment, gsde=ending == "gsde")
    write(agent, given, "collected")
    batch = collected(given, discrete)
    with torch.no_grad():
        log_prob = agent.distribution.log_prob(agent.policy(batch["observation"]), batch["action"])
        GeneralisedAdvantage(agent, GAMMA, LAMBDA)(batch)
    close(log_prob, batch["action_log_prob"], "log-probabilities")
    for ours, name in (
        ("state_value", "values"),
        ("advantage", "advantages"),
        ("value_target", "returns"),
    ):
        close(batch[ours].squeeze(-1), given[name].transpose(0, 1), name)
    write(agent, given, "weights")
    options = {"critic_coef": 0.4, "entropy_eps": 0.02, "normalize_advantage": scaled}
    if kind == "ppo":
        loss = PpoLoss(agent, clip_epsilon=0.1, **options)
    else:
        loss = A2cLoss(agent, **options)
    losses = loss(batch.flatten())
    total = sum(value for name, value in losses.items() if name.startswith("loss_"))
    total.backward()
    policy_loss = {"ppo": "policy_gradient_loss", "a2c": "policy_loss"}[kind]
    close(losses["loss_objective"], given[f"logged/{policy_loss}"], "policy loss")
    close(losses["loss_critic"] / 0.4, given["logged/value_loss"], "value loss")
    close(-losses["entropy"], given["logged/entropy_loss"], "entropy")
    if kind == "ppo":
        close(total, given["logged/loss"], "loss")
        close(losses["kl"], given["logged/approx_kl"], "divergence")
        assert losses["clip_fraction"].item() == pytest.approx(given["logged/clip_fraction"].item())
        assert 0.05 < losses["clip_fraction"].item() < 0.95
    check_gradients(agent, given)


def test_a_whole_iteration_ends_at_the_same_weights(theirs):
    given = theirs("ppo_iteration")
    agent = agent_for("Pendulum-v1", gsde=True)
    check_scales(agent, given)
    write(agent, given, "collected")
    first = {name: value.clone() for name, value in agent.state_dict().items()}
    rl = SimpleNamespace(lr=1e-3, optimizer="adam", adam_eps=RlConfig().adam_eps)
    loss = PpoLoss(agent, clip_epsilon=0.2, critic_coef=0.5, normalize_advantage=True)
    learner = Learner(
        agent,
        loss,
        GeneralisedAdvantage(agent, GAMMA, LAMBDA),
        optimizer_for(agent, loss, rl),
        max_grad_norm=0.5,
    )
    batch = collected(given, discrete=False)
    batch["valid"] = torch.ones(batch.batch_size, dtype=torch.bool)
    learner.learn_batch(
        batch,
        np.random.RandomState(9),  # the order in which they take the steps
        epochs=5,
        minibatch_size=64,
        reads_next=False,
        not_finite=pytest.fail,
    )
    ours = {name: value.clone() for name, value in agent.state_dict().items()}
    write(agent, given, "updated")
    for name, value in agent.state_dict().items():
        # By how much weights differ, beside how far the 20 steps moved them.
        moved = (value - first[name]).abs().max().item()
        assert moved > 1e-3, name
        assert (ours[name] - value).abs().max().item() < 1e-3 * moved, name


def test_the_same_noise_collects_the_same_steps(theirs, monkeypatch):
    given = theirs("ppo_iteration")
    agent = agent_for("Pendulum-v1", gsde=True, sde_sample_freq=4)
    write(agent, given, "collected")
    matrices = iter(given["matrices"])
    monkeypatch.setattr(agent.policy_head, "exploration_matrices", lambda drawn: next(matrices))
    # Their copies are seeded with the seed of the model, and the numbers that follow it.
    monkeypatch.setattr(stepped, "copy_seeds", lambda seed, count: [seed + i for i in range(count)])
    section = {"id": "Pendulum-v1", "num_envs": 4, "max_episode_steps": 20}
    environment = GymnasiumScenario(section).build(0).make_environment("train")
    count = len(given["reward"])
    with closing(environment):
        collector = Collector(
            environment,
            {"agent": "agent"},
            {"agent": acting_for(agent, np.random.default_rng(0))},
            steps=count,
            normalisers=Normalisers(
                {"agent": (3,)}, {"agent": 4}, observations=False, rewards=False, gamma=GAMMA
            ),
        )
        collector.begin(2)
        batch = collector.collect()["agent"]
    assert next(matrices, None) is None  # as often as there
    wanted = collected(given, discrete=False)
    assert (wanted["action"].abs() > 2).any()  # beyond the bounds actions are kept as drawn
    assert batch["valid"].all()
    for name, found in batch.exclude("valid").items(include_nested=True, leaves_only=True):
        torch.testing.assert_close(found, wanted[name], rtol=1e-4, atol=1e-3, msg=str(name))


def check_scales(agent, given):
    """First weights have the singular values of theirs, whatever their directions; biases are 0."""
    for network, layers in networks_of(agent).items():
        for number, layer in enumerate(layers):
            name = f"collected/{network}/{number}"
            wanted = torch.linalg.svdvals(given[f"{name}/weight"])
            close(torch.linalg.svdvals(layer.weight), wanted, name)
            assert not layer.bias.any(), name
            assert not given[f"{name}/bias"].any(), name
    assert torch.equal(free_of(agent), given["collected/free/0"])


def replayed(given, environment):
    """Their sample of the replay buffer: rewards end where an episode terminated."""
    space = SPACES[environment][1]
    actions = given["actions"]
    if isinstance(space, gymnasium.spaces.Discrete):
        actions = actions.squeeze(-1).long()
    else:
        actions = actions * float(space.high[0])  # they keep them scaled to -1 to 1
    rows = len(given["rewards"])
    terminated = given["dones"].bool()
    following = {
        "observation": given["next_observations"].float(),
        "reward": given["rewards"].float(),
        "terminated": terminated,
        "done": terminated,
    }
    return TensorDict(
        {
            "observation": given["observations"].float(),
            "action": actions,
            "next": TensorDict(following, batch_size=[rows]),
        },
        batch_size=[rows],
    )


def test_dqn(theirs):
    given = theirs("dqn")
    assert given["dones"].any()
    agent = agent_for("CartPole-v1", "relu", critic=False)
    write(agent, given, "weights")
    loss = DqnLoss(agent, gamma=GAMMA)
    write_target(loss.target, given)
    losses = loss(replayed(given, "CartPole-v1"))
    losses["loss_qvalue"].backward()
    close(losses["loss_qvalue"], given["logged/loss"], "loss")
    check_gradients(agent, given)


def write_target(agent, given, prefix="weights"):
    """Give a target network the weights of theirs."""
    start = f"{prefix}/target_policy/"
    named = {
        f"{prefix}/policy/{name.removeprefix(start)}": value
        for name, value in given.items()
        if name.startswith(start)
    }
    write(agent, named, prefix)


def critics_for(environment):
    observation, action = SPACES[environment]
    return Critics(observation.shape[0], action, (16, 12))


def critic_arrays(given, start):
    """Weights and biases of two critics as :class:`Critics` has them."""
    for number in range(3):
        pairs = [
            (given[f"{start}critic{i}/{number}/weight"], given[f"{start}critic{i}/{number}/bias"])
            for i in range(2)
        ]
        yield torch.stack([weight.T for weight, _ in pairs])
        yield torch.stack([bias[None] for _, bias in pairs])


def in_order(critics):
    for weight, bias in zip(critics.weights, critics.biases, strict=True):
        yield weight
        yield bias


@torch.no_grad()
def write_critics(critics, given, start):
    for parameter, value in zip(in_order(critics), critic_arrays(given, start), strict=True):
        parameter.copy_(value)


def check_critics(critics, given, factor):
    wanted = critic_arrays(given, "gradients/")
    for number, (parameter, value) in enumerate(zip(in_order(critics), wanted, strict=True)):
        close(parameter.grad, factor * value, f"critics {number}")


def check_targets(critics, given):
    wanted = critic_arrays(given, "weights/target_")
    for number, (parameter, value) in enumerate(zip(in_order(critics), wanted, strict=True)):
        close(parameter, value, f"target critics {number}")


def test_td3(theirs):
    given = theirs("td3")
    agent = agent_for("Pendulum-v1", "relu", critic=False, squash="deterministic")
    critics = critics_for("Pendulum-v1")
    write(agent, given, "weights")
    write_critics(critics, given, "weights/")
    loss = Td3Loss(
        agent,
        critics,
        gamma=GAMMA,
        tau=0.1,
        target_policy_noise=0.2,
        target_noise_clip=0.25,
        generator=torch.Generator().manual_seed(7),
    )
    write_target(loss.target_agent, given, "collected")
    write_critics(loss.target_critics, given, "collected/target_")
    losses = loss(replayed(given, "Pendulum-v1"))
    (losses["loss_qvalue"] + losses["loss_actor"]).backward()
    close(losses["loss_qvalue"], given["logged/critic_loss"], "critic loss")
    close(losses["loss_actor"], given["logged/actor_loss"], "actor loss")
    check_gradients(agent, given)
    check_critics(critics, given, 1.0)
    loss.update_targets()
    check_targets(loss.target_critics, given)
    expected = agent_for("Pendulum-v1", "relu", critic=False, squash="deterministic")
    write_target(expected, given)
    torch.testing.assert_close(loss.target_agent.state_dict(), expected.state_dict())


def test_sac(theirs):
    """Their loss of the critics is half of ours, which is the sum of the papers' errors."""
    given = theirs("sac")
    agent = agent_for("Pendulum-v1 scaled", "relu", critic=False, squash=True)
    critics = critics_for("Pendulum-v1 scaled")
    write(agent, given, "weights")
    write_critics(critics, given, "weights/")
    loss = SacLoss(
        agent,
        critics,
        gamma=GAMMA,
        tau=0.1,
        alpha=0.3,
        target_entropy=-1.0,
        generator=torch.Generator().manual_seed(7),
    )
    write_critics(loss.target_critics, given, "collected/target_")
    losses = loss(replayed(given, "Pendulum-v1 scaled"))
    (losses["loss_qvalue"] + losses["loss_actor"] + losses["loss_alpha"]).backward()
    close(losses["loss_qvalue"], 2 * given["logged/critic_loss"], "critic loss")
    close(losses["loss_actor"], given["logged/actor_loss"], "actor loss")
    close(losses["loss_alpha"], given["logged/ent_coef_loss"], "loss of the temperature")
    check_gradients(agent, given)
    check_critics(critics, given, 2.0)
    close(loss.log_alpha.grad, given["gradients/temperature/0"], "temperature")
    loss.update_targets()
    check_targets(loss.target_critics, given)
