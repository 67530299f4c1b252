"""Every remedy that messages about environments and networks recommend is tried."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from remedies import NETS, Row, row, tiered, tried, untried
from safetensors import safe_open
from safetensors.torch import save_file
from torchrl.envs import GymEnv
from trials import Read, Trial, refused, tiered_trials

import plugrl
from plugrl import Labelled, MessageSpace, ProtocolEnvironment, make_protocol
from plugrl.core.experiment import load_run, prepare
from plugrl.core.factory import make_component
from plugrl.core.plugins.registry import default_registry
from plugrl.core.sweep import plan_runs
from plugrl.core.tensordict.agents.acting import acting_for
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.loading import TrainedWeights, restore_policies
from plugrl.core.tensordict.collect.replay_buffer import ReplayBuffer
from plugrl.core.tensordict.environment.contract import check_reset
from plugrl.core.tensordict.environment.copies import Crashes
from plugrl.core.tensordict.environment.film import missing, write_film
from plugrl.core.tensordict.environment.layout import Layout
from plugrl.core.tensordict.environment.spaces import WRAP, WRAPPERS, Spaces
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.core.tensordict.learn.compiled_loss import _refusal
from plugrl.core.tensordict.learn.loss_contract import check_losses, loss_module_and_gae
from plugrl.core.tensordict.policy import Policy
from plugrl.core.tensordict.sections import RlConfig
from plugrl.core.tensordict.standalone import default_hyper_params
from plugrl.core.tensordict.trainer import TensorDictTrainer
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer

_SEEN = spaces.Box(-1, 1, (2,), np.float32)


class Own(gymnasium.Env):
    """An environment with spaces of its own."""

    def __init__(self, observation=_SEEN, action=None, render_mode=None):
        self.observation_space = observation
        self.action_space = action or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}


class AsBox(gymnasium.ObservationWrapper):
    """The observation wrapper that messages ask for."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = _SEEN

    def observation(self, observation):
        return np.zeros(2, np.float32)


class Bounded(gymnasium.ActionWrapper):
    """The action wrapper that bounds actions."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def action(self, action):
        return action


class AsChoice(gymnasium.ActionWrapper):
    """The action wrapper that messages ask for."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = spaces.Discrete(2)

    def action(self, action):
        return {"a": action}


_OWN = {
    "Parts": {"observation": spaces.Dict({"a": _SEEN, "b": spaces.Discrete(3)})},
    "Partly": {"observation": spaces.Dict({"a": _SEEN, "b": spaces.Sequence(_SEEN)})},
    "Text": {"observation": spaces.Text(3)},
    "Chosen": {"action": spaces.Dict({"a": spaces.Discrete(2)})},
    "Plain": {},
    "Far": {"action": spaces.Box(-1e30, 1e30, (1,), np.float32)},
    "Endless": {"action": spaces.Box(-np.inf, np.inf, (1,), np.float32)},
}
for _name, _spaces in _OWN.items():
    gymnasium.register(f"own/{_name}-v0", Own, kwargs=_spaces, max_episode_steps=5)
_WRAPPERS = "scenario.wrappers=[gymnasium.wrappers:FlattenObservation]"
_BOUNDED = f"scenario.wrappers=[{__file__}:Bounded]"
_PPO = "trainer=vanilla_ppo rl= sac= agents="
_NIP = "graph_isomorphism_nip"
_SCHEDULE = "agents._default.update_schedule"
_HEAD = "agents._default.policy_head"

ROWS: list[Row] = [
    row("scenario.id=own/Parts-v0", "flatten it with scenario.wrappers=", base="nets"),
    row(
        "scenario.id=own/Parts-v0",
        "or keep some of its entries with gymnasium.wrappers:FilterObservation first",
        "scenario.id=own/Parts-v0 scenario.wrappers=[{path: gymnasium.wrappers:FilterObservation,"
        "kwargs: {filter_keys: [a]}},gymnasium.wrappers:FlattenObservation]",
        base="nets",
    ),
    row(
        "scenario.id=own/Partly-v0",
        "and flatten the rest with scenario.wrappers=[{path: gymnasium.wrappers:FilterObservation",
        "scenario.id=own/Partly-v0 scenario.wrappers=[{path: gymnasium.wrappers:FilterObservation,"
        "kwargs: {filter_keys: [a]}},gymnasium.wrappers:FlattenObservation]",
        base="nets",
    ),
    row(
        "scenario.id=own/Text-v0",
        "write a gymnasium.ObservationWrapper whose observations are a Box",
        f"scenario.id=own/Text-v0 scenario.wrappers=[{__file__}:AsBox]",
        base="nets",
    ),
    row(
        "scenario.id=own/Chosen-v0",
        "write a gymnasium.ActionWrapper that takes a Box",
        f"scenario.id=own/Chosen-v0 scenario.wrappers=[{__file__}:AsChoice]",
        base="nets",
    ),
    row(
        "scenario.id=own/Endless-v0 scenario.actions=rescale",
        "to which nothing can be rescaled; write scenario.actions: clip",
        base="nets",
    ),
    *(
        row(
            f"scenario.id=own/{name}-v0 {words}".strip(),
            says,
            f"scenario.id=own/{name}-v0 {edit}",
            base="pendulum_sac",
        )
        for name, words, says, edit in (
            ("Far", "", "(scenario.actions=rescale does it)", "scenario.actions=rescale"),
            ("Endless", "", "within bounds, by a gymnasium.ActionWrapper", _BOUNDED),
            (
                "Endless",
                "scenario.actions=rescale",
                "or bound them by a gymnasium.ActionWrapper in scenario.wrappers",
                _BOUNDED,
            ),
            ("Endless", "", "or take a trainer that does not squash", _PPO),
        )
    ),
    row(
        "agents.agnt.is_random=true",
        "the environment has no such agent; did you mean {}?",
        "-agents.agnt.is_random agents.agent.is_random=false",
        base="nets",
    ),
    *(
        row(
            "agents.agent.is_random=true agents.agent.scripted=x",
            "is_random and scripted exclude each other; remove one",
            f"-agents.agent.{key}",
            base="nets",
            left=left,
        )
        for key, left in (("is_random", "x"), ("scripted", "no agent is trained"))
    ),
    row(
        "agents._default.is_random=true",
        "give one is_random: false and an agent_lr_factor above 0",
        "agents._default.is_random=false",
        base="nets",
    ),
    row(
        "agents.left.policy=both agents.right.policy=both"
        " agents.left.use_orthogonal_initialisation=false",
        "write them once, under agents.{}",
        "-agents.left.use_orthogonal_initialisation"
        " agents.both.use_orthogonal_initialisation=false",
        base="two_cartpoles_ppo",
    ),
    row(
        "validate.opponent=random",
        "has no effect with one agent, {}; remove it",
        "-validate.opponent",
        base="nets",
    ),
    row(
        "validate.opponent=random validate.episodes=1",
        "give at least {}",
        "validate.episodes=2",
        base="tictactoe_ppo",
    ),
    row(
        "rl.normalize_observations=true",
        "observations with named parts are not scaled; remove it",
        "-rl.normalize_observations",
        base=_NIP,
    ),
    row(
        "message_regression.enabled=true",
        "agents of this scenario say nothing; take one with a protocol, or leave it out",
        "-message_regression.enabled",
        base="nets",
    ),
    row(
        "message_regression.enabled=true message_regression.agents=[prver]",
        "agents: there is no {}; did you mean {}?",
        "message_regression.agents=[prover]",
        base=_NIP,
    ),
    row(
        f"{_SCHEDULE}={{type: contiguous_periodic,period: 4,start: 3,stop: 2}}",
        "must be below stop, and both within 0 and period",
        f"{_SCHEDULE}.start=1",
        base="nets",
    ),
    row(
        f"{_SCHEDULE}={{type: alternating_periodic,period: 4,first_agent_num_iterations: 5}}",
        "must be at least 0 and at most period, and leave this agent some iterations",
        f"{_SCHEDULE}.first_agent_num_iterations=2",
        base="nets",
    ),
    row(
        f"scenario= scenario={{type: torchrl,environment: {__file__}:from_torchrl,"
        "collector: torchrl,num_envs: 2} trainer.type=dqn rl=",
        "this trainer learns between steps; write scenario.collector: arrays",
        f"scenario={{type: torchrl,environment: {__file__}:from_torchrl,"
        "collector: arrays,num_envs: 2}",
        base="nets",
    ),
    row(
        f"scenario= scenario={{type: torchrl,environment: {__file__}:continuous_from_torchrl,"
        "collector: torchrl,num_envs: 2} agents._default.policy_head.use_sde=true rl=",
        "noise of use_sde lasts longer; write scenario.collector: arrays",
        f"scenario={{type: torchrl,environment: {__file__}:continuous_from_torchrl,"
        "collector: arrays,num_envs: 2}",
        base="nets",
    ),
    row(
        f"{_HEAD}.use_sde=true",
        "use_sde has no effect, as {}; leave it out",
        f"-{_HEAD}.use_sde",
        base="nets",
    ),
    row(
        f"{_HEAD}.log_std_init=-2",
        "log_std_init has no effect, as no weights alone are the deviations of actions here; "
        "leave it out",
        f"-{_HEAD}.log_std_init",
        base="nets",
    ),
    *(
        row(
            f"{_HEAD}.{name}={value}",
            "{} has no effect without use_sde; leave it out",
            f"-{_HEAD}.{name}",
            base="nets",
        )
        for name, value in (("sde_sample_freq", 4), ("use_expln", "true"))
    ),
    row(
        "rl.use_shared_body=true",
        "has no effect on {}; remove it",
        "-rl.use_shared_body",
        base="pendulum_sac",
    ),
    row(
        "trainer.type=reinforce rl.clip_value=true",
        "needs the clip range of ppo, and this trainer has none; leave it out",
        "-rl.clip_value",
        base="nets",
    ),
    row(
        "agents.prover.scripted=matching_provr",
        "the task has no hand-made policy {}; did you mean {}?",
        "agents.prover.scripted=matching_prover",
        base=_NIP,
    ),
    row(
        "agents.prover.scripted=xx",
        "others are named package.module:function or file.py:function",
        f"agents.prover.scripted={__file__}:hand_made",
        base=_NIP,
    ),
    row(
        f"agents.prover.scripted={__file__}:hand_mad",
        "{} has no function {}; did you mean {}?",
        f"agents.prover.scripted={__file__}:hand_made",
        base=_NIP,
    ),
    row(
        "agents._default.load_from=latest",
        "is the run that trains, once it has begun; name the other run by its id",
        "agents._default.load_from=other",
        base="nets",
        left="no run",
    ),
    row(
        "rl.frames_per_batch=65",
        "is no multiple of {} environments; take {}",
        "rl.frames_per_batch=64",
        base="nets",
    ),
    row("scenario=null", "needs one", "scenario={type: gymnasium, id: CartPole-v1}", base="nets"),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


def hand_made(seen, spaces, rng):
    """A hand-made policy."""
    return np.zeros((len(seen), *spaces.action.shape), np.int64)


class Loss(torch.nn.Module):
    """A loss module that gives what it was given."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))


class Backward(Loss):
    def backward(self):
        return None


class Targets(Loss):
    def __init__(self, moved):
        super().__init__()
        self.target_value_params = torch.nn.Linear(1, 1)
        if moved:
            self.update_targets = lambda: None


def losses(make):
    module = Loss()
    check_losses(make(module), module)


def pair(given):
    loss_module_and_gae(given, "Mine")


def buffer(capacity):
    ReplayBuffer(capacity, seed=0)


def policy_of(action, squash=False):
    agents = build_agents({"agent": AgentSpaces(_SEEN, action)}, _SMALL, squash=squash)
    return agents.policies["agent"]


_SMALL = {"_default": {"body": {"hidden": [8]}}}


def drawn(add):
    held = ReplayBuffer(4, seed=0)
    if add:
        held.extend({"observation": torch.zeros(2, 1)})
    held.sample(1)


def held_in(capacity):
    ReplayBuffer(capacity, seed=0).extend({"observation": torch.zeros(1, 1)})


def spoken(make):
    """A protocol whose agents may say what a rule of messages allows."""

    class Ruled(MessageSpace):
        def allowed(self, agent, items, history):
            return make(len(history))

    protocol = make_protocol({"type": "nip"})
    ProtocolEnvironment(protocol, labelled("x"), Ruled(3), num_envs=5).reset(0)


def one_message(number):
    return np.tile([True, False, False], (number, 1, 1))


def shared(policies):
    """Two agents whose actions differ, with the names of their policies."""
    its = {"a": AgentSpaces(_SEEN, spaces.Discrete(2)), "b": AgentSpaces(_SEEN, spaces.Discrete(3))}
    given = zip(its, policies, strict=True)
    build_agents(its, _SMALL | {a: {**_SMALL["_default"], "policy": p} for a, p in given})


def labelled(name):
    return Labelled({name: np.zeros((6, 2), np.float32)}, np.arange(6) % 2)


def named(name):
    environment = ProtocolEnvironment(
        make_protocol({"type": "nip"}), labelled(name), MessageSpace(3), num_envs=5
    )
    environment.reset(0)


def spaces_of(observation=_SEEN, action=None, **options):
    return Spaces("own", observation, action or spaces.Discrete(2), **options)


def policy_file(write):
    with TemporaryDirectory() as folder:
        file = Path(folder, "policy")
        write(file)
        Policy.load(file)


def saved(file):
    Policy(policy_of(spaces.Discrete(2))).save(file)


def of_other_weights(file):
    saved(file)
    with safe_open(str(file), "pt") as read:
        metadata = read.metadata()
    save_file({"network.body.0.weight": torch.zeros(2, 2)}, file, metadata)


def trainer_class(body):
    type("Mine", (TensorDictTrainer,), {"_train": lambda self: None, **body})


def without_scenario(instance):
    trainer = object.__new__(VanillaPpoTrainer)
    trainer._given_instance = instance
    trainer._context = SimpleNamespace(scenario_instance=None)
    assert trainer.scenario_instance is instance


def hyper_params(name):
    default_hyper_params({"rl": RlConfig}, {name: {}})


def crashing(allowed):
    crashes = Crashes("own", allowed)
    crashes.add("raised ValueError")


def a_film(frame):
    with TemporaryDirectory() as folder:
        write_film(Path(folder, "film.gif"), [frame])


def imported(there):
    with pytest.MonkeyPatch.context() as patch:
        if not there:
            patch.setitem(sys.modules, "PIL", None)
        refused(missing("gif"))


def policy_seeing(observation):
    build_agents({"agent": AgentSpaces(observation, spaces.Discrete(2))}, _SMALL)


def scripted(make):
    spaces_ = AgentSpaces(
        _SEEN, spaces.Discrete(2), scripts={"own": lambda _, seen, __: make(seen)}
    )
    agents = build_agents({"agent": spaces_}, {"_default": {"scripted": "own"}})
    acting_for(agents.policies["agent"], np.random.default_rng(0)).act(np.zeros((3, 2), np.float32))


def checked(given):
    """Check an observation and a reward of an environment with remedies of its own."""
    observation, reward, remedies = given
    spaces_of(remedies=remedies).check(
        np.full((1, 2), observation, np.float32), np.full(1, reward, np.float32), "agent"
    )


_NAN = float("nan")


def environments(number, id="CartPole-v1"):
    given = {"type": "gymnasium", "id": id, "num_envs": number}
    return make_component("scenario", given).build(0).environment("train")


def cartpoles(number):
    return int(number), "CartPole-v1"


def resumed(given):
    """Give two copies of CartPole's the state of a checkpoint of another environment."""
    number, id = given
    with closing(environments(2)) as saved, closing(environments(number, id)) as own:
        saved.reset(0)
        own.reset(0)
        own.load_state_dict(saved.state_dict())


def restored(action):
    saved = {"agent": {"weights": policy_of(spaces.Discrete(2)).state_dict()}}
    restore_policies({"agent": policy_of(action)}, saved)


def handed_on(name):
    held = policy_of(spaces.Discrete(2)).state_dict()
    TrainedWeights({"agent": held}).give({name: policy_of(spaces.Discrete(2))})


def compiled(make):
    loss, weight = Loss(), torch.nn.Parameter(torch.ones(1))
    loss.own = weight if make == "submodules" else [weight]
    refused(_refusal(loss, dict(loss.named_parameters()), [weight], "cpu"))


def swept_metric(name):
    plan_runs("cartpole_ppo", ["seed=1"], 1, metrics=[name])


def given_by(reset):
    environment = SimpleNamespace(
        name="own", num_envs=2, spaces={"agent": AgentSpaces(_SEEN, spaces.Discrete(2))}
    )
    check_reset(environment, reset)


def stepped(takes):
    """A step of a protocol that compares logits, with or without them."""
    base = {"type": "nip"}
    protocol = make_protocol({"type": "zero_knowledge", "base": base})
    environment = ProtocolEnvironment(protocol, labelled("x"), MessageSpace(3), num_envs=5)
    environment.reset(0)
    if takes:
        sizes = {a: int(np.sum(s.action.nvec)) for a, s in environment.spaces.items()}
        environment.take_params({a: np.zeros((5, n), np.float32) for a, n in sizes.items()})
    chosen = {a: np.zeros((5, len(s.action.nvec)), int) for a, s in environment.spaces.items()}
    environment.step(chosen)


def from_torchrl():
    """An environment of TorchRL."""
    return GymEnv("CartPole-v1")


def continuous_from_torchrl():
    """One whose actions are real numbers."""
    return GymEnv("Pendulum-v1")


def in_turns(trainer):
    """Whether a trainer learns where agents take turns."""
    params = prepare("tictactoe_ppo").validated.hyper_params
    refused(default_registry().get("trainer", trainer).turns_fault(params))


#: What code says, and what it takes instead.
TRIALS = [
    Trial(
        "return two: a torch.nn.Module, and what estimates advantages or None",
        pair,
        Loss(),
        (Loss(), None),
    ),
    Trial(
        "return something that is called with a batch, or None",
        pair,
        (Loss(), 3),
        (Loss(), lambda batch: batch),
    ),
    Trial(
        "return something that is called with a batch, or None", pair, (Loss(), 3), (Loss(), None)
    ),
    Trial(
        "backward nothing calls: the gradient is that of the sum",
        pair,
        (Backward(), None),
        (Loss(), None),
    ),
    Trial(
        "nothing moves; before you return it, write loss.update_targets",
        pair,
        (Targets(False), None),
        (Targets(True), None),
    ),
    Trial(
        "return a mapping with loss_... scalars",
        losses,
        lambda loss: loss.weight.sum(),
        lambda loss: {"loss_own": loss.weight.sum()},
    ),
    Trial(
        "return one that depends on the networks, without detach() or no_grad()",
        losses,
        lambda loss: {"loss_own": loss.weight.sum().detach()},
        lambda loss: {"loss_own": loss.weight.sum()},
    ),
    Trial(
        "return one real number of the networks as a tensor, such as a mean",
        losses,
        lambda loss: {"loss_own": loss.weight},
        lambda loss: {"loss_own": loss.weight.mean()},
    ),
    Trial("steps keeps nothing; give at least 1", buffer, 0, 1),
    Trial(
        "actions of shape {}; give {}",
        scripted,
        lambda seen: np.zeros((3, 2), int),
        Read(r"give \[(\d)\]", lambda size: lambda seen: np.zeros(int(size), int)),
    ),
    Trial(
        "or name a wrapper that repairs it in scenario.wrappers",
        checked,
        (_NAN, 0, WRAPPERS),
        (0, 0, WRAPPERS),
    ),
    Trial(
        "mend its reward, or bound it with a wrapper in scenario.wrappers",
        checked,
        (0, _NAN, WRAPPERS),
        (0, 0, WRAPPERS),
    ),
    Trial("or wrap it so that its values stay finite", checked, (0, _NAN, WRAP), (0, 0, WRAP)),
    Trial(
        "the policy has diverged; lower rl.lr or set rl.max_grad_norm",
        lambda value: spaces_of(action=spaces.Box(-1, 1, (1,), np.float32)).actions(
            np.full((2, 1), value, np.float32), 2
        ),
        _NAN,
        0.5,
    ),
    Trial(
        "and the configuration asks for {}; set scenario.num_envs={}",
        resumed,
        (3, "CartPole-v1"),
        Read(r"set scenario.num_envs=(\d+)", lambda n: (int(n), "CartPole-v1")),
    ),
    Trial(
        "environment {} cannot take back its saved state ({}); set {} to what they were",
        resumed,
        (2, "Acrobot-v1"),
        (2, "CartPole-v1"),
    ),
    Trial(
        "take the agents, and an environment with the spaces, that the run began with",
        restored,
        spaces.Discrete(3),
        spaces.Discrete(2),
    ),
    Trial("and no part to take over; give policies the same names", handed_on, "other", "agent"),
    Trial("wrap the environment so that they are a Box", policy_seeing, spaces.Text(3), _SEEN),
    Trial("not among its parameters; make the networks its submodules", compiled, "", "submodules"),
    Trial(
        "did you mean {}?",
        swept_metric,
        "validation/mean_episode_retrun",
        Read(r"did you mean (\S+)\?"),
    ),
    Trial(
        "environment {}: {}; give {}",
        given_by,
        {"agent": np.zeros(2, np.float32)},
        Read(
            r"give shape \[(.*)\]",
            lambda text: {"agent": np.zeros(tuple(map(int, text.split(", "))), np.float32)},
        ),
    ),
    Trial("call take_params() before each step()", stepped, False, True),
    *(
        Trial(
            "which {} cannot learn from; take vanilla_ppo, a2c or reinforce",
            in_turns,
            "dqn",
            Read(rf"take .*\b({name})\b"),
        )
        for name in ("vanilla_ppo", "a2c", "reinforce")
    ),
    Trial("from an empty replay buffer; add steps first", drawn, False, True),
    Trial("which there are not; lower buffer_size", held_in, 10**14, 10),
    Trial(
        "consist of nothing; mend the action space",
        policy_of,
        spaces.Box(0, 1, (0,), np.float32),
        spaces.Box(0, 1, (1,), np.float32),
    ),
    Trial("their spaces differ; give each a policy of its own", shared, ["p", "p"], ["p", "q"]),
    Trial("have of their own; rename them", named, "speaks", "x"),
    Trial(
        "{}.allowed() gave shape {}; give {}",
        spoken,
        lambda n: np.ones((n, 3), bool),
        Read(r"give \[5, 1, (\d)\]", lambda size: lambda n: np.ones((n, 1, int(size)), bool)),
    ),
    Trial(
        "nothing to say; allow at least one message",
        spoken,
        lambda n: np.zeros((n, 1, 3), bool),
        lambda n: np.eye(3, dtype=bool)[:1].repeat(n, 0)[:, None],
    ),
    Trial(
        "give one of each an item",
        lambda number: Labelled({"x": np.zeros((6, 2), np.float32)}, np.zeros(number, np.int64)),
        5,
        6,
    ),
    Trial(
        "part {} of an observation has shape {}; give {}",
        lambda size: Layout({"a": (2,)}).pack({"a": np.zeros((1, size))}),
        3,
        2,
    ),
    Trial(
        "and its observation space has {}; mend its space or wrap it",
        lambda size: spaces_of().observations(np.zeros((1, size), np.float32)),
        3,
        2,
    ),
    Trial(
        "choose a trainer whose policies act in this space",
        lambda actions: spaces_of().actions(actions, 2),
        np.zeros((2, 3)),
        np.zeros(2, np.int64),
    ),
    Trial(
        "of {} in copy {}; mend its space or wrap it",
        lambda value: spaces_of(spaces.Discrete(3)).observations(np.array([value])),
        7,
        2,
    ),
    Trial("name a file that Policy.save wrote", policy_file, lambda file: None, saved),
    Trial("install the version that it was saved with", policy_file, of_other_weights, saved),
    Trial(
        "{}.trainer_type is {}; write {}",
        trainer_class,
        {"trainer_type": "other"},
        {"trainer_type": "rl"},
    ),
    Trial(
        "or a method _agent_parts(self) that gives the parts",
        trainer_class,
        {"trainer_type": "other"},
        {"trainer_type": "other", "_agent_parts": lambda self: ()},
    ),
    Trial(
        "scenario is missing; give one, such as {type: gymnasium", without_scenario, None, object()
    ),
    Trial("unknown section; did you mean {}?", hyper_params, "rll", Read(r"did you mean (\w+)\?")),
    Trial("at last {}; mend the environment, or allow more", crashing, 0, 1),
    Trial(
        "give the environment render_mode rgb_array",
        a_film,
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.uint8),
    ),
    Trial('a film as {} needs {}; run: pip install "plugrl[video]"', imported, False, True),
]


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_of_code_helps(trial):
    trial.run()


@pytest.mark.integration
def test_weights_are_loaded_from_a_run_of_networks(shelf, shelf_of_networks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, networks = (load_run("latest", s / "runs").folder for s in (shelf, shelf_of_networks))
    given = json.loads(json.dumps(NETS))

    def loaded(keys):
        prepare(given | {"agents": {"_default": keys}})

    of_networks = {"load_from": str(networks)}
    Trial(_LOADED[0], loaded, {"load_from": str(text)}, of_networks).run()
    misspelt = of_networks | {"load_policy": "agnt"}
    for pattern in (r"did you mean (\w+)\?", r"its policies are (\w+)[,;]"):
        told = Read(pattern, lambda name: of_networks | {"load_policy": name})
        Trial(_LOADED[1], loaded, misspelt, told).run()
    own = {"trainer": "reinforce", "validate": {"enabled": False}}
    without_critic = str(plugrl.train(given | own, ["settings.progress=none"]).folder)
    has = Read(r"has no \w+, but ([\w, ]+);", lambda names: {
        "load_from": without_critic, "load_parts": names.split(", ")})  # fmt: skip
    Trial(_LOADED[2], loaded, {"load_from": without_critic}, has).run()


_LOADED = (
    " has no policies; name a run of small networks",
    "its policies are {}; name one in load_policy",
    " has no {}, but {}; name what there is in load_parts",
)
#: What those tests say that try one remedy each.
ALONE = {*_LOADED, "core/tensordict/metric_names: did you mean {}?"}
#: Texts that name no key, value or command.
REASONS = {
    "environment {}: {}() gave {}; give {}": "of the code of an environment",
    "return GeneralisedAdvantage(self.agent": "of code of a trainer: tests/core/tensordict/learn",
    "give the environment a time limit": "of an endless episode: test_rl_trainer.py of tensordict",
    "shows no frames; set validate.film": "of the code of an environment: scenarios refuse before",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in (*ROWS, *TRIALS)} | ALONE
    assert untried("core/tensordict", says, REASONS) == []
