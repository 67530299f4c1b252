"""The worker of protocols: its agents, its prompts, and replies that are written to be learned."""

import asyncio

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.protocol.prompts import load_prompts
from plugrl.core.text.protocol.worker import ProtocolRolloutWorker
from plugrl.scenarios.rollout_workers.protocol_demonstration import (
    ProtocolDemonstrationRolloutWorker,
)


def test_an_agent_that_the_protocol_lacks_is_named_with_the_close_one():
    with pytest.raises(ConfigError, match=r"agents\.verifer: .*it has: prover, verifier.*verifier"):
        ProtocolRolloutWorker({"protocol": "nip", "agents": {"verifer": {"frozen": True}}})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Hello", "does not begin with the name of a part"),
        ("[second]\nHello", r"has a part \[second\]"),
        ("[system]\nHello", r"has no part \[first\]"),
        ("[first]\n{{ a b }}", r"part \[first\], line 1"),
    ],
)
def test_malformed_prompts_are_refused_with_their_file(tmp_path, text, said):
    (tmp_path / "verifier.txt").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        ProtocolRolloutWorker({"protocol": "solo_verifier", "prompts": str(tmp_path)})
    assert "verifier.txt" in str(caught.value)


def test_prompts_of_one_protocol_come_before_those_of_all(begin, tmp_path):
    (tmp_path / "verifier.txt").write_text("[first]\nall")
    (tmp_path / "solo_verifier").mkdir()
    (tmp_path / "solo_verifier" / "verifier.txt").write_text("[first]\nown {{ question }}")
    episode, table, _ = begin(
        {"m": ["Decision: accept"]}, protocol="solo_verifier", model="m", prompts=str(tmp_path)
    )
    asyncio.run(episode.play())
    assert "own Is 1+1 2?" in table.asked[0][1]


def test_a_template_that_fails_over_a_problem_is_named(begin, tmp_path):
    (tmp_path / "verifier.txt").write_text("[first]\n{{ item.secret }}")
    section = {"protocol": "solo_verifier", "model": "m", "prompts": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"part \[first\]: .*secret.*it may use accept, agent"):
        asyncio.run(begin({"m": ["x"]}, **section)[0].play())


def test_demonstrations_train_what_is_written_and_ask_nobody(begin):
    section = {
        "protocol": "adp",
        "model": "m",
        "agents": {"prover": {"script": "proof"}, "verifier": {"script": "verdict"}},
    }
    data = {"proof": "It is.", "verdict": ["Decision: accept"]}
    worker = ProtocolDemonstrationRolloutWorker
    episode, table, _ = begin({"m": ["x"]}, data=data, worker=worker, **section)
    prover, verifier = asyncio.run(episode.play()).trajectories()
    assert not table.asked
    assert (prover.finish_reason, verifier.finish_reason) == ("demonstration", "demonstration")
    assert sum(prover.loss_mask) == len("It is.") + 1
    assert sum(verifier.loss_mask) == len("Decision: accept") + 1


def test_what_others_sample_beside_demonstrations_is_not_learned(begin):
    section = {"protocol": "adp", "model": "m", "agents": {"verifier": {"script": "verdict"}}}
    worker = ProtocolDemonstrationRolloutWorker
    data = {"verdict": "Decision: accept"}
    episode, *_ = begin({"m": ["Hm."]}, data=data, worker=worker, **section)
    prover, verifier = asyncio.run(episode.play()).trajectories()
    assert sum(prover.loss_mask) == 0
    assert sum(verifier.loss_mask) > 0


def test_simulators_are_told_to_imitate_and_not_to_judge():
    protocol = make_protocol({"type": "zero_knowledge", "base": {"type": "nip"}})
    prompts = load_prompts(None, protocol, ("zero_knowledge", "nip"))
    assert {agent: each.path.name for agent, each in prompts.items()} == {
        "prover": "prover.txt",
        "verifier": "verifier.txt",
        "adversarial_verifier": "verifier.txt",
        "simulator": "simulator.txt",
    }
