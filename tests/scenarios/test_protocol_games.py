"""Protocols as environments of PettingZoo."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from plugrl import ConfigError, ContractError, Verdict
from plugrl.scenarios.protocols.pettingzoo_view import parallel_env

BASES = ["nip", "adp", "debate", "merlin_arthur", "mnip", "solo_verifier", "multi_channel"]
NO, YES, OPEN = (int(verdict) for verdict in Verdict)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_the_interface_of_pettingzoo_is_kept(base, wrapped):
    protocol = {"type": "zero_knowledge", "base": base} if wrapped else base
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(protocol, 3), num_cycles=60)
        parallel_seed_test(lambda: parallel_env(protocol, 3), num_cycles=20)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_choices_without_effect_are_masked(base, wrapped):
    game = parallel_env({"type": "zero_knowledge", "base": base} if wrapped else base, 3)
    protocol = game.protocol
    observed, infos = game.reset(seed=1)
    for agent in game.possible_agents:
        game.action_space(agent).seed(0)
    rounds = 0
    while game.agents:
        state = game._state
        active, deciding = protocol.active(state)[0], protocol.deciding(state)[0]
        actions = {}
        for place, agent in enumerate(game.agents):
            mask = infos[agent]["action_mask"]
            free = [int(part.sum()) > 1 for part in mask]
            speaks = active[place, [protocol.channels.index(c) for c in protocol.sees(agent)]]
            judges = agent in protocol.verifier_names
            assert sorted(free) == sorted([*speaks, *([deciding[place]] if judges else [])])
            assert infos[agent]["active"] == any(free)
            # The last numbers of an observation say the same.
            assert observed[agent][len(observed[agent]) - len(free) :].tolist() == free
            assert game.observation_space(agent).contains(observed[agent])
            actions[agent] = game.action_space(agent).sample(mask=mask)
        observed, _, _, _, infos = game.step(actions)
        rounds += 1
    assert rounds <= protocol.max_message_rounds
    verdict = game._state.decided[0, protocol.index("verifier")]
    assert [info["verdict"] for info in infos.values()] == [verdict] * len(protocol.agent_names)


def test_an_honest_prover_tells_the_verifier_the_label():
    game = parallel_env({"type": "adp", "shared_reward": True}, messages=2)
    seen = set()
    for seed in range(8):
        observed, infos = game.reset(seed=seed)
        # Round, label, stance, two rounds of one channel, speaks; the verifier is told no label.
        label = int(observed["prover"][1])
        assert observed["prover"].tolist() == [0, label, YES, 0, 0, 1]
        assert observed["verifier"].tolist() == [0, 0, 0, 0, 0]
        assert [part.tolist() for part in infos["verifier"]["action_mask"]] == [[1, 0], [0, 0, 1]]
        assert (infos["prover"]["active"], infos["verifier"]["active"]) == (True, False)
        observed, rewards, over, cut, infos = game.step(
            {"prover": np.array([label]), "verifier": np.array([1, NO])}
        )
        assert observed["verifier"].tolist() == [1, label + 1, 0, 1, 1]
        assert rewards == {"prover": 0.0, "verifier": 0.0}
        assert over == cut == {"prover": False, "verifier": False}
        told = int(observed["verifier"][1]) - 1
        observed, rewards, over, cut, infos = game.step(
            {"prover": np.array([0]), "verifier": np.array([0, told])}
        )
        assert rewards == {"prover": 1.0, "verifier": 1.0}
        assert over == {"prover": True, "verifier": True}
        assert cut == {"prover": False, "verifier": False}
        assert (infos["verifier"]["label"], infos["verifier"]["verdict"]) == (label, told)
        assert game.agents == []
        seen.add(label)
    assert seen == {NO, YES}


def test_the_verifier_is_shown_channels_in_an_order_that_it_acts_in():
    game = parallel_env({"type": "mnip", "verifier_first": False}, messages=5)
    orders = set()
    for seed in range(12):
        game.reset(seed=seed)
        silent = {agent: game.action_space(agent).sample() for agent in game.agents}
        observed, *_ = game.step({**silent, "prover0": np.array([1]), "prover1": np.array([3])})
        first = observed["verifier"][1:3].tolist()
        assert sorted(first) == [2, 4]
        # A prover sees its own channel alone.
        assert observed["prover0"][3:5].tolist() == [2, 0]
        assert observed["prover1"][3:5].tolist() == [4, 0]
        answer = [0, 4, OPEN] if first == [2, 4] else [4, 0, OPEN]
        observed, *_ = game.step({**silent, "verifier": np.array(answer)})
        assert observed["prover0"][3:5].tolist() == [2, 1]
        assert observed["prover1"][3:5].tolist() == [4, 5]
        orders.add(tuple(first))
    assert len(orders) == 2


def test_what_cannot_be_played(monkeypatch):
    with pytest.raises(ConfigError, match="messages must be at least 1"):
        parallel_env("nip", 0)
    with pytest.raises(ConfigError, match="unknown protocol 'npi'; did you mean nip"):
        parallel_env("npi")
    game = parallel_env("adp", 2)
    game.reset(seed=0)
    with pytest.raises(ContractError, match=r"prover acts in MultiDiscrete\(\[2\]\), .* \[2\] is"):
        game.step({"prover": np.array([2])})
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r'run: pip install "plugrl\[pettingzoo\]"$'):
        parallel_env("adp", 2)


def test_protocols_need_no_pettingzoo_and_no_torch():
    script = (
        "import sys; from plugrl import make_protocol\n"
        f"[make_protocol({{'type': 'zero_knowledge', 'base': name}}) for name in {BASES}]\n"
        "import plugrl.scenarios.protocols.pettingzoo_view\n"
        "print(sorted({'torch', 'pettingzoo', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
