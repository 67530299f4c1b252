"""What is wrong with agents, channels, models, prompts and columns shows before a run begins."""

import re

import pytest
import text_agents

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.text.protocol.episode import template_variables
from plugrl.core.text.protocol.prompts import FACTS


@pytest.fixture
def faults(tmp_path):
    """The faults of a tiny staged run whose worker is changed."""

    def find(trainer="ei_pure_text", models=None, **worker):
        tree = text_agents.config(trainer, tmp_path, rollout_worker=worker)
        for name in models or ():
            tree["models"][name] = tree["models"]["policy"]
        try:
            prepare(tree)
        except ConfigError as error:
            return list(error.faults)
        return []

    return find


CHANNELS = {"prover0_channel": "desk", "prover1_channel": "DESK"}


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        ({"agents": {"provr": {}}}, r"agents\.provr .*no such agent.*did you mean prover"),
        ({"agents": {"prover": {"model": "judge"}}}, r"agents\.prover\.model .*has: policy"),
        ({"model": "judge"}, r"rollout_worker\.model .*no model 'judge'.*has: policy"),
        ({"channel_names": {"lobby": "L"}}, r"channel_names\.lobby .*no such channel.*has: main"),
        ({"channel_names": {"main": " "}}, r"channel_names\.main .*must not be blank"),
        (
            {"protocol": "debate", "channel_names": CHANNELS},
            r"channel_names\.prover1_channel .*'prover0_channel' and 'prover1_channel' are both",
        ),
        (
            {"protocol": "debate", "channel_names": {"prover0_channel": "prover1_channel"}},
            r"channel_names\.prover0_channel .*are both called",
        ),
        ({"evaluator": "exact_match"}, r"rollout_worker\.evaluator .*the protocol rewards"),
        ({"label_key": "truth"}, r"rollout_worker\.label_key .*no column 'truth'.*label"),
        (
            {"agents": {"prover": {"script": "proof"}}},
            r"agents\.prover\.script .*no column 'proof'",
        ),
        (
            {"agents": {"prover": {"frozen": True}, "verifier": {"frozen": True}}},
            r"rollout_worker\.agents .*all agents are frozen.*let one of them learn",
        ),
    ],
)
def test_a_fault_is_one_line_at_its_key(faults, worker, says):
    (found,) = faults(**worker)
    assert "\n" not in found
    assert re.search(says, found), found


def test_a_model_that_no_agent_has_need_not_be_there(faults):
    agents = {name: {"model": name} for name in ("prover", "verifier")}
    assert faults(models=agents, agents=agents, model="nobody") == []
    (found,) = faults(models=agents, agents={"prover": agents["prover"]}, model="nobody")
    assert "rollout_worker.model" in found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[first]\n{{ qestion }}", "uses 'qestion', which there is not; it may use accept, agent"),
        ("[first]\n{{ question }}\n[later]\n{% for x in hear %}{% endfor %}", "part [later] uses"),
        ("[first]\n{{ question ", "part [first], line 1"),
        ("", "has no part [first]"),
        (None, "has no prompt of agent 'verifier'; write one of adp/verifier.txt, verifier.txt"),
    ],
)
def test_prompts_are_looked_at_before(faults, tmp_path, text, says):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "prover.txt").write_text("[first]\n{{ question }}")
    if text is not None:
        (folder / "verifier.txt").write_text(text)
    (found,) = faults(prompts=str(folder))
    assert found.startswith("rollout_worker.prompts")
    assert says in found
    # Each name once, though this agent is called as its role.
    assert text is not None or found.endswith("adp/verifier.txt, verifier.txt")


def test_what_templates_set_themselves_is_no_fault(faults, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    text = "[first]\n{% set n = range(3)|length %}{% for each in heard %}{{ n }}{{ loop.index }}"
    for name in ("prover", "verifier"):
        (folder / f"{name}.txt").write_text(text + "{{ each.text }}{% endfor %}{{ question }}")
    assert faults(prompts=str(folder)) == []


def test_what_templates_may_use_is_what_they_are_given(begin):
    episode, _, _ = begin({"m": ["a"]}, protocol="nip", model="m")
    for agent in ("prover", "verifier"):
        assert tuple(sorted(template_variables(episode, agent))) == FACTS
