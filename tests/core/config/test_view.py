from __future__ import annotations

import copy
import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from omegaconf import OmegaConf

from plugrl.core.component import Component
from plugrl.core.config.check import configure
from plugrl.core.config.schemas.schema import component, described
from plugrl.core.config.view import ConfigView, ExperimentSettings, HyperParameters
from plugrl.core.errors import ConfigError

VALUES = {"a": {"b": [1, {"c": 2}]}, "get": 3, "n": None}


def test_access_by_attribute_item_and_get():
    view = ConfigView(VALUES)
    assert view.a.b[1].c == view["a"]["b"][1]["c"] == 2
    assert view.get("zzz", 5) == 5
    assert view.get("n", 5) is None
    assert view["get"] == 3
    assert "a" in view
    assert "b" not in view
    assert list(view) == ["a", "get", "n"]
    assert len(view) == 3
    assert dict(**view)["get"] == 3


def test_what_is_missing_says_so():
    view = ConfigView({"rate": {"batch_size": 1}})
    with pytest.raises(AttributeError, match=r"no rate.batch_siz; did you mean batch_size\?"):
        _ = view.rate.batch_siz
    with pytest.raises(KeyError, match="no zzz"):
        view["zzz"]
    assert not hasattr(view, "zzz")
    assert getattr(view, "zzz", 4) == 4


def test_it_is_read_only():
    view = ConfigView(VALUES)
    with pytest.raises(AttributeError, match="read-only"):
        view.a = 1
    with pytest.raises(AttributeError, match="read-only"):
        del view.a
    with pytest.raises(TypeError):
        view["a"] = 1
    view.to_dict()["a"]["b"].append(3)
    assert view == VALUES


def test_it_does_not_follow_its_source():
    source = {"a": [1]}
    view = ConfigView(source)
    source["a"].append(2)
    assert view.a == (1,)


class Equal:
    def __eq__(self, other):
        return True

    __hash__ = None


def test_equality_is_by_content():
    assert ConfigView({"a": [1]}) == {"a": [1]}
    assert ConfigView({"a": [1]}) == ConfigView({"a": (1,)}, "x", checked=True)
    assert ConfigView({"a": 1}) != {"a": 2}
    assert ConfigView({}) != 5
    assert (ConfigView({}) == 5) is False
    # Another kind of thing is asked in its turn.
    assert ConfigView({}) == Equal()
    assert Equal() == ConfigView({})


@pytest.mark.parametrize("cls", [ConfigView, HyperParameters, ExperimentSettings])
@pytest.mark.parametrize(
    "twice", [lambda v: pickle.loads(pickle.dumps(v)), copy.copy, copy.deepcopy]
)
def test_copies_and_pickles(cls, twice):
    view = twice(cls(VALUES, "p", checked=True))
    assert type(view) is cls
    assert view == VALUES
    assert configure(Thing, view) is view


@dataclass
class ThingConfig:
    size: int = described(2, "size")
    loss: Any = component("loss")

    def __post_init__(self):
        if self.size < 0:
            raise ConfigError("size must not be negative")


class Thing(Component):
    Config = ThingConfig


class Heir(Thing):
    pass


@pytest.mark.parametrize(
    "config",
    [{"size": 5}, OmegaConf.create({"size": 5}), ConfigView({"size": 5}), ThingConfig(size=5)],
    ids=["mapping", "omegaconf", "view", "dataclass"],
)
def test_configure_takes_any_mapping(config):
    assert configure(Thing, config) == {"size": 5, "loss": None}


def test_configure_fills_defaults_and_is_what_a_component_sees():
    assert Thing().config.size == 2
    assert Thing(None)._config == Thing({}).config


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"siz": 1}, "siz: unknown key; did you mean size?"),
        ({"size": "x"}, "size: must be a whole number, not 'x'"),
        ({"size": -1}, "size: must not be negative"),
        ({"algorithm": {}}, "algorithm: unknown key; keys: size, loss"),
        ([1], "the configuration of Thing must be a mapping, not list"),
        (5, "the configuration of Thing must be a mapping, not int"),
    ],
)
def test_configure_refuses(config, line):
    with pytest.raises(ConfigError) as caught:
        Thing(config)
    assert caught.value.faults == (line,)


def test_configure_gives_all_faults():
    with pytest.raises(ConfigError) as caught:
        Thing({"size": "x", "zzz": 1})
    assert len(caught.value.faults) == 2


def test_free_keys_under_algorithm_for_a_class_without_its_own_config():
    view = Heir({"algorithm": {"mine": 1}, "size": 3}).config
    assert view.algorithm.mine == 1
    with pytest.raises(ConfigError, match="zzz: unknown key"):
        Heir({"zzz": 1})


def test_keys_that_are_always_allowed():
    config = {
        "type": "thing",
        "train_service": {"url": "x"},
        "custom_trainer_module_path": "a.py",
        "custom_trainer_class_name": "A",
        "evaluator_module_path": "a.py:B",
    }
    assert configure(Thing, config).train_service.url == "x"


def test_omegaconf_that_cannot_be_resolved():
    with pytest.raises(ConfigError, match="nope"):
        configure(Thing, OmegaConf.create({"size": "${nope}"}))


def test_dotted_paths_read_as_the_keys_they_name():
    view = HyperParameters({"rl": {"lr": 1e-3, "deep": {"x": 1}}, "a.b": 2, "a": {"b": 3}, "n": 4})
    assert view["rl.lr"] == view.get("rl.lr") == 1e-3
    assert view["rl.deep"]["x"] == view["rl.deep.x"] == view.rl["deep.x"] == 1
    # A key that is written with its dot is that key.
    assert view["a.b"] == 2
    assert view.a.b == 3
    assert view.get("rl.none", 5) == view.get("n.x", 5) == view.get("none.x", 5) == 5
    assert ("rl.lr" in view, "rl.none" in view, "n.x" in view) == (True, False, False)
    assert list(view) == ["rl", "a.b", "a", "n"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("rl.lrr", r"no rl\.lrr; did you mean lr\?"),
        ("rll.lr", r"no rll; did you mean rl\?"),
        ("rl.deep.y.z", r"no rl\.deep\.y"),
        ("rl.lr.x", r"no rl\.lr\.x"),
        (".", "no "),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(key, said):
    view = HyperParameters({"rl": {"lr": 1e-3, "deep": {"x": 1}}})
    with pytest.raises(KeyError, match=said):
        view[key]


def test_it_works_where_a_dictionary_does():
    given = {"rl": {"lr": 1e-3}, "seed": 3}
    view = HyperParameters(given)
    assert {**view} == dict(view) == given == view
    assert json.loads(json.dumps(view.to_dict())) == given
    assert HyperParameters(view) == HyperParameters(OmegaConf.create(given)) == given
