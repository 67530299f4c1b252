"""Values and comparisons in hand-built trees."""

import numpy as np
import pytest
from written_rollouts import chat, rollouts

from plugrl.core.text.staged.trees import nodes_of, preferences

PROVER, VERIFIER = 0, 1
ASKED = {"p": chat("prove"), "a": chat("judge a"), "b": chat("judge b")}


def leaf(argument, verdict):
    """A leaf of a tree for a wrong claim: argument a or b, then a verdict of 0, 1 or 2."""
    said = {0: "reject", 1: "accept", 2: "hm"}[verdict]
    judged = {0: 1.0, 1: -1.0, 2: -1.0}[verdict]
    return {
        "y": 0,
        "rounds": [
            {"prover": (ASKED["p"], f"argument {argument}")},
            {
                "verifier": (ASKED[argument], f"{said} after {argument}", verdict, judged),
                "prover": ("", "", 2, float(verdict == 1)),
            },
        ],
    }


def tree(leaves, numbers, trees=None):
    batch = rollouts(leaves)
    batch["node_id"] = np.array(numbers)
    batch["tree"] = np.array(trees or [[0, 0]] * len(leaves))
    return batch


@pytest.fixture
def grown():
    # After argument a it is accepted and rejected, after b rejected twice.
    return tree(
        [leaf("a", 1), leaf("a", 0), leaf("b", 0), leaf("b", 0)],
        [[0, 2], [0, 3], [1, 4], [1, 5]],
    )


def test_a_node_is_worth_the_mean_of_what_follows(grown):
    prover = nodes_of(grown, PROVER)
    assert {name[1]: node.value for name, node in prover.items()} == {
        0: 0.5,
        1: 0.0,
        2: 1.0,
        3: 0.0,
        4: 0.0,
        5: 0.0,
    }
    verifier = nodes_of(grown, VERIFIER)
    assert {name[1]: node.value for name, node in verifier.items()} == {
        0: 0.0,
        1: 1.0,
        2: -1.0,
        3: 1.0,
        4: 1.0,
        5: 1.0,
    }


def test_what_ends_early_weighs_as_much_as_what_branches():
    # One follower of the first node is a leaf, the other has two leaves below it.
    numbers = [[0, 1, -1, -1], [0, 2, 3, 5], [0, 2, 4, 6]]
    nip = {"type": "nip", "max_message_rounds": 4}

    def played(*rewards):
        return {"y": 1, "rounds": [{"verifier": (chat("q"), "m", 2, r)} for r in rewards]}

    batch = rollouts([played(0, 4), played(0, 0, 0, 8), played(0, 0, 0, 0)], nip)
    batch["node_id"], batch["tree"] = np.array(numbers), np.zeros((3, 4), int)
    values = {name[1]: node.value for name, node in nodes_of(batch, VERIFIER).items()}
    # (4 + (8 + 0) / 2) / 2, not the mean over leaves (4 + 8 + 0) / 3.
    assert values[0] == 4.0
    assert values[2] == 4.0


def test_every_turn_gives_preferences_the_first_included(grown):
    generator = np.random.default_rng(0)
    (first,) = preferences(grown, PROVER, 0.5, generator)
    assert first.messages == ASKED["p"]
    assert (first.preferred, first.other) == ("argument a", "argument b")
    (judged,) = preferences(grown, VERIFIER, 0.0, generator)
    assert judged.messages == ASKED["a"]
    assert (judged.preferred, judged.other) == ("reject after a", "accept after a")


def test_trees_do_not_mix():
    good, bad = leaf("a", 1), leaf("b", 0)
    apart = tree(
        [good, good, bad, bad], [[0, 1], [0, 2], [0, 1], [0, 2]], [[0] * 2] * 2 + [[1] * 2] * 2
    )
    assert preferences(apart, PROVER, 0.5, np.random.default_rng(0)) == []


def test_equal_texts_are_not_compared(grown):
    grown["agents"]["raw_message"][:, 0, PROVER] = "the same"
    assert preferences(grown, PROVER, 0.5, np.random.default_rng(0)) == []


def test_of_several_good_and_bad_replies_all_pairs_can_be_drawn():
    leaves = [leaf("a", 0), leaf("a", 0), leaf("a", 1), leaf("a", 2)]
    for number, (episode, text) in enumerate(zip(leaves, ["r1", "r2", "w1", "w2"], strict=True)):
        asked, _, *rest = episode["rounds"][1]["verifier"]
        leaves[number]["rounds"][1]["verifier"] = (asked, text, *rest)
    batch = tree(leaves, [[0, number] for number in range(1, 5)])
    drawn = {
        (p.preferred, p.other)
        for seed in range(40)
        for p in preferences(batch, VERIFIER, 0.0, np.random.default_rng(seed))
    }
    assert drawn == {("r1", "w1"), ("r1", "w2"), ("r2", "w1"), ("r2", "w2")}
