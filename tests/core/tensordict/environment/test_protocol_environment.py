"""Episodes of protocols between small networks, against games that are played one by one."""

import copy

import gymnasium
import numpy as np
import pytest

from plugrl import (
    Labelled,
    MessageSpace,
    ProtocolEnvironment,
    Registry,
    ScenarioInstance,
    make_protocol,
)
from plugrl.core.errors import ConfigError, ContractError
from plugrl.core.tensordict.environment.message_space import last_said
from plugrl.scenarios.protocols.pettingzoo_game import ProtocolGame

NAMES = ("nip", "adp", "debate", "mnip", "merlin_arthur", "solo_verifier", "multi_channel")
OPTIONS = {
    "nip": {"randomize_prover_stance": True, "max_message_rounds": 5},
    "debate": {"randomize_channel_order": True, "max_message_rounds": 5, "sequential": True},
}
SIZE = 3


def protocol_of(name, wrapped=False):
    base = {"type": name, **OPTIONS.get(name, {})}
    return make_protocol({"type": "zero_knowledge", "base": base} if wrapped else base)


def data_of(number=11, **options):
    rng = np.random.default_rng(7)
    arrays = {"x": rng.normal(size=(number, 2, 2)).astype(np.float32), "id": np.arange(number)}
    return Labelled(arrays, rng.integers(0, 2, number), **options)


def environment_of(protocol, num_envs=5, data=None, **options):
    messages = options.pop("messages", None) or MessageSpace(SIZE)
    data = data_of() if data is None else data
    return ProtocolEnvironment(protocol, data, messages, num_envs=num_envs, **options)


def part(environment, agent, seen, name):
    return environment.spaces[agent].layout.view(seen[agent], name)


def choices(environment, agent, seen):
    """The mask of each choice, one after the other."""
    mask = part(environment, agent, seen, "action_mask") > 0.5
    return np.split(mask, np.cumsum(environment.spaces[agent].action.nvec)[:-1], -1)


def drawn(environment, seen, rng):
    """Allowed actions, and logits that they might be from."""
    actions, params = {}, {}
    for agent in environment.spaces:
        masks = choices(environment, agent, seen)
        picked = [(rng.random(mask.shape) * mask).argmax(-1) for mask in masks]
        actions[agent] = np.stack(picked, -1)
        whole = np.concatenate(masks, -1)
        params[agent] = np.where(whole, rng.normal(size=whole.shape), -np.inf)
    return actions, params


class Following:
    """A game of one episode for each copy, which are told the seeds and labels."""

    def __init__(self, environment):
        self.environment, self.protocol = environment, environment.protocol
        self.games = [ProtocolGame(self.protocol, SIZE) for _ in range(environment.num_envs)]

    def begin(self, row, seed, label):
        game = self.games[row]
        game.agents = list(game.possible_agents)
        game._state = self.protocol.begin([seed], [label])
        game._history = np.zeros_like(game._history)

    def check(self, row, seen):
        environment, game = self.environment, self.games[row]
        observations, infos = game._observed()
        acting = environment.acting()
        for agent, told in observations.items():
            numbers = list(told)
            round = numbers.pop(0)
            rounds, order = self.protocol.max_message_rounds, len(self.protocol.sees(agent))
            at = part(environment, agent, seen, "round")[row]
            assert at.tolist() == [float(r == round) for r in range(rounds)]
            if agent in self.protocol.prover_names:
                _, stance = numbers.pop(0), numbers.pop(0)
                if self.protocol.stances_are_random:
                    one = part(environment, agent, seen, "stance")[row]
                    assert one.tolist() == np.eye(3)[stance, :2].tolist()
            said = np.array(numbers[: rounds * order]).reshape(rounds, order)
            messages = part(environment, agent, seen, "messages")[row]
            np.testing.assert_array_equal(messages, np.eye(SIZE + 1)[said][..., 1:])
            last = part(environment, agent, seen, "last_message")[row]
            latest = last_said(said[None] - 1)[0]
            np.testing.assert_array_equal(last, np.eye(SIZE + 1)[latest + 1][..., 1:])
            speaks = part(environment, agent, seen, "speaks")[row].tolist()
            rest = numbers[rounds * order :]
            assert speaks == rest[:order]
            # Decisions that are only compared are no choice in a game.
            if agent not in self.protocol.imitates:
                assert part(environment, agent, seen, "may_decide")[row].tolist() == (
                    rest[order:] or [0]
                )
                assert acting[agent][row] == infos[agent]["active"]
                found = [mask[row] for mask in choices(environment, agent, seen)]
                for mine, theirs in zip(found, infos[agent]["action_mask"], strict=True):
                    np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("copies", "steps"), [(3, 12), pytest.param(5, 30, marks=pytest.mark.integration)]
)
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_copies_are_what_single_games_are(name, wrapped, copies, steps) -> None:
    protocol, rng = protocol_of(name, wrapped), np.random.default_rng(1)
    environment = environment_of(protocol, copies)
    follower, data = Following(environment), environment.data
    seen, ended, over = environment.reset(3), np.ones(copies, bool), 0
    signals = []
    for game in follower.games:
        game._signals = lambda said, decisions: signals[0]
    for _ in range(steps):
        state = environment.state_dict()
        for row in range(copies):
            label = data.labels[state["items"][row]]
            if ended[row]:
                follower.begin(row, state["state"]["seed"][row], label)
            follower.check(row, seen)
            for agent in environment.spaces:
                item = part(environment, agent, seen, "id")[row]
                assert item == state["items"][row]
                x = part(environment, agent, seen, "x")[row]
                np.testing.assert_array_equal(x, data.arrays["x"][int(item)])
        actions, params = drawn(environment, seen, rng)
        environment.take_params(params)
        told = environment._signals()
        environment.take_params(params)
        stepped = environment.step(actions)
        for row, game in enumerate(follower.games):
            mine = {agent: action[row] for agent, action in actions.items()}
            mine = {a: x[: len(game.action_space(a).nvec)] for a, x in mine.items()}
            signals[:] = [row_of(told, row)] if told else [None]
            _, rewards, terminations, _, _ = game.step(mine)
            for agent, step in stepped.items():
                assert step.reward[row] == pytest.approx(rewards[agent])
                assert step.terminated[row] == terminations[agent]
                assert not step.truncated[row]
        ended = next(iter(stepped.values())).terminated
        over += int(ended.sum())
        seen = {agent: step.observation for agent, step in stepped.items()}
        for agent, step in stepped.items():
            if ended.any():
                final = {agent: step.final_observation[ended]}
                assert not part(environment, agent, final, "speaks").any()
    assert over > copies
    random = bool(OPTIONS.get(name, {}).get("randomize_prover_stance"))
    told = {agent for agent, each in environment.spaces.items() if "stance" in each.layout}
    assert told == (set(protocol.prover_names) if random else set())


def row_of(signals, row):
    from plugrl.core.protocol.protocol import ProtocolSignals

    return ProtocolSignals(
        messages=signals.messages[row : row + 1], decisions=signals.decisions[row : row + 1]
    )


def test_signals_are_the_logits_of_who_speaks_where() -> None:
    environment = environment_of(protocol_of("nip", wrapped=True), num_envs=2)
    environment.reset(0)
    actions, _ = drawn(environment, environment._observations(), np.random.default_rng(0))
    with pytest.raises(ContractError, match="call take_params"):
        environment.step(actions)
    layout = {agent: space.action.nvec.tolist() for agent, space in environment.spaces.items()}
    # Provers see two copies of the channel; the simulator decides, to be compared.
    assert layout == {
        "prover": [3, 3],
        "verifier": [3, 3],
        "adversarial_verifier": [3, 3],
        "simulator": [3, 3],
    }
    params = {
        agent: (100 * i + np.arange(12).reshape(2, 6)).astype(float)
        for i, agent in enumerate(layout)
    }
    environment.take_params(params)
    told = environment._signals()
    # Channels are those of verifier, adversary and simulator.
    np.testing.assert_array_equal(told.messages[1, 0], [[6, 7, 8], [9, 10, 11], [0, 0, 0]])
    np.testing.assert_array_equal(told.messages[1, 2, 1], [206, 207, 208])
    np.testing.assert_array_equal(told.messages[1, 3, 2], [306, 307, 308])
    np.testing.assert_array_equal(told.decisions[1, :, 0], [0, 109, 209, 309])


def played(environment, seed, steps, rng=None):
    """Play with what is allowed; give the items in the order in which they came up."""
    rng = rng or np.random.default_rng(seed)
    seen, items = environment.reset(seed), []
    began = np.ones(environment.num_envs, bool)
    for _ in range(steps):
        agent = next(iter(environment.spaces))
        items += part(environment, agent, seen, "id")[began].astype(int).tolist()
        stepped = environment.step(drawn(environment, seen, rng)[0])
        seen = {name: step.observation for name, step in stepped.items()}
        began = stepped[agent].terminated
    return items


def test_items_come_in_an_order_of_the_seed_and_each_as_often() -> None:
    once, other, twice = (
        played(environment_of(protocol_of("adp"), num_envs=4), seed, 22) for seed in (1, 2, 1)
    )
    assert once == twice != other
    assert len(once) == 44
    rounds = [once[i : i + 11] for i in range(0, 44, 11)]
    assert all(sorted(each) == list(range(11)) for each in rounds)
    assert rounds[0] != rounds[1]


def test_an_evaluation_plays_each_item_once_in_its_order() -> None:
    environment = environment_of(protocol_of("nip"), num_envs=4, once=True)
    environment.reset(0)
    firsts = [played(environment_of(protocol_of("nip"), 4, once=True), seed, 1) for seed in (0, 9)]
    assert firsts == [[0, 1, 2, 3]] * 2
    played(environment, 0, 60)
    ended = np.concatenate(environment._metrics._ended, 1)
    for row in range(4):
        of_row = [int(number) for number in ended[0] if number % 4 == row]
        assert of_row == list(range(row, 4 * len(of_row), 4))
    np.testing.assert_array_equal(ended[1], ended[0] % 11)


def test_metrics_take_no_verdict_for_a_wrong_one_and_know_groups() -> None:
    labels = np.array([0, 1, 1, 0])
    data = Labelled({"id": np.arange(4)}, labels, np.array([0, 0, 1, 1]), ("easy", "hard"))
    environment = environment_of(protocol_of("solo_verifier"), 4, data, once=True)
    environment.reset(0)
    assert environment.take_metrics() == {}
    # Right, wrong, undecided, right; then the same items again, all rejected.
    environment.step({"verifier": np.array([[0, 0], [0, 0], [0, 2], [0, 0]])})
    environment.step({"verifier": np.zeros((4, 2), int)})
    expected = {
        "accuracy": 0.5,
        "decided_accuracy": 2 / 3,
        "undecided": 0.25,
        "rounds": 1.0,
        "accuracy/label_0": 1.0,
        "accuracy/label_1": 0.0,
        "accuracy/easy": 0.5,
        "accuracy/hard": 0.5,
    }
    assert environment.take_metrics(4) == pytest.approx(expected)
    assert environment.take_metrics() == {}


class Unrepeated(MessageSpace):
    """Nobody says what was said last."""

    def allowed(self, agent, items, history):
        assert len(items["x"]) == len(history)
        mask = np.ones((len(history), history.shape[2], self.size), bool)
        rows, channels = np.nonzero(last_said(history) >= 0)
        mask[rows, channels, last_said(history)[rows, channels]] = False
        return mask


def test_rules_of_messages_are_masks_where_an_agent_speaks() -> None:
    protocol = protocol_of("debate")
    environment = environment_of(protocol, messages=Unrepeated(SIZE))
    seen, rng, narrowed = environment.reset(0), np.random.default_rng(0), 0
    for _ in range(20):
        for agent in environment.spaces:
            *messages, _ = [*choices(environment, agent, seen), None]
            turns = part(environment, agent, seen, "speaks") > 0
            last = part(environment, agent, seen, "last_message") > 0
            for channel in range(turns.shape[1]):
                mask, speaks = messages[channel], turns[:, channel]
                np.testing.assert_array_equal(mask[speaks], ~last[speaks, channel])
                narrowed += int((~mask[speaks]).sum())
                np.testing.assert_array_equal(mask[~speaks], np.eye(3)[[0] * sum(~speaks)])
        steps = environment.step(drawn(environment, seen, rng)[0])
        seen = {name: step.observation for name, step in steps.items()}
    assert narrowed > 20


class Last(MessageSpace):
    """Only the last message may be said, in every channel that an agent hears."""

    def allowed(self, agent, items, history):
        return np.broadcast_to(np.arange(self.size) == self.size - 1, (len(history), 1, self.size))


def test_a_rule_may_be_one_for_all_channels() -> None:
    environment = environment_of(protocol_of("debate"), messages=Last(SIZE))
    seen, channels = environment.reset(0), 0
    for agent in environment.spaces:
        *messages, _ = [*choices(environment, agent, seen), None]
        turns = part(environment, agent, seen, "speaks") > 0
        for channel in range(turns.shape[1]):
            speaks = turns[:, channel]
            np.testing.assert_array_equal(
                messages[channel], np.eye(3)[np.where(speaks, SIZE - 1, 0)]
            )
            channels = max(channels, turns.shape[1])
    assert channels > 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda n: np.zeros((n, 1, SIZE), bool), "leaves verifier nothing to say"),
        (lambda n: np.ones((n, SIZE), bool), r"gave shape \[5, 3\]; give \[5, 1, 3\]"),
        (lambda n: np.ones((n, 1, SIZE, 1), bool), r"gave shape \[5, 1, 3, 1\]; give"),
        (lambda n: np.ones((n - 1, 1, SIZE), bool), r"gave shape \[4, 1, 3\]; give"),
        (lambda n: np.ones((1, 1, SIZE), bool), r"gave shape \[1, 1, 3\]; give"),
        (lambda n: np.ones((n, 2, SIZE), bool), r"gave shape \[5, 2, 3\]; give"),
        (lambda n: np.ones((n, 1, SIZE - 1), bool), r"gave shape \[5, 1, 2\]; give"),
        (lambda n: np.ones((n, 1, 1), bool), r"gave shape \[5, 1, 1\]; give"),
    ],
)
def test_rules_that_cannot_be_are_refused(given, message) -> None:
    class Wrong(MessageSpace):
        def allowed(self, agent, items, history):
            return given(len(history))

    with pytest.raises(ContractError, match=message):
        environment_of(protocol_of("nip"), messages=Wrong(SIZE)).reset(0)


def test_data_that_no_protocol_can_be_about_are_refused() -> None:
    protocol = protocol_of("nip")
    with pytest.raises(ContractError, match="the data set has a label 2"):
        environment_of(protocol, data=Labelled({}, np.array([0, 2])))
    with pytest.raises(ContractError, match="has no items"):
        environment_of(protocol, data=Labelled({}, np.array([], int)))
    with pytest.raises(ContractError, match="called round, which .* rename"):
        environment_of(protocol, data=Labelled({"round": np.zeros(2)}, np.array([0, 1])))


def contrary(spaces, observation, rng):
    """Rejects items whose first number is positive, and accepts others."""
    verdict = spaces.layout.view(observation, "x")[:, 0, 0] < 0
    said = np.zeros((len(observation), 1), int)
    return np.concatenate([said, verdict[:, None].astype(int)], -1)


def echo(spaces, observation, rng):
    """Says what was said last and does not decide."""
    last = spaces.layout.view(observation, "last_message").argmax(-1)
    return np.concatenate([last, np.full((len(last), 1), 2)], -1)


def task(protocol, **options):
    def build(split):
        return environment_of(protocol, 8, once=split != "train", **options)

    return ScenarioInstance(name="talk", make_environment=build)


def trainer_of(instance, **params):
    registry = Registry()
    ppo = registry.load(registry.resolve("trainer", "vanilla_ppo"))
    rl = {"num_iterations": 4, "frames_per_batch": 128, "minibatch_size": 32}
    sections = {"rl": rl, "validate": {"episodes": 11, "every": 0}}
    return ppo(scenario_instance=instance, hyper_params={**sections, **params})


def test_agents_without_networks_take_part() -> None:
    labels = (data_of().arrays["x"][:, 0, 0] < 0).astype(int)
    data = Labelled(data_of().arrays, labels)
    instance = task(protocol_of("adp"), data=data, scripts={"contrary": contrary})
    agents = {"verifier": {"scripted": "contrary"}}
    trainer = trainer_of(instance, agents=agents)
    trainer.train()
    assert trainer.run.metrics[-1]["validation/accuracy"] == 1
    assert not trainer.agents["verifier"].is_random
    agents = {"verifier": {"scripted": f"{__name__}:contrary"}, "prover": {"is_random": True}}
    with pytest.raises(ConfigError, match="no agent is trained"):
        trainer_of(instance, agents=agents).train()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("contrarian", r"agents.verifier.scripted: .* no hand-made policy 'contrarian'.*contrary"),
        ("json:lods", r"agents.verifier.scripted: json has no function 'lods'.*loads"),
        ("nosuch:f", r"agents.verifier.scripted: nosuch cannot be imported"),
    ],
)
def test_hand_made_policies_that_are_not_there_are_refused(name, message) -> None:
    instance = task(protocol_of("adp"), scripts={"contrary": contrary})
    with pytest.raises(ConfigError, match=message):
        trainer_of(instance, agents={"verifier": {"scripted": name}}).train()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (echo, "is masked"),
        (lambda s, o, r: np.full((len(o), 2), 9), "its space has not"),
        (lambda s, o, r: np.zeros(len(o)), r"shape \[8\]; give \[8, 2\]"),
    ],
)
def test_what_hand_made_policies_may_not_do_is_refused(script, message) -> None:
    instance = task(protocol_of("nip"), scripts={"script": script}, messages=Unrepeated(SIZE))
    # The verifier opens, and its decision counts from then on.
    with pytest.raises(ContractError, match=f"policy script of verifier gave .*{message}"):
        trainer_of(instance, agents={"verifier": {"scripted": "script"}}).train()


@pytest.mark.parametrize(
    "name",
    ["nip", *(pytest.param(n, marks=pytest.mark.integration) for n in ("merlin_arthur", "debate"))],
)
def test_what_goes_on_equals_what_was_never_stopped(name) -> None:
    protocol = protocol_of(name, wrapped=name == "nip")
    params = {"rl": {"num_iterations": 3, "frames_per_batch": 64, "minibatch_size": 32}}
    whole = trainer_of(task(protocol), **params)
    held = []
    kept, whole_end = whole.run.end_step, held.append

    def end_step(step, metrics):
        kept(step, metrics)
        if step == 1:
            whole_end(copy.deepcopy(whole.state_dict()))

    whole.run.end_step = end_step
    whole.train()
    again = trainer_of(task(protocol), **params)
    again.load_state_dict(held[0])
    again.train()
    for policy, agent in whole.agents.items():
        for key, weights in agent.state_dict().items():
            assert (again.agents[policy].state_dict()[key] == weights).all(), key
    told = [{k: v for k, v in m.items() if not k.startswith("time/")} for m in whole.run.metrics]
    assert len(told) == 4
    assert told[2:] == [
        {k: v for k, v in m.items() if not k.startswith("time/")} for m in again.run.metrics
    ]


def test_spaces_say_what_observations_are() -> None:
    environment = environment_of(protocol_of("nip"))
    for agent, seen in environment.reset(0).items():
        space = environment.spaces[agent]
        assert space.observation.contains(seen[0])
        assert isinstance(space.action, gymnasium.spaces.MultiDiscrete)
