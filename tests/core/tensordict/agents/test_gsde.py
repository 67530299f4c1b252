"""State-dependent exploration: densities, how long noise lasts, and what it leaves alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from plugrl.core.errors import ConfigError
from plugrl.core.scenario import ScenarioInstance
from plugrl.core.tensordict.agents.acting import Actor, GsdeActor, acting_for
from plugrl.core.tensordict.agents.agent import Agent
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.agents.gsde import GsdeHead
from plugrl.core.tensordict.environment.vector_environment import AgentSpaces
from plugrl.testing.comparison import assert_equal_states
from plugrl.trainers.a2c import A2cTrainer
from plugrl.trainers.sac import SacTrainer
from plugrl.trainers.vanilla_ppo import VanillaPpoTrainer
from tests.core.tensordict.counting import Counting

SEEN = spaces.Box(-1, 1, (4,), np.float32)
ACTS = spaces.Box(-1, 1, (2,), np.float32)


def agent_of(*, acts: Any = ACTS, squash: Any = False, **head: Any) -> Agent:
    section = {"_default": {"policy_head": {"gain": 1.0, "use_sde": True, **head}}}
    return build_agents(
        {"agent": AgentSpaces(SEEN, acts)}, section, squash=squash, seed=1
    ).policies["agent"]


def actor_of(agent: Agent, seed: int = 0) -> Actor:
    return acting_for(agent, np.random.default_rng(seed))


def rows(count: int, seed: int = 9) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)


# -- numbers -----------------------------------------------------------------------------------

#: Of StateDependentNoiseDistribution of Stable-Baselines3 2.9.2, at the weights of `head_of`:
#: squashed, expln, log-densities, deviations, actions by MATRICES and gradients of the sum of the
#: log-densities by log_std.
PEER = [
    (
        *(False, False, [-2.5876593589782715, -4.015249252319336]),
        [[1.2453123331069946, 1.3610469102859497], [2.3081064224243164, 3.4401116371154785]],
        [[0.949999988079071, -0.75], [1.4249999523162842, -1.3937499523162842]],
        [
            [-0.1666821986436844, -0.957685649394989],
            [-0.587185263633728, -0.020809559151530266],
            [-0.6716257333755493, -0.9408450126647949],
        ],
    ),
    (
        *(False, True, [-2.438892364501953, -3.8355653285980225]),
        [[1.0190589427947998, 1.2858364582061768], [2.1943185329437256, 2.962552785873413]],
        [[0.949999988079071, -0.75], [1.4249999523162842, -1.3937499523162842]],
        [
            [-0.158599853515625, -0.6445978879928589],
            [-0.11326073855161667, -0.02380346693098545],
            [-0.7268186807632446, -0.41889816522598267],
        ],
    ),
    (
        *(True, False, [-2.0493993759155273, -2.283932685852051]),
        [[1.2453123331069946, 1.3610469102859497], [2.3081064224243164, 3.4401116371154785]],
        [[0.7397830486297607, -0.6351489424705505], [0.8906373381614685, -0.8839932084083557]],
        [
            [-0.17377638816833496, -0.9445621371269226],
            [-0.619937539100647, -0.020540183410048485],
            [-0.7629860639572144, -0.9394439458847046],
        ],
    ),
    (
        *(True, True, [-1.8990358114242554, -2.097813844680786]),
        [[1.0190589427947998, 1.2858364582061768], [2.1943185329437256, 2.962552785873413]],
        [[0.7397830486297607, -0.6351489424705505], [0.8906373381614685, -0.8839932084083557]],
        [
            [-0.16968697309494019, -0.6348192095756531],
            [-0.12268876284360886, -0.0234652291983366],
            [-0.8390630483627319, -0.4182823598384857],
        ],
    ),
]
FEATURES = torch.tensor([[1.0, -0.5, 0.25], [-0.75, 0.5, 2.0]])
ACTIONS = torch.tensor([[0.3, -0.6], [0.9, 0.1]])
MATRICES = torch.tensor(
    [[[0.1, -0.2], [0.3, 0.4], [-0.5, 0.6]], [[0.7, 0.1], [-0.2, 0.05], [0.15, -0.25]]]
)


def head_of(*, squashed: bool, expln: bool) -> GsdeHead:
    bound = 2.0 if squashed else None
    head = GsdeHead(
        *(3, 2), hidden=[], activation="tanh", log_std_init=0.0, expln=expln, mean_bound=bound
    )
    with torch.no_grad():
        head.mean.weight.copy_(torch.tensor([[0.5, -0.25, 1.0], [0.125, 0.75, -0.5]]))
        head.mean.bias.copy_(torch.tensor([0.25, -0.125]))
        head.log_std.copy_(torch.tensor([[-0.5, 0.25], [0.75, -1.0], [0.0, 0.5]]))
    return head


@pytest.mark.parametrize(("squashed", "expln", "log_probs", "stds", "actions", "gradient"), PEER)
def test_numbers_are_those_of_stable_baselines3(
    squashed: bool, expln: bool, log_probs: Any, stds: Any, actions: Any, gradient: Any
) -> None:
    distribution: Any = agent_of(squash=squashed).distribution
    head = head_of(squashed=squashed, expln=expln)
    params = head(FEATURES)
    assert params[:, 2:].exp().flatten().tolist() == pytest.approx(sum(stds, []), rel=1e-5)
    log_prob = distribution.log_prob(params, ACTIONS)
    # There, 1e-6 is added to the slope of the tanh.
    assert log_prob.tolist() == pytest.approx(log_probs, rel=1e-5)
    log_prob.sum().backward()
    assert head.log_std.grad is not None
    assert head.log_std.grad.flatten().tolist() == pytest.approx(sum(gradient, []), rel=1e-4)
    action, drawn = distribution.moved(params, head.noise(FEATURES, MATRICES))
    assert action.flatten().tolist() == pytest.approx(sum(actions, []), rel=1e-5)
    torch.testing.assert_close(drawn, distribution.log_prob(params, action), atol=1e-4, rtol=1e-4)


def test_means_of_squashed_actions_are_kept_where_the_tanh_bends() -> None:
    # By hand: 0.25 + 0.5 z1 - 0.25 z2 + z3 and -0.125 + 0.125 z1 + 0.75 z2 - 0.5 z3.
    features = torch.tensor([[4.0, 0.0, 1.0], [0.0, -4.0, 0.0]])
    free, bound = (head_of(squashed=squashed, expln=False)(features) for squashed in (False, True))
    assert free[:, :2].tolist() == [[3.25, -0.125], [1.25, -3.125]]
    assert bound[:, :2].tolist() == [[2.0, -0.125], [1.25, -2.0]]
    assert torch.equal(free[:, 2:], bound[:, 2:])


def test_no_feature_leaves_a_deviation_above_zero() -> None:
    log_std = head_of(squashed=False, expln=False)(torch.zeros(1, 3))[0, 2:]
    assert log_std.exp().tolist() == pytest.approx([1e-3, 1e-3])  # the root of 1e-6


def test_noise_gives_features_no_gradient_through_its_deviation() -> None:
    features = FEATURES.clone().requires_grad_()
    head_of(squashed=False, expln=False)(features)[:, 2:].sum().backward()
    assert not features.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize("log_std", [-800.0, 200.0])
def test_far_out_weights_of_the_noise_keep_a_finite_gradient(log_std: float) -> None:
    head = head_of(squashed=False, expln=True)
    torch.nn.init.constant_(head.log_std, log_std)
    head(FEATURES).sum().backward()
    assert head.log_std.grad is not None
    assert head.log_std.grad.isfinite().all()


@pytest.mark.parametrize("squash", [False, True])
def test_over_all_noise_actions_have_the_mean_and_deviation_of_their_density(squash: bool) -> None:
    agent = agent_of(squash=squash, log_std_init=-1.0)
    actor = actor_of(agent)
    action, log_prob, params = actor.act_with_params(np.repeat(rows(1), 20_000, 0))
    given = torch.from_numpy(params)
    torch.testing.assert_close(
        torch.from_numpy(log_prob),
        agent.distribution.log_prob(given, torch.from_numpy(action)),
        atol=1e-3,
        rtol=1e-3,
    )
    plain = np.arctanh(np.clip(action, -0.999999, 0.999999)) if squash else action
    mean, std = params[0, :2], np.exp(params[0, 2:])
    np.testing.assert_allclose(plain.mean(0), mean, atol=0.05 * std.max())
    np.testing.assert_allclose(plain.std(0), std, rtol=0.03)


# -- how long noise lasts ----------------------------------------------------------------------


def test_within_a_rollout_equal_observations_bring_equal_actions() -> None:
    actor, seen = actor_of(agent_of()), rows(3)
    first = actor.act(seen)[0]
    actor.act(rows(3, seed=1))
    assert np.array_equal(actor.act(seen)[0], first)
    assert len(np.unique(first[:, 0] - actor.best(seen)[:, 0])) == 3  # each row has its own
    actor.begin_rollout()
    assert (actor.act(seen)[0] != first).any(-1).all()


@pytest.mark.parametrize("period", [1, 3])
def test_noise_is_drawn_anew_after_so_many_steps_of_a_rollout(period: int) -> None:
    actor, seen = actor_of(agent_of(sde_sample_freq=period)), rows(1)

    def changes(steps: int) -> list[bool]:
        drawn = [actor.act(seen)[0] for _ in range(steps)]
        return [not np.array_equal(a, b) for a, b in zip(drawn, drawn[1:], strict=False)]

    assert changes(7) == [step % period == 0 for step in range(1, 7)]
    actor.begin_rollout()
    assert changes(7) == [step % period == 0 for step in range(1, 7)]


def test_where_agents_take_turns_another_number_of_rows_has_new_noise() -> None:
    actor = actor_of(agent_of())
    first = actor.act_with_params(rows(3))[0]
    assert actor.act_with_params(rows(2))[0].shape == (2, 2)
    assert not np.array_equal(actor.act_with_params(rows(3))[0], first)


def test_the_best_action_has_no_noise_and_changes_none() -> None:
    agent = agent_of()
    actor, alone = actor_of(agent), actor_of(agent)
    seen = rows(2)
    mean = agent.policy(torch.from_numpy(seen))[:, :2].detach().numpy()
    for _ in range(3):
        assert np.array_equal(actor.best(seen), mean)
        assert np.array_equal(actor.act(seen)[0], alone.act(seen)[0])


def test_an_actor_goes_on_with_the_noise_that_it_saved() -> None:
    agent = agent_of(sde_sample_freq=4)
    before, after = actor_of(agent), actor_of(agent, seed=7)
    for _ in range(2):
        before.act(rows(2))
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for step in range(6):
        assert np.array_equal(after.act(rows(2, seed=step))[0], before.act(rows(2, seed=step))[0])


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("squash", "head", "first"),
    [
        (False, {}, 0.0),
        (True, {}, -3.0),
        (True, {"log_std_init": -3.67}, -3.67),
        (False, {"log_std_init": -2}, -2.0),
    ],
)
def test_the_noise_begins_as_the_settings_say(squash: bool, head: Any, first: float) -> None:
    agent = agent_of(squash=squash, hidden=[5], **head)
    assert isinstance(agent.policy_head, GsdeHead)
    assert agent.policy_head.log_std.shape == (5, 2)
    assert torch.unique(agent.policy_head.log_std).tolist() == pytest.approx([first])


@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("expln", [False, True])
def test_the_head_is_the_one_of_the_settings(squash: bool, expln: bool) -> None:
    agent = agent_of(squash=squash, log_std_init=2.0, use_expln=expln)
    head = agent.policy_head
    assert isinstance(head, GsdeHead)
    with torch.no_grad():
        head.mean.bias += 9.0
    mean, log_std = agent.policy(torch.from_numpy(rows(1)))[0].split(2)
    assert (mean == 2).tolist() == [squash] * 2  # without a bound they are far above
    features = agent.policy_body(torch.from_numpy(rows(1)))  # type: ignore[misc]
    std = np.log1p(2.0) + 1 if expln else np.exp(2.0)
    expected = float(features.detach().norm()) * std
    assert log_std.exp().tolist() == pytest.approx([expected] * 2, rel=1e-4)


def test_deviations_that_no_observation_changes_begin_as_the_settings_say() -> None:
    agent = agent_of(use_sde=False, log_std_init=-1.5)
    params = agent.policy(torch.from_numpy(rows(3)))
    assert params[:, 2:].tolist() == [[-1.5, -1.5]] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acts": spaces.Discrete(3)}, "use_sde has no effect, as actions here have no normal"),
        ({"squash": "deterministic"}, "use_sde has no effect, as actions here have no normal"),
        (
            {"acts": spaces.Discrete(3), "use_sde": False, "log_std_init": 0},
            "log_std_init has no effect",
        ),
        ({"squash": True, "use_sde": False, "log_std_init": -1}, "log_std_init has no effect"),
        ({"use_sde": False, "sde_sample_freq": 4}, "sde_sample_freq has no effect without use_sde"),
        ({"use_sde": False, "use_expln": True}, "use_expln has no effect without use_sde"),
    ],
)
def test_settings_of_noise_that_is_not_there_are_refused(options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"agents._default.policy_head.*{said}.*leave it out"):
        agent_of(**options)


# -- runs --------------------------------------------------------------------------------------


class Counted(Counting):
    """Counts, and takes real numbers for actions."""

    def __init__(self) -> None:
        super().__init__([5, 7])
        self.spaces = {"agent": AgentSpaces(spaces.Box(-100, 100, (1,)), ACTS)}


def trained(cls: Any, *, iterations: int, state: Any = None, **sections: Any) -> Any:
    head = {"use_sde": True, **sections.pop("head", {})}
    rl = {"frames_per_batch": 16, "minibatch_size": 8, "num_iterations": iterations}
    hyper_params = {
        "agents": {"_default": {"body": {"hidden": [4]}, "policy_head": head}},
        "validate": {"enabled": False},
        **sections,
        "rl": {**rl, "lr": 0.05, "compile": False},
    }
    instance = ScenarioInstance(name="counted", make_environment=lambda split: Counted())
    trainer = cls(scenario_instance=instance, hyper_params=hyper_params)
    if state is not None:
        trainer.load_state_dict(copy.deepcopy(state))
    trainer.train()
    return trainer


@pytest.mark.parametrize(
    ("cls", "sections"),
    [
        (VanillaPpoTrainer, {"head": {"sde_sample_freq": 3}}),
        (A2cTrainer, {}),
        # Updates come after 3, 6 and 9 steps of each copy, and an iteration has 8: noise lasts over
        # its end.
        (SacTrainer, {"sac": {"learning_starts": 0, "train_freq": 3, "critic_hidden": [4]}}),
    ],
)
def test_a_resumed_run_goes_on_exactly(cls: Any, sections: Any) -> None:
    straight = trained(cls, iterations=4, **copy.deepcopy(sections)).state_dict()
    half = trained(cls, iterations=2, **copy.deepcopy(sections)).state_dict()
    resumed = trained(cls, iterations=4, state=half, **sections).state_dict()
    assert_equal_states(resumed["policies"], straight["policies"])
    assert_equal_states(resumed["learners"], straight["learners"])
    assert_equal_states(resumed["collector"]["actors"], straight["collector"]["actors"])
    learned = straight["policies"]["agent"]["weights"]["policy_head.log_std"]
    assert len(torch.unique(learned)) > 1  # at first all are equal


def draws(cls: Any, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> list[int]:
    """The steps after which noise was drawn anew, as they are counted from the first one on."""
    steps = [0]
    drawn: list[int] = []
    act, matrices = GsdeActor.act, GsdeHead.exploration_matrices

    def counted(actor: GsdeActor, observation: Any) -> Any:
        answer = act(actor, observation)
        steps[0] += 1
        return answer

    def noted(head: GsdeHead, numbers: torch.Tensor) -> torch.Tensor:
        drawn.append(steps[0])
        return matrices(head, numbers)

    monkeypatch.setattr(GsdeActor, "act", counted)
    monkeypatch.setattr(GsdeHead, "exploration_matrices", noted)
    trained(cls, iterations=2, **sections)
    return drawn


@pytest.mark.parametrize(
    ("cls", "sections", "expected"),
    [
        # Iterations of 8 steps of each of two copies are its rollouts.
        (VanillaPpoTrainer, {}, [0, 8]),
        (VanillaPpoTrainer, {"head": {"sde_sample_freq": 3}}, [0, 3, 6, 8, 11, 14]),
        # Rollouts of an off-policy learner are the steps between updates.
        (SacTrainer, {"sac": {"learning_starts": 0, "train_freq": 3}}, [0, 3, 6, 9, 12, 15]),
        (
            SacTrainer,
            {"sac": {"learning_starts": 0, "train_freq": 5}, "head": {"sde_sample_freq": 2}},
            [0, 2, 4, 5, 7, 9, 10, 12, 14, 15],
        ),
    ],
)
def test_noise_lasts_for_a_rollout(
    cls: Any, sections: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert draws(cls, monkeypatch, **sections) == expected
