"""Questions about rollouts: what is asked about whom, and how replies are read."""

import pytest
from written_rollouts import chat, rollouts

from plugrl.core.errors import ConfigError
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.staged.analysis import (
    BUILT_IN,
    Inquiry,
    analysis_metrics,
    inquiries,
    questions_for,
    read_answer,
)

NIP = {"type": "nip", "max_message_rounds": 4}
EPISODES = [
    {
        "y": 1,
        "question": "Is {stance} 4 even?",
        "rounds": [
            {"verifier": (chat("q"), "Why?")},
            {"prover": (chat("q"), "4 is {agent} 2 + 2.")},
            {"verifier": (chat("q"), "I see.", 1, 1.0)},
        ],
    },
    {"y": 0, "question": "Is 5?", "rounds": [{"verifier": (chat("q"), "No.", 0, 1.0)}]},
]


def asked(section, episodes=EPISODES, protocol=NIP):
    made = make_protocol(protocol)
    return list(inquiries(rollouts(episodes, protocol), made, questions_for(section, made)))


def test_every_agent_that_spoke_is_asked_about():
    found = asked({"prover_role_conformance": True, "follow_up": True})
    assert [(each.question, each.episode, each.agent) for each in found] == [
        ("prover_role_conformance", 0, "prover"),
        ("follow_up", 0, "verifier"),
        # In the second episode no prover spoke.
        ("follow_up", 1, "verifier"),
    ]


def test_the_model_reads_all_that_was_said_and_what_agents_write_in_braces_stays():
    first, *_ = asked({"prover_role_conformance": True})
    assert "Is {stance} 4 even?" in first.prompt
    said = "[verifier] Why?\n[prover] 4 is {agent} 2 + 2.\n[verifier] I see.\n"
    assert said + "[verifier] (decides: accept)" in first.prompt
    assert "task of prover is to convince the verifier that the claim is right." in first.prompt


def test_a_stance_is_the_one_of_the_episode():
    protocol = {**NIP, "randomize_prover_stance": True}
    episodes = [EPISODES[0]] * 8
    prompts = [each.prompt for each in asked({"prover_role_conformance": True}, episodes, protocol)]
    made = make_protocol(protocol)
    for seed, prompt in enumerate(prompts):
        accepts = made.stances([seed])[0, made.index("prover")] == 1
        assert ("that the claim is right" in prompt) == accepts
        assert ("that the claim is wrong" in prompt) != accepts
    assert len(set(prompts)) == 2


def test_questions_of_ones_own():
    own = {"polite": {"agents": "verifier", "ask": "Is {agent} polite?"}, "follow_up": False}
    assert [each.agent for each in asked(own)] == ["verifier", "verifier"]
    assert "\nIs verifier polite?\n" in asked(own)[0].prompt
    mild = asked({"follow_up": {"ask": "Hm, {agent}?"}})
    assert mild[0].agent == "verifier"
    assert "Hm, verifier?" in mild[0].prompt


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"folow_up": True}, "question 'folow_up' is not built in.*follow_up"),
        ({"follow_up": {"agents": "verifer"}}, "is about 'verifer'.*verifier"),
        ({"follow_up": False}, "no question concerns the agents prover, verifier"),
    ],
)
def test_questions_that_cannot_be_asked_are_named(section, message):
    with pytest.raises(ConfigError, match=message):
        asked(section)


def test_provers_are_not_asked_about_where_there_are_none():
    found = asked(dict.fromkeys(BUILT_IN, True), EPISODES[1:], {"type": "solo_verifier"})
    assert [each.question for each in found] == ["follow_up"]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It does.\nAnswer: yes", True),
        ("Answer: yes? On reflection: answer: **No**.", False),
        ("ANSWER:NO", False),
        ("Yes, it does.", True),
        ("I know nothing.", None),
        ("nobody", None),
        ("The answer is not known", None),
        ("", None),
    ],
)
def test_replies(reply, answer):
    assert read_answer(reply) is answer


def test_unclear_answers_count_apart():
    about = [Inquiry("q", n, agent, "") for n in range(4) for agent in ("a", "b")]
    answers = [True, None, False, None, True, None, None, None]
    assert analysis_metrics(about, answers) == {
        "analysis/q/a": 2 / 3, "analysis/q/a/unclear": 0.25, "analysis/q/b/unclear": 1.0
    }  # fmt: skip
