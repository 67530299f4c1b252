"""Whatever a configuration holds, the answer is a report and never another exception."""

from __future__ import annotations

import copy

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from plugrl.core.config.sources.compose import compose
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.config.validation import validate
from plugrl.core.errors import PlugrlError

FIXTURES = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
PATHS = [
    ("seed",), ("plugins",), ("plugins", "disable"), ("plugins", "require"), ("environment",),
    ("settings",), ("settings", "torch_threads"), ("trackers",), ("logger",), ("trainer",),
    ("trainer", "type"), ("trainer", "phases"), ("trainer", "algorithm"), ("algorithm",),
    ("trainer", "algorithm", "loss"), ("trainer", "losses"), ("trainer", "train_service"),
    ("trainer", "custom_trainer_module_path"), ("train_service",), ("service",), ("data",),
    ("data", "data_files"), ("data", "max_prompt_length"), ("rollout_worker",), ("models",),
    ("rollout_worker", "evaluator_module_path"), ("validate",), ("validate", "eval"), ("notes",),
    ("defaults",), ("hydra",), ("hydra", "searchpath"), ("rl",), ("zzz",),
]  # fmt: skip
TRAINERS = [
    {"type": "toy"},
    {"type": "heir"},
    {
        "type": "phases",
        "phases": [{"name": "a", "trainer": "toy"}, {"name": "b", "trainer": "other"}],
    },
]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["toy", "phases", "???", "${seed}", "${a.b}", "${", "${trainer}", "${env.X_}", "/"]
    ),
)
KEYS = st.one_of(
    st.sampled_from(["type", "name", "backend", "trainer", "phases", "algorithm", "source", "x"]),
    st.text(max_size=4),
    st.integers(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def outcome(registry, source, overrides=()):
    """The validated configuration, or ``None`` when the answer is a report."""
    kept = registry.snapshot()
    try:
        return validate(compose(source, overrides), registry)
    except PlugrlError as error:
        for line in getattr(error, "faults", (str(error),)):
            if not line or "\n" in line:
                raise AssertionError(f"not one line: {line}") from error
        return None
    finally:
        registry.restore(kept)


CHANGED = given(
    trainer=st.sampled_from(TRAINERS),
    changes=st.lists(st.tuples(st.sampled_from(PATHS), VALUES), max_size=3),
)


@settings(FIXTURES, max_examples=20)
@CHANGED
@example(trainer=TRAINERS[0], changes=[(("defaults",), "0\n")])
@example(trainer=TRAINERS[0], changes=[(("seed",), {"\n": "${"})])
def test_mappings_of_any_shape(files, registry, trainer, changes):
    files()
    check_a_mapping(registry, trainer, changes)


@pytest.mark.integration
@settings(FIXTURES, max_examples=400)
@CHANGED
def test_many_mappings_of_any_shape(files, registry, trainer, changes):
    files()
    check_a_mapping(registry, trainer, changes)


def check_a_mapping(registry, trainer, changes):
    tree = {"trainer": copy.deepcopy(trainer)}
    for path, value in changes:
        node = tree
        for part in path[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[path[-1]] = copy.deepcopy(value)
    validated = outcome(registry, tree)
    if validated is None:
        return
    assert validate(compose(validated.tree), registry).tree == validated.tree
    again = yaml.safe_load(dump_yaml(validated.tree))
    assert validate(compose(again), registry).tree == validated.tree


@FIXTURES
@given(text=st.text(alphabet="ab:-[]{}&*<>!|'\"#\n ,?%@`~\t01.$\\", max_size=40))
def test_files_of_any_text(files, registry, text):
    files(a=text)
    outcome(registry, "a.yaml")


@FIXTURES
@given(overrides=st.lists(st.text(alphabet="ab.=[]{}0+~:\"' $", max_size=12), max_size=3))
def test_overrides_of_any_text(files, registry, overrides):
    files(a="trainer: toy\na: {b: [1, {a: 0}]}\n")
    outcome(registry, "a.yaml", overrides)
