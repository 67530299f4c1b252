"""The tiny configuration: what a test does to its own reaches no other one."""

import copy
from types import MappingProxyType

from plugrl.testing import tiny
from plugrl.trainers.sequence import SequenceTrainer


def test_a_changed_configuration_leaves_that_of_the_next_test(tmp_path):
    before = copy.deepcopy(SequenceTrainer.conformance)
    tree = tiny.config("sequence", tmp_path, SequenceTrainer.conformance)
    tree["trainer"]["phases"][0]["trainer"]["total_train_steps"] = 40
    tree["trainer"]["phases"].pop()
    assert before == SequenceTrainer.conformance
    assert len(tiny.config("sequence", tmp_path, before)["trainer"]["phases"]) == 2


def test_merged_shares_nothing_with_what_it_was_made_of():
    base = {"a": {"x": [1]}, "b": {"y": [2]}, "c": 3, "d": {"z": 4}}
    over = MappingProxyType({"a": {"w": [5]}, "c": None, "e": {"v": [6]}, "d": [7], "f": None})
    made = tiny.merged(base, over)
    assert made == {"a": {"x": [1], "w": [5]}, "b": {"y": [2]}, "e": {"v": [6]}, "d": [7]}
    for changed in (made["a"]["x"], made["a"]["w"], made["b"]["y"], made["e"]["v"], made["d"]):
        changed.append(0)
    assert base == {"a": {"x": [1]}, "b": {"y": [2]}, "c": 3, "d": {"z": 4}}
    assert over == {"a": {"w": [5]}, "c": None, "e": {"v": [6]}, "d": [7], "f": None}
