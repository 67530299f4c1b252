"""Games in which agents take turns: whose move it is, what it earns, and who wins."""

import sys
from pathlib import Path

import numpy as np
import pettingzoo
import pytest
import torch

from plugrl.core.errors import ConfigError, ContractError, RunError
from plugrl.core.experiment import prepare
from plugrl.core.tensordict.agents.acting import RandomActor
from plugrl.core.tensordict.agents.building import build_agents
from plugrl.core.tensordict.collect.collector import Collector
from plugrl.core.tensordict.collect.normalisation import Normalisers
from plugrl.core.tensordict.learn.advantages import GeneralisedAdvantage, RewardToGo
from plugrl.scenarios.pettingzoo.environment import PettingZooEnvironment
from plugrl.scenarios.pettingzoo.maker import Maker
from plugrl.scenarios.pettingzoo.results import results

GAMES = str(Path(__file__).with_name("turn_environments.py"))
#: The first player takes the cells 0, 1 and 2, which are a line; the other one 3 and 4.
MOVES = [0, 3, 1, 4, 2]
FIRST, SECOND = "player_1", "player_2"
ON, LOST, CUT = (False, False), (True, False), (False, True)


def game(name="tictactoe_v3", num_envs=1, max_restarts=0, max_episode_steps=None, **options):
    return PettingZooEnvironment(
        Maker(name, options),
        num_envs,
        max_restarts=max_restarts,
        max_episode_steps=max_episode_steps,
    )


def talks(moves, kind="Talks", **options):
    own = {k: options.pop(k) for k in ("max_restarts", "max_episode_steps") if k in options}
    return game(f"{GAMES}:{kind}", moves=moves, **own, **options)


def same(environment, choice=0):
    return {a: np.full(environment.num_envs, choice) for a in environment.spaces}


def turn(environment):
    """Whose move it is in the first copy."""
    (name,) = (agent for agent, acts in environment.acting().items() if acts[0])
    return name


def view(environment, agent, observation, name):
    return environment.spaces[agent].layout.view(observation, name)[0]


def test_a_game_that_is_played_move_by_move():
    environment = game()
    seen = environment.reset(1)
    board, marks = np.zeros((3, 3), int), {FIRST: 1, SECOND: 2}
    for number, move in enumerate(MOVES):
        mover = [FIRST, SECOND][number % 2]
        other = [SECOND, FIRST][number % 2]
        assert turn(environment) == mover
        planes = view(environment, mover, seen[mover], "observation")
        assert planes[..., 0].tolist() == (board == marks[mover]).astype(float).tolist()
        assert planes[..., 1].tolist() == (board == marks[other]).astype(float).tolist()
        mask = view(environment, mover, seen[mover], "action_mask")
        assert mask.tolist() == [float(cell not in MOVES[:number]) for cell in range(9)]
        steps = environment.step(same(environment, move))
        board[move // 3, move % 3] = marks[mover]
        seen = {agent: step.observation for agent, step in steps.items()}
        over = number == len(MOVES) - 1
        for agent, step in steps.items():
            assert step.real is None
            assert step.reward[0] == (over and (1.0 if agent == FIRST else -1.0))
            assert (bool(step.terminated[0]), bool(step.truncated[0])) == (over, False)
    # Both see how it ended, and the next game has begun.
    for agent, other in [(FIRST, SECOND), (SECOND, FIRST)]:
        final = view(environment, agent, steps[agent].final_observation, "observation")
        assert final[..., 0].tolist() == (board == marks[agent]).astype(float).tolist()
        assert final[..., 1].tolist() == (board == marks[other]).astype(float).tolist()
        assert not view(environment, agent, seen[agent], "observation").any()
    assert turn(environment) == FIRST
    assert environment.take_metrics() == {
        "player_1/wins": 1.0, "player_1/draws": 0.0, "player_1/losses": 0.0,
        "player_2/wins": 0.0, "player_2/draws": 0.0, "player_2/losses": 1.0,
    }  # fmt: skip
    assert environment.take_metrics() == {}
    for move in MOVES:
        environment.step(same(environment, move))
    environment.reset(1)
    # Games from before the reset are none of those that follow.
    assert environment.take_metrics() == {}


class Following(RandomActor):
    """Makes the moves of a list."""

    def __init__(self, agent, moves):
        super().__init__(agent, np.random.default_rng(0))
        self.moves = list(moves)

    def act_with_params(self, observation):
        move = np.array([self.moves.pop(0)])
        return move, np.zeros(1, np.float32), self.params(observation)


def collected(environment, policies, actors, steps):
    members = dict.fromkeys(policies.policies, environment.num_envs)
    normalisers = Normalisers(
        dict.fromkeys(members, (1,)), members, observations=False, rewards=False, gamma=1.0
    )
    collector = Collector(
        environment, policies.policy_of, actors, steps=steps, normalisers=normalisers
    )
    collector.begin(0)
    return collector.collect()


@pytest.mark.parametrize("shared", [False, True])
def test_a_loss_by_the_others_move_belongs_to_the_last_own_move(shared):
    environment = game()
    section = {"_default": {"policy": "both"}} if shared else {}
    policies = build_agents(environment.spaces, section)
    if shared:
        actors = {"both": Following(policies.policies["both"], MOVES)}
    else:
        actors = {
            FIRST: Following(policies.policies[FIRST], MOVES[::2]),
            SECOND: Following(policies.policies[SECOND], MOVES[1::2]),
        }
    batches = collected(environment, policies, actors, len(MOVES))
    for batch in batches.values():
        RewardToGo(0.5)(batch)
    rows = batches["both"] if shared else {0: batches[FIRST][0], 1: batches[SECOND][0]}
    # The winning move is the fifth; each move discounts by a half.
    expected = [[1 / 16, 0, 1 / 4, 0, 1], [0, -1 / 8, 0, -1 / 2, 0]]
    for row in range(2):
        assert rows[row]["advantage"].squeeze(-1).tolist() == expected[row]
        assert rows[row]["valid"].tolist() == [t % 2 == row for t in range(5)]
        assert rows[row]["acting"].tolist() == [t % 2 == row for t in range(5)]
        assert rows[row]["waiting"].tolist() == [t % 2 != row for t in range(5)]


def test_what_a_break_cuts_off_is_worth_what_was_seen_last():
    environment = talks([{"a": (1, *ON)}, "crash"], max_restarts=5)
    policies = build_agents(environment.spaces, {})
    actors = {name: Following(agent, [0] * 4) for name, agent in policies.policies.items()}
    batch, agent = collected(environment, policies, actors, 4)["a"], policies.policies["a"]
    GeneralisedAdvantage(agent, gamma=0.5, lmbda=1.0)(batch)
    assert batch["valid"].tolist() == [[True, False, True, False]]
    value = agent.value(torch.zeros(1, 1)).item()
    # Both saw the number 0 last.
    expected = 1 + 0.5 * value - value
    assert batch["advantage"][0, ::2, 0].tolist() == pytest.approx([expected, expected])


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("tictactoe_v3", None),
        ("connect_four_v3", None),
        ("leduc_holdem_v4", "rlcard"),
        ("chess_v6", "chess"),
    ],
)
def test_games_go_as_in_pettingzoos_own_loop(name, extra):
    if extra is not None:
        pytest.importorskip(extra)
    environment, rng = game(name), np.random.default_rng(0)
    seen = environment.reset(5)
    copy = environment._copies[0]
    single = pettingzoo.make("aec", f"classic/{name.replace('_v', '-v')}")
    for _ in range(2 if name != "chess_v6" else 1):
        single.reset(seed=copy.episode_seed)
        earned, told, moves = dict.fromkeys(environment.spaces, 0.0), {}, 0
        for agent in single.agent_iter():
            observation, reward, terminated, truncated, _ = single.last()
            told[agent] = told.get(agent, 0.0) + reward
            if terminated or truncated:
                single.step(None)
                continue
            if moves == 40:
                break
            assert turn(environment) == agent
            for part, value in observation.items():
                assert np.array_equal(view(environment, agent, seen[agent], part), value)
            move = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            steps = environment.step(same(environment, move))
            seen = {each: step.observation for each, step in steps.items()}
            earned = {each: earned[each] + step.reward[0] for each, step in steps.items()}
            single.step(move)
            moves += 1
        assert earned == told or moves == 40
        assert moves > 0


def test_random_players_make_no_illegal_move_and_win_as_often_as_is_known():
    # The bare game ends with an error at an illegal move.
    environment = game("pettingzoo.classic.tictactoe.tictactoe:raw_env", num_envs=10)
    policies = build_agents(environment.spaces, {"_default": {"is_random": True}})
    actors = {
        name: RandomActor(agent, np.random.default_rng(number))
        for number, (name, agent) in enumerate(policies.policies.items())
    }
    collected(environment, policies, actors, 400)
    shares = environment.take_metrics()
    # Of all games of random moves the first player wins 0.585, and 0.127 are draws; the shares of
    # some 500 games are within three deviations.
    assert shares["player_1/wins"] == pytest.approx(0.585, abs=0.067)
    assert shares["player_1/draws"] == pytest.approx(0.127, abs=0.045)
    assert shares["player_2/wins"] == shares["player_1/losses"]


@pytest.mark.parametrize(
    "name", ["classic/tictactoe-v3", f"{GAMES}:at_once", f"{GAMES}:wrapped_at_once"]
)
def test_a_game_by_its_id_or_converted_in_a_file_is_the_same_game(name):
    first, second = game(), game(name)
    for environment in (first, second):
        environment.reset(1)
    for move in MOVES:
        one, other = (each.step(same(each, move)) for each in (first, second))
        mover = turn(first)
        assert turn(second) == mover
        assert np.array_equal(one[mover].observation, other[mover].observation)
        for agent in one:
            assert np.array_equal(one[agent].reward, other[agent].reward)
            assert np.array_equal(one[agent].terminated, other[agent].terminated)
            assert one[agent].real is None
            assert other[agent].real is None


def rows(step):
    final = None if step.final_observation is None else float(step.final_observation[0, 0])
    real = True if step.real is None else bool(step.real[0])
    ended = (bool(step.terminated[0]), bool(step.truncated[0]))
    return (float(step.observation[0, 0]), float(step.reward[0]), *ended, final, real)


def test_rewards_between_own_moves_and_an_agent_that_leaves_before_the_others():
    environment = talks(
        [
            {"a": (1, *ON), "b": (10, *ON), "c": (100, *ON), "turn": "b"},
            {"a": (2, *ON), "b": (20, *ON), "turn": "c"},
            # c moves, and a is out.
            {"a": (3, *LOST), "c": (300, *ON), "turn": "b"},
            {"b": (40, *ON), "turn": "c"},
            {"b": (50, *LOST), "c": (500, *CUT)},
        ],
        seats=["a", "b", "c"],
    )
    environment.reset(1)
    steps = [environment.step(same(environment)) for _ in range(5)]
    assert [rows(step["a"]) for step in steps] == [
        (0, 1, *ON, None, True),
        (0, 2, *ON, None, True),
        (3, 3, *LOST, 3, True),
        (3, 0, *ON, None, False),
        (0, 0, *ON, None, False),
    ]
    assert [rows(step["c"]) for step in steps] == [
        (0, 100, *ON, None, True),
        (2, 0, *ON, None, True),
        (2, 300, *ON, None, True),
        (4, 0, *ON, None, True),
        (0, 500, *CUT, 5, True),
    ]
    calls = environment._copies[0].environment.calls
    # The dead take their last step at once, and are asked for nothing.
    assert [agent for agent, action in calls if action is not None] == ["a", "b", "c", "b", "c"]
    assert [agent for agent, action in calls if action is None] == ["a", "b", "c"]
    assert environment.take_metrics()["c/wins"] == 1.0


def test_an_agent_may_miss_a_game():
    environment = talks([{0: (1, *ON), 1: (0, *ON), 2: (4, *ON)}], "Guests", max_episode_steps=2)
    environment.reset(1)
    steps = [environment.step(same(environment)) for _ in range(5)]
    assert list(steps[0]) == ["0", "1", "2"]
    assert [rows(step["2"]) for step in steps] == [
        (5, 4, *ON, None, True),
        (0, 4, *CUT, 7, True),
        (0, 0, *ON, None, False),
        (5, 0, *ON, None, False),
        (5, 4, *ON, None, True),
    ]
    assert [rows(step["1"])[1:] for step in steps][1::2] == [(0, *CUT, 7, True)] * 2
    assert environment._copies[0].episode == 2
    # The winner of the first game is the one who earned 4 a move, and in the second one 0.
    assert environment.take_metrics()["2/wins"] == 0.5
    assert [turn(environment), environment.take_metrics()] == ["1", {}]


def test_a_game_without_an_end_is_cut_off_where_that_is_asked_for():
    environment = talks([{"a": (1, *ON), "b": (0, *ON)}], max_episode_steps=3)
    environment.reset(1)
    steps = [environment.step(same(environment)) for _ in range(4)]
    assert [rows(step["a"]) for step in steps] == [
        (0, 1, *ON, None, True),
        (2, 1, *ON, None, True),
        (0, 1, *CUT, 3, True),
        (0, 1, *ON, None, True),
    ]
    assert rows(steps[2]["b"]) == (0, 0, *CUT, 3, True)
    assert turn(environment) == "b"


def test_agents_that_act_at_once_are_cut_off_too():
    cartpoles = "plugrl.scenarios.pettingzoo.two_cartpoles:TwoCartPoles"
    environment = game(cartpoles, max_episode_steps=4)
    environment.reset(1)
    for number in range(1, 9):
        steps = environment.step(same(environment, number % 2))
        assert [bool(step.truncated[0]) for step in steps.values()] == [number % 4 == 0] * 2
    assert environment.acting() is None
    assert environment.take_metrics() == {}


def test_a_copy_that_breaks_is_built_anew_and_its_game_is_none():
    environment = talks([{"a": (1, *ON)}, "crash"], max_restarts=1)
    environment.reset(1)
    steps = [environment.step(same(environment)) for _ in range(3)]
    assert [rows(step["a"]) for step in steps] == [
        (0, 1, *ON, None, True),
        (0, 0, *CUT, 0, False),
        (0, 1, *ON, None, True),
    ]
    assert rows(steps[1]["b"]) == (0, 0, *CUT, 1, False)
    assert environment.crashes == 1
    assert environment.take_metrics() == {}
    with pytest.raises(RunError, match="max_restarts=1 allows; at last copy 0 raised RuntimeError"):
        environment.step(same(environment))


def begun(environment):
    environment.reset(1)
    environment.step(same(environment))


FREE = {"a": (0, *ON), "b": (0, *ON)}


@pytest.mark.parametrize(
    ("kind", "moves", "options", "message"),
    [
        ("Talks", [FREE], {"mask": [0, 0, 0]}, "action_mask of agent 'a' in copy 0 is all 0 in"),
        ("Sizes", [FREE], {"mask": [1, 1, 1]}, r"'action_mask' of an observation has shape \[1, 2"),
        ("Plain", [FREE], {"mask": [1, 1, 1]}, "'a' is a ndarray, not a mapping of action_mask, n"),
        ("Nameless", [FREE], {"mask": [1, 1, 1]}, "consists of action_mask, number, not of number"),
        ("Parts", [FREE], {"seats": ["b", "a"]}, "agent 'a' is none of its observation space"),
        ("Talks", [FREE], {"seats": []}, r"reset\(\) leaves no agent in agents"),
        ("Talks", [{**FREE, "turn": "c"}], {"seats": ["a", "b"]}, "possible_agents lack"),
        ("Undead", [{"a": (0, *LOST)}], {}, r"step\(None\) does not remove agent 'a', which has"),
        ("OneNumber", [FREE], {}, "rewards is a float, not a mapping by agent"),
        ("Talks", [{"a": ("much", *ON)}], {}, "the reward 'much', which is no number"),
        ("Talks", [{"a": (0, "no", False)}], {}, "terminations of agent 'a' is 'no', not True or"),
    ],
)
def test_environments_of_turns_that_are_wrong_are_told_what(kind, moves, options, message):
    environment = talks(moves, kind, max_restarts=9, **options)
    with pytest.raises((ContractError, RunError), match=message) as said:
        begun(environment)
    assert "\n" not in str(said.value)
    assert environment.crashes == 0


def test_a_turn_of_an_agent_that_has_left_is_a_fault():
    environment = talks(
        [{"a": (0, *ON), "c": (0, *LOST), "turn": "b"}, {"b": (0, *ON), "turn": "c"}],
        seats=["a", "b", "c"],
    )
    environment.reset(1)
    environment.step(same(environment))
    with pytest.raises(ContractError, match=r"agent_selection names 'c', which is not in agents"):
        environment.step(same(environment))


def test_a_game_goes_on_from_its_saved_state():
    for name, extra in [("connect_four_v3", None), ("leduc_holdem_v4", "rlcard")]:
        if extra is not None:
            pytest.importorskip(extra)
        first, second = game(name, num_envs=2), game(name, num_envs=2)
        played(first, first.reset(3), 7)
        assert first.unsaved is None
        second.load_state_dict(first.state_dict())
        seen = {agent: np.stack([c.last[agent] for c in first._copies]) for agent in first.spaces}
        one, other = (played(each, seen, 60) for each in (first, second))
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
        assert first.take_metrics(1000) != {}


def played(environment, seen, steps):
    """Play some moves that depend on what is seen alone; give all that came of them."""
    found = []
    for number in range(steps):
        actions = {}
        for agent, spaces in environment.spaces.items():
            allowed = spaces.layout.view(seen[agent], "action_mask")
            # The last allowed one in even steps, the first in odd ones.
            actions[agent] = (
                allowed.argmax(1) if number % 2 else 6 - allowed[:, :7][:, ::-1].argmax(1)
            ) % allowed.shape[1]
            actions[agent] = np.where(
                np.take_along_axis(allowed, actions[agent][:, None], 1)[:, 0] > 0,
                actions[agent],
                allowed.argmax(1),
            )
        stepped = environment.step(actions)
        seen = {agent: step.observation for agent, step in stepped.items()}
        for step in stepped.values():
            found += [step.observation, step.reward, step.terminated, step.truncated]
    return found


def test_seeds_decide_the_cards():
    pytest.importorskip("rlcard")
    one, other = (game("leduc_holdem_v4", num_envs=3) for _ in range(2))
    a, b, c = one.reset(5), other.reset(5), other.reset(6)
    assert all(np.array_equal(a[agent], b[agent]) for agent in a)
    assert not all(np.array_equal(a[agent], c[agent]) for agent in a)


def test_parts_of_an_observation_that_are_no_arrays_become_flat():
    environment = talks([FREE], "Parts")
    layout = environment.spaces["a"].layout
    assert layout.fields == {"board": (2, 2), "hand": (7,), "phase": (3,)}
    environment.reset(1)
    seen = environment.step(same(environment))["b"].observation
    assert layout.view(seen, "board").tolist() == [[[1, 1], [1, 1]]]
    # The suits 1 of 2 and 2 of 3, after the second of two choices that begin at 1.
    assert layout.view(seen, "hand").tolist() == [[0, 1, 0, 1, 0, 0, 1]]
    assert layout.view(seen, "phase").tolist() == [[0, 1, 0]]


def test_who_returned_most_has_won():
    games = [{"a": 1, "b": 0, "c": 0}, {"a": 0, "b": 0, "c": -1}, {"a": -1, "b": 5, "c": 0}]
    found = results([*games, {"a": 2, "b": 0, "c": 1}])
    assert found == {
        "a/wins": 0.5, "a/draws": 0.25, "a/losses": 0.25,
        "b/wins": 0.25, "b/draws": 0.25, "b/losses": 0.5,
        "c/wins": 0.0, "c/draws": 0.0, "c/losses": 1.0,
    }  # fmt: skip
    assert results([]) == {}
    assert results([{"alone": 3.0}]) == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "tictactoe_v2",
            {},
            "no module 'tictactoe_v2', and none of PettingZoo; did you mean tictactoe_v3",
        ),
        (
            "tictacto_v3",
            {},
            "no module 'tictacto_v3', and none of PettingZoo; did you mean tictactoe_v3",
        ),
        (f"{GAMES}:Words", {"moves": []}, r"\(agent 'a'\) observes a Dict whose 'said' is a Text"),
    ],
)
def test_what_is_no_game_is_refused_with_the_remedy(name, options, message):
    with pytest.raises(ConfigError, match=message):
        game(name, **options)


def test_a_package_that_a_game_needs_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "shimmy", None)
    needs = r'needs shimmy, which is not installed; run: pip install "pettingzoo\[classic\]"'
    with pytest.raises(ConfigError, match=f"^classic/hanabi-v5 {needs}$"):
        game("hanabi_v5")


def faults(scenario, **sections):
    with pytest.raises(ConfigError) as refused:
        prepare(
            {"trainer": "vanilla_ppo", "scenario": {"type": "pettingzoo", **scenario}, **sections}
        )
    return str(refused.value).replace(" (Python)", "")


@pytest.mark.parametrize(
    ("scenario", "sections", "message"),
    [
        (
            {"environment": f"{GAMES}:WrongMask", "env_kwargs": {"moves": []}},
            {},
            "observations have an action_mask of shape [2], and actions are described by 3 numbers",
        ),
        (
            {"environment": "tictactoe_v3", "max_episode_steps": 0},
            {},
            "max_episode_steps: must be at least 1",
        ),
    ],
)
def test_faults_are_found_before_the_run(scenario, sections, message):
    assert message in faults(scenario, **sections)


@pytest.mark.parametrize("trainer", ["dqn", "sac", "td3"])
def test_trainers_that_would_break_the_rules_are_refused_before_the_run(trainer):
    tree = {"trainer": trainer, "scenario": {"type": "pettingzoo", "environment": "tictactoe_v3"}}
    with pytest.raises(ConfigError, match=r"^trainer .* take turns, which .*; take vanilla_ppo"):
        prepare(tree)


def test_masks_beside_observations_count_too():
    environment = talks([FREE], "MaskInInfo", max_episode_steps=6)
    assert environment.spaces["a"].layout.fields == {"action_mask": (3,), "observation": (1,)}
    assert environment.reset(1)["a"].tolist() == [[0, 1, 1, 0]]
    assert environment.step(same(environment, 1))["b"].observation.tolist() == [[1, 0, 1, 1]]
    policies = build_agents(environment.spaces, {"_default": {"is_random": True}})
    actors = {
        name: RandomActor(agent, np.random.default_rng(1))
        for name, agent in policies.policies.items()
    }
    collected(environment, policies, actors, 60)
    calls = [action for _, action in environment._copies[0].environment.calls if action is not None]
    # One call was made before, by hand, in a game that was left.
    assert len(calls) == 61
    assert {(number % 6 % 3, action) for number, action in enumerate(calls[1:])} == {
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1),
    }  # fmt: skip


def test_two_choices_in_a_move_are_masked_each():
    moves = [{"a": (0, *ON), "b": (0, *ON)}]
    environment = talks(moves, "TwoChoices", mask=[0, 1, 1], max_episode_steps=4)
    policies = build_agents(environment.spaces, {"_default": {"is_random": True}})
    actors = {
        name: RandomActor(agent, np.random.default_rng(1))
        for name, agent in policies.policies.items()
    }
    batches = collected(environment, policies, actors, 12)
    for batch in batches.values():
        assert batch["action"][batch["acting"]].tolist() == [[1, 0]] * int(batch["acting"].sum())


@pytest.mark.parametrize(
    ("trainer", "kind", "params", "says"),
    [
        ("dqn", "Talks", {}, "which dqn cannot learn from; take vanilla_ppo, a2c or reinforce"),
        ("sac", "Pushes", {}, "which sac cannot learn from; take vanilla_ppo, a2c or reinforce"),
        ("td3", "Pushes", {}, "which td3 cannot learn from; take vanilla_ppo, a2c or reinforce"),
        (
            "vanilla_ppo",
            "Talks",
            {"ppo": {"implementation": "torchrl"}},
            "and GAE of TorchRL .*; set ppo.implementation: plugrl",
        ),
    ],
)
def test_what_cannot_learn_in_turns_is_refused_before_the_run(trainer, kind, params, says):
    made = Path(__file__).with_name("turn_environments.py")
    scenario = {
        "type": "pettingzoo",
        "environment": f"{made}:{kind}",
        "env_kwargs": {"moves": [{"a": [1.0, True, False], "b": [0.0, True, False]}]},
        "num_envs": 2,
    }
    fault = f"^trainer .*: agents of this scenario take turns, {says}$"
    with pytest.raises(ConfigError, match=fault):
        prepare({"trainer": trainer, "scenario": scenario, **params})
    # One that can is not.
    prepare({"trainer": "reinforce", "scenario": scenario})
