"""What protocols and their arrays recommend is tried."""

from __future__ import annotations

import numpy as np
import pytest
from remedies import untried
from trials import Read, Trial, section, tiered_trials

from plugrl import NestedArrayDict
from plugrl.core.protocol.config import VerifierConfig
from plugrl.core.protocol.protocol import make_protocol
from plugrl.core.protocol.turns import check_names, check_rewards, turn_table

AGENTS, VIEWERS = ("prover", "verifier"), {"chat": ("prover", "verifier"), "notes": ("verifier",)}


class Rewarded:
    """A component with the rewards of a verifier."""

    Config = VerifierConfig


def declared(own):
    given = {"agents": AGENTS, "verifiers": ("verifier",), "viewers": VIEWERS, "wins": {}}
    check_names("mine", **(given | own))


def turns(own):
    turn_table("mine", own, AGENTS, VIEWERS, 2)


def deciding(rounds):
    make_protocol({"type": "nip", "max_message_rounds": 3, "verifier_first": False, **rounds})


def rewarded(rewards):
    check_rewards("mine", rewards, (3, 2))


def a_tree():
    return NestedArrayDict({"a": np.zeros((2, 3)), "n": {"b": np.zeros((2, 3))}}, (2,))


def flat(separator):
    own = {"n": {"b": np.zeros(2)}, "n.b": np.zeros(2)}
    return NestedArrayDict(own, (2,)).flatten_keys(separator)


def method(name):
    """Whether a tree is empty or true, asked by what the message names."""
    tree = a_tree()
    if name in ("len", "all", "any", "bool"):
        return {"len": len, "bool": bool}.get(name, lambda own: getattr(own, name)())(tree)
    return getattr(tree, name)()


def written(own):
    own(a_tree().expand(3, 2)).set_("a", np.ones((3, 2, 3)))


def put(how):
    tree = a_tree()
    getattr(tree, how)("a", np.zeros((2, 5)))
    assert tree["a"].shape == (2, 5)


TRIALS = [
    Trial(
        "write a penalty with its minus sign",
        section(Rewarded, verifier_reward=0.5),
        {"verifier_incorrect_penalty": 1.0},
        {"verifier_incorrect_penalty": -1.0},
    ),
    Trial("; write a tuple of names", declared, {"agents": "prover"}, {"agents": AGENTS}),
    Trial(
        "verifier_names is '",
        declared,
        {"verifiers": "verifier"},
        {"verifiers": ("verifier",)},
    ),
    Trial(
        "write a tuple of agents for each channel",
        declared,
        {"viewers": {"chat": "prover"}},
        {"viewers": {"chat": ("prover",)}},
    ),
    Trial(
        "write the verdict that pays, by agent",
        declared,
        {"wins": ["prover"]},
        {"wins": {"prover": 1}},
    ),
    Trial(
        "a row for each episode and a column for each agent",
        rewarded,
        [1.0, 2.0, 3.0],
        Read(r"numbers of shape \[(\d+, \d+)\]", lambda text: np.zeros(eval(text))),
    ),
    Trial("give finite numbers", rewarded, np.full((3, 2), np.nan), np.zeros((3, 2))),
    Trial("give a list of turns", turns, "prover", [{"prover": ["chat"]}]),
    Trial("write who speaks in round 0", turns, [], [{"verifier": ["chat"]}]),
    Trial("give a list of channels", turns, [{"prover": "chat"}], [{"prover": ["chat"]}]),
    Trial(
        "name agents of agent_names and channels of viewers",
        turns,
        [{"prover": ["talk"]}],
        [{"prover": ["chat"]}],
    ),
    Trial(
        "which it does not see; add it to viewers",
        lambda seen: turn_table("mine", [{"prover": ["notes"]}], AGENTS, {"notes": seen}, 1),
        ("verifier",),
        ("verifier", "prover"),
    ),
    Trial(
        "give each a channel of its own",
        turns,
        [{"prover": ["chat"], "verifier": ["chat"]}],
        [{"prover": ["chat"], "verifier": ["notes"]}],
    ),
    *(
        Trial(
            "a nested dictionary is neither true nor false",
            method,
            "bool",
            Read(rf"use .*?({name})\("),
        )
        for name in ("is_empty", "len", "all", "any")
    ),
    Trial("is no key; give a string or a tuple of strings", a_tree().get, 0, "a"),
    Trial("is no key; give a string or a tuple of strings", a_tree().get, 0, ("n", "b")),
    Trial(
        "is a nested dictionary; name an array in it",
        lambda key: a_tree().set_(key, np.ones((2, 3))),
        "n",
        ("n", "b"),
    ),
    Trial(", but the value has", put, "set_", Read(r"; use (\w+)$")),
    Trial("has no entries; give a mapping", a_tree().update, [1], {"a": np.ones((2, 3))}),
    *(
        Trial("cannot be held (", lambda value: a_tree().set("c", value), [b"x", b"y"], right)
        for right in ([1, 2.5], [True, False], ["x", None])
    ),
    Trial(
        "strings and numbers do not mix; convert one of them with astype",
        lambda values: a_tree().set_(("n", "b"), values),
        np.array([["1"] * 3] * 2, np.dtypes.StringDType()),
        np.array([["1"] * 3] * 2, np.dtypes.StringDType()).astype(float),
    ),
    *(
        Trial(
            "give integers, slices, masks, arrays of integers",
            lambda key: a_tree()[key],
            0.5,
            right,
        )
        for right in (0, slice(0, 1), [True, False], np.array([1, 0]), ..., None)
    ),
    *(
        Trial("no decision of the verifier could count", deciding, {"min_message_rounds": 3}, right)
        for right in (
            {"min_message_rounds": 2},
            {"min_message_rounds": 3, "max_message_rounds": 4},
            {"min_message_rounds": 3, "verifier_first": True},
        )
    ),
    Trial(
        "such as of expand; use clone() first",
        written,
        lambda tree: tree,
        Read(r"use (\w+)\(\) first", lambda name: lambda tree: getattr(tree, name)()),
    ),
    Trial(
        "give NestedArrayDicts alone", lambda items: np.stack(items), [a_tree(), {}], [a_tree()] * 2
    ),
    Trial("choose another separator or rename one", flat, ".", "/"),
    Trial(
        "choose another separator or rename one",
        lambda key: NestedArrayDict(
            {"n": {"b": np.zeros(2)}, key: np.zeros(2)}, (2,)
        ).flatten_keys(),
        "n.b",
        "other",
    ),
]


#: Texts that name no key, value or command.
REASONS = {}


@pytest.mark.parametrize("trial", tiered_trials(TRIALS))
def test_a_remedy_helps(trial):
    trial.run()


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("core/protocol", {each.says for each in TRIALS}, REASONS) == []
