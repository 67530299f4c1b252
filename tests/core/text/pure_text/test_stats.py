"""Numbers of episodes against hand values, and what people read of them."""

import json

import numpy as np
import pytest
import yaml
from written_rollouts import chat, rollouts

from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.text.staged.stats import episode_metrics, returns_of, verdicts_of
from plugrl.core.text.staged.transcripts import transcript, write_transcripts

ADP = make_protocol("adp")
NIP = {"type": "nip", "max_message_rounds": 4, "min_message_rounds": 3}


def argued(label, decision, reward, problem=0):
    """A prover argues, a verifier decides."""
    said = {0: "Decision: reject", 1: "Decision: accept", 2: "hm"}[decision]
    won = float(decision == 1)
    return {
        "y": label,
        "problem": problem,
        "question": "2 + 2 = 4?",
        "rounds": [
            {"prover": (chat("prove"), "It is.\nReally.", 2, 0.0)},
            {"verifier": (chat("judge"), said, decision, reward), "prover": ("", "", 2, won)},
        ],
    }


EPISODES = [
    argued(1, 1, 1.0, problem=5),
    argued(0, 1, -1.0, problem=6),
    argued(0, 0, 1.0, problem=6),
    argued(1, 2, -1.0, problem=7),
]


def test_metrics_of_four_episodes():
    metrics = episode_metrics(rollouts(EPISODES), ADP)
    assert metrics["rollout/accuracy"] == 2 / 4
    assert metrics["rollout/undecided"] == 1 / 4
    assert metrics["rollout/accepted"] == 2 / 4
    assert metrics["rollout/accuracy_of_0"] == 1 / 2
    assert metrics["rollout/accuracy_of_1"] == 1 / 2
    assert metrics["rollout/precision"] == 1 / 2
    assert metrics["rollout/recall"] == 1 / 2
    # Of problems 5, 6 and 7 only the last was never judged rightly.
    assert metrics["rollout/never_right"] == pytest.approx(1 / 3)
    assert metrics["rollout/rounds"] == 2.0
    assert metrics["rollout/verifier/reward"] == 0.0
    assert metrics["rollout/prover/reward"] == 2 / 4
    assert metrics["rollout/prover/reward_min"] == 0.0
    assert metrics["rollout/verifier/retried"] == 0.0


def test_a_decision_that_does_not_count_is_none():
    early = {
        "y": 1,
        "rounds": [
            {"verifier": (chat("q"), "Decision: accept", 1)},
            {"prover": (chat("q"), "so")},
            {"verifier": (chat("q"), "Decision: reject", 0)},
        ],
    }
    assert verdicts_of(rollouts([early], NIP), make_protocol(NIP)).tolist() == [0]
    only_early = {**early, "rounds": early["rounds"][:2]}
    assert verdicts_of(rollouts([only_early], NIP), make_protocol(NIP)).tolist() == [2]


def test_padding_earns_nothing():
    batch = rollouts(EPISODES[:1])
    assert returns_of(batch).tolist() == [[1.0, 1.0]]
    batch["padding"] = np.array([[False, True]])
    assert returns_of(batch).tolist() == [[0.0, 0.0]]


def test_a_forced_guess_is_the_verdict():
    forced = make_protocol({"type": "adp", "force_guess": "zero"})
    assert verdicts_of(rollouts(EPISODES), forced).tolist() == [0, 0, 0, 0]


def test_a_transcript_says_who_said_what_and_how_it_ended():
    read = transcript(rollouts(EPISODES), 1, ADP)
    assert read == {
        "problem": 6,
        "question": "2 + 2 = 4?",
        "label": "reject",
        "verdict": "accept",
        "rewards": {"prover": 1.0, "verifier": -1.0},
        "rounds": [
            [{"agent": "prover", "says": "It is.\nReally."}],
            [{"agent": "verifier", "says": "Decision: accept", "decides": "accept"}],
        ],
    }


@pytest.mark.parametrize(("form", "load"), [("yaml", yaml.safe_load), ("json", json.loads)])
def test_transcripts_are_files_that_read_back(tmp_path, form, load):
    batch = rollouts(EPISODES)
    write_transcripts(tmp_path / "new" / "iteration-0001", batch, ADP, form)
    text = (tmp_path / "new" / f"iteration-0001.{form}").read_text()
    assert load(text) == [transcript(batch, number, ADP) for number in range(4)]
    if form == "yaml":
        # Text of several lines stands as it is, without escapes.
        assert "says: |-\n        It is.\n        Really.\n" in text
