"""Entries that begin as the one named ``_default``."""

from __future__ import annotations

import pytest

from plugrl.core.config.sources.merge import inherit
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare

BEGIN = """\
trainer: vanilla_ppo
scenario: {type: gymnasium, id: CartPole-v1}
agents:
"""


def validated(tmp_path, agents, *overrides):
    file = tmp_path / "a.yaml"
    file.write_text(BEGIN + agents, encoding="utf-8")
    return prepare(str(file), overrides, preflight=False).validated


def test_entries_have_what_the_default_says_and_say_the_rest(tmp_path):
    result = validated(
        tmp_path,
        "  _default:\n"
        "    body: {type: mlp, hidden: [5]}\n"
        "    agent_lr_factor: {critic: 0.5}\n"
        "  left:\n"
        "    agent_lr_factor: {actor: 2}\n"
        "  right:\n",
    )
    agents = result.tree["agents"]
    assert agents["left"]["body"] == {"type": "mlp", "hidden": [5], "activation": "tanh"}
    assert agents["left"]["agent_lr_factor"] == {"actor": 2.0, "critic": 0.5}
    assert agents["right"] == agents["_default"]
    places = {
        ("agents", "left", "body", "hidden"): "a.yaml:5",
        ("agents", "left", "agent_lr_factor", "critic"): "a.yaml:6",
        ("agents", "left", "agent_lr_factor", "actor"): "a.yaml:8",
        ("agents", "left", "body", "activation"): "default",
    }
    found = {path: str(result.origins[path]).rpartition("/")[2] for path in places}
    assert found == places


def test_the_whole_tree_means_the_same_when_it_is_read_again(tmp_path):
    tree = validated(
        tmp_path,
        "  _default: {body: {type: mlp, hidden: [5]}, is_random: true}\n"
        "  left: {body: nature_cnn, is_random: false}\n",
    ).tree
    assert tree["agents"]["left"]["body"]["type"] == "nature_cnn"
    assert "hidden" not in tree["agents"]["left"]["body"]
    again = tmp_path / "again.yaml"
    again.write_text(dump_yaml(tree), encoding="utf-8")
    assert prepare(str(again), preflight=False).validated.tree == tree


def test_overrides_reach_both(tmp_path):
    agents = "  _default: {body: {hidden: [5]}}\n  left: {}\n  right: {body: {hidden: [7]}}\n"
    tree = validated(tmp_path, agents, "agents._default.body.hidden=[6]").tree
    hidden = {name: entry["body"]["hidden"] for name, entry in tree["agents"].items()}
    assert hidden == {"_default": [6], "left": [6], "right": [7]}
    tree = validated(tmp_path, agents, "agents.left.body.activation=relu").tree
    assert tree["agents"]["left"]["body"] == {"type": "mlp", "hidden": [5], "activation": "relu"}


@pytest.mark.parametrize(
    ("agents", "faults"),
    [
        (
            "  _default: {bdy: mlp}\n  left: {}\n  right: {}\n",
            ["agents._default.bdy (a.yaml:4): unknown key; did you mean body?"],
        ),
        (
            "  _default: {is_random: maybe}\n  left: {is_rndom: true}\n",
            [
                "agents._default.is_random (a.yaml:4): must be true or false, not 'maybe'",
                "agents.left.is_rndom (a.yaml:5): unknown key; did you mean is_random?",
            ],
        ),
        (
            "  _default: {load_parts: [body], load_from: x}\n  left:\n    load_from: null\n",
            ["agents.left.load_parts (a.yaml:4): needs load_from, the run to load from"],
        ),
        (
            "  _default: 3\n  left: {}\n",
            ["agents._default (a.yaml:4): must be a mapping, not 3"],
        ),
        ("  _default: {}\n  left: 4\n", ["agents.left (a.yaml:5): must be a mapping, not 4"]),
    ],
)
def test_a_fault_is_reported_once_where_it_was_written(tmp_path, agents, faults):
    with pytest.raises(ConfigError) as caught:
        validated(tmp_path, agents)
    said = [str(fault).replace(f"{tmp_path}/", "") for fault in caught.value.faults]
    assert said == faults


def test_a_rule_that_looks_a_wrong_value_up_says_nothing_more(tmp_path):
    # The schedule looks its type up in a table, where a value with a fault cannot be.
    with pytest.raises(ConfigError) as caught:
        validated(tmp_path, "  left: {update_schedule: {type: contant}}\n")
    (fault,) = caught.value.faults
    assert "agents.left.update_schedule.type" in str(fault)
    assert "BAD" not in str(fault)


@pytest.mark.parametrize(
    ("default", "entry", "both"),
    [
        ({"type": "a", "x": 1}, {"type": "b"}, {"type": "b"}),
        ({"type": "a", "x": 1}, "b", {"type": "b"}),
        ({"type": "a", "x": 1}, "a", {"type": "a", "x": 1}),
        ({"type": "a", "x": 1}, {"custom_module_path": "w.py"}, {"custom_module_path": "w.py"}),
        ({"y": {"z": 1, "w": 2}}, {"y": {"z": 3}}, {"y": {"z": 3, "w": 2}}),
        ({"x": 1}, {"x": 2, "new": [1]}, {"x": 2, "new": [1]}),
        ("a", {"x": 1}, {"x": 1}),
    ],
)
def test_mappings_change_key_by_key_unless_another_component_is_picked(default, entry, both):
    assert inherit({"s": default}, {"s": entry}) == {"s": both}
