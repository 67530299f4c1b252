"""Protocols by which hooks know runs, configurations and trajectories hold for their classes."""

from __future__ import annotations

import inspect
import typing
from types import SimpleNamespace

import pytest

from plugrl.core.config.validated import ValidatedConfig
from plugrl.core.plugins import hook_types
from plugrl.core.plugins.registry import Registry
from plugrl.core.run.run import Run
from plugrl.core.text.trajectory import Trajectory

CLASSES = {
    hook_types.Registrar: Registry,
    hook_types.HookRegistry: Registry,
    hook_types.ValidatedConfig: ValidatedConfig,
    hook_types.Run: Run,
    hook_types.Trajectory: Trajectory,
}


def members(protocol):
    """Names of what a protocol promises, those of its bases too."""
    own = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = {n for base in own for n in (*vars(base), *vars(base).get("__annotations__", {}))}
    return {name for name in names if not name.startswith("_")}


def methods(protocol):
    functions = ((name, getattr(protocol, name, None)) for name in sorted(members(protocol)))
    return [(name, function) for name, function in functions if inspect.isfunction(function)]


def promised(protocol):
    """The types of a protocol's attributes by name."""
    return typing.get_type_hints(protocol)


def test_every_protocol_has_its_class_here():
    found = [v for v in vars(hook_types).values() if getattr(v, "_is_protocol", False)]
    assert {one for one in found if one is not typing.Protocol} == CLASSES.keys()


@pytest.mark.parametrize(
    ("protocol", "name", "function"),
    [(protocol, *method) for protocol in CLASSES for method in methods(protocol)],
)
def test_a_method_takes_what_its_protocol_says(protocol, name, function):
    own = inspect.signature(getattr(CLASSES[protocol], name)).parameters
    for each in inspect.signature(function).parameters.values():
        assert each.name in own
        assert own[each.name].kind == each.kind
        assert own[each.name].default == each.default


def test_a_trajectory_has_fields_of_the_types_that_its_protocol_says():
    own = typing.get_type_hints(Trajectory)
    for name, expected in promised(hook_types.Trajectory).items():
        if typing.get_origin(own[name]) is typing.Literal:
            assert all(isinstance(value, expected) for value in typing.get_args(own[name]))
        else:
            assert own[name] == expected


def test_a_run_has_what_its_protocol_says(tmp_path):
    settings = {"runs_folder": str(tmp_path), "progress": "none"}
    tree = {"experiment_name": "toy", "settings": settings}
    composed = SimpleNamespace(input_text="", overrides=())
    run = Run.create(SimpleNamespace(tree=tree), composed, hooks=None)
    try:
        assert isinstance(run, hook_types.Run)
        for name, expected in promised(hook_types.Run).items():
            assert isinstance(getattr(run, name), typing.get_origin(expected) or expected)
    finally:
        run.finish("failed")


@pytest.mark.parametrize(
    ("value", "protocol"),
    [
        (Trajectory([1], [1]), hook_types.Trajectory),
        (ValidatedConfig({"settings": {}, "trainer": {}}, {}, [], {}), hook_types.ValidatedConfig),
        (Registry(()), hook_types.Registrar),
    ],
)
def test_a_value_is_what_hooks_are_promised(value, protocol):
    assert isinstance(value, protocol)


def test_a_registry_has_what_the_loading_of_plugins_uses():
    assert {n for n in members(hook_types.HookRegistry) if not hasattr(Registry(()), n)} == set()
