"""Registering and resolving, without any installed package."""

from __future__ import annotations

import pytest

from plugrl.core.errors import (
    AmbiguousComponentError,
    PluginError,
    UnknownComponentError,
    UsageError,
)
from plugrl.core.plugins import registry as registry_module
from plugrl.core.plugins.kinds import KINDS, Record
from plugrl.core.plugins.loading import import_target
from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection
from plugrl.core.plugins.registry import Registry, default_registry, register_loss


def entry(distribution, name, target, version="1.0", group="plugrl.losses"):
    return EntryPoint(
        distribution=distribution,
        group=group,
        name=name,
        target=target,
        version=version,
        location="nowhere",
    )


def module_loss(logp, batch, config):
    return logp, {}


def other_loss(logp, batch, config):
    return -logp, {}


HERE = module_loss.__module__
OWN = entry("plugrl", "mean", "math:fsum")
A = entry("rl-a", "mean", "math:floor")
B = entry("rl-b", "sum", "math:ceil")
C = entry("rl-c", "sum", "math:trunc")


def test_order_of_resolution():
    registry = Registry([OWN, A, B], PluginSelection())
    assert registry.resolve("loss", "mean").target == "math:fsum"
    assert registry.resolve("loss", "RL.A/mean").target == "math:floor"
    assert registry.resolve("loss", "sum").target == "math:ceil"
    registry.register("loss", "mean", module_loss)
    registry.register("loss", "sum", module_loss)
    assert registry.resolve("loss", "mean").target == f"{HERE}:module_loss"
    assert registry.resolve("loss", "sum").distribution is None
    assert registry.resolve("loss", "plugrl/mean").target == "math:fsum"


def test_two_installed_packages_with_one_name():
    registry = Registry([B, C], PluginSelection())
    with pytest.raises(AmbiguousComponentError, match=r"write rl-b/sum or rl-c/sum") as caught:
        registry.resolve("loss", "sum")
    assert caught.value.exit_code == 2
    assert registry.get("loss", "rl-c/sum")(2.5) == 2
    blocked = Registry([B, C], PluginSelection().without(["RL_B"]))
    assert blocked.resolve("loss", "sum").distribution == "rl-c"


def test_unknown_names():
    registry = Registry([OWN, A, B], PluginSelection(enabled=False))
    with pytest.raises(UnknownComponentError) as caught:
        registry.resolve("loss", "maen")
    assert str(caught.value) == "unknown loss 'maen'; did you mean mean? installed: mean"
    with pytest.raises(UnknownComponentError, match=r"by rl-b 1.0, which is disabled by --no"):
        registry.resolve("loss", "sum")
    with pytest.raises(UnknownComponentError, match=r"by rl-a 1.0, which is disabled by --no"):
        registry.resolve("loss", "rl_a/mean")
    with pytest.raises(UsageError, match="no kind 'los'; did you mean loss"):
        registry.resolve("los", "mean")


def test_registering_one_name_twice():
    registry = Registry([], PluginSelection())
    first = registry.register("loss", "mine", module_loss)
    assert registry.register("loss", "mine", module_loss) == first
    with pytest.raises(PluginError, match=r"already registered by .*:module_loss"):
        registry.register("loss", "mine", other_loss)
    registry.register("loss", "mine", other_loss, replace=True)
    assert registry.get("loss", "mine") is other_loss


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a"])
def test_names_that_cannot_be_written_are_refused(name):
    with pytest.raises(UsageError, match="cannot name a loss"):
        Registry([], PluginSelection()).register("loss", name, module_loss)


def test_a_decorator_of_an_installed_package_belongs_to_it():
    # The entry point's target says that this module is part of rl-here.
    registry = Registry([entry("rl-here", "declared", f"{HERE}:other_loss")], PluginSelection())
    record = registry.register("loss", "decorated", module_loss)
    assert (record.distribution, record.version) == ("rl-here", "1.0")
    registry.register("loss", "declared", other_loss)
    assert [(r.name, r.source) for r in registry.records("loss")] == [
        ("declared", "entry point"),
        ("decorated", "decorator"),
    ]
    assert registry.get("loss", "declared") is other_loss


def test_what_a_hook_registers_belongs_to_the_hook():
    registry = Registry([A], PluginSelection())
    with registry.credit_to(A, hook=True):
        record = registry.register("loss", "found", module_loss)
    assert (record.distribution, record.source) == ("rl-a", "hook")
    assert registry.get("loss", "rl-a/found") is module_loss


def test_load_checks_the_kind():
    registry = Registry([entry("rl-a", "pi", "math:pi")], PluginSelection())
    with pytest.raises(PluginError, match=r"loss 'pi' of rl-a 1.0 \(math:pi\) is a float, not"):
        registry.get("loss", "pi")
    assert registry.used == frozenset()


def test_abstract_classes_are_refused():
    from plugrl.core.trainer import Trainer

    class Unfinished(Trainer):
        pass

    registry = Registry([], PluginSelection())
    registry.register("trainer", "unfinished", Unfinished)
    with pytest.raises(PluginError, match="does not implement train"):
        registry.get("trainer", "unfinished")


def test_used_and_snapshot():
    registry = Registry([OWN], PluginSelection())
    before = registry.snapshot()
    registry.register("loss", "mine", module_loss)
    registry.get("loss", "mine")
    registry.get("loss", "mean")
    assert sorted(record.name for record in registry.used) == ["mean", "mine"]
    registry.restore(before)
    assert registry.used == frozenset()
    assert [record.name for record in registry.records("loss")] == ["mean"]


def test_record_of_another_process():
    record = Record(kind="loss", name="sum", target="math:ceil", distribution="rl-b", version="1.0")
    assert Record.from_json({**record.to_json(), "a_later_field": 1}) == record
    assert Registry([B], PluginSelection()).load(record)(1.5) == 2
    with pytest.raises(PluginError, match="not installed in this process; install rl-b==1.0"):
        Registry([A], PluginSelection()).load(record)
    newer = entry("rl-b", "sum", "math:ceil", version="1.1")
    with pytest.raises(PluginError, match=r"has version 1\.1 in this process"):
        Registry([newer], PluginSelection()).load(record)
    moved = entry("rl-b", "sum", "math:floor")
    with pytest.raises(PluginError, match="is math:floor in this process"):
        Registry([moved], PluginSelection()).load(record)


def test_a_function_inside_a_function_cannot_be_sent_to_a_worker():
    def inner(logp, batch, config):
        return logp, {}

    record = Registry([], PluginSelection()).register("loss", "inner", inner)
    with pytest.raises(PluginError, match="not at the top level of a module"):
        Registry([], PluginSelection()).load(record)


def test_disable_reaches_child_processes(monkeypatch):
    monkeypatch.setenv("PLUGRL_PLUGINS_BLOCKED", "rl-x")
    registry = Registry([A, B])
    registry.disable(["RL_B"])
    assert PluginSelection.from_environment().blocked == {"rl-x", "rl-b"}
    assert [record.name for record in registry.records()] == ["mean"]


def test_decorators_use_the_registry_of_the_process():
    registry = default_registry()
    before = registry.snapshot()

    class Options:
        pass

    try:
        decorated = register_loss("decorated_in_a_test", config=Options)(module_loss)
        assert decorated is module_loss
        assert module_loss.Config is Options
        assert registry.get("loss", "decorated_in_a_test") is module_loss
    finally:
        registry.restore(before)
        del module_loss.Config


def test_every_kind_has_a_decorator_and_a_group():
    for name, kind in KINDS.items():
        assert getattr(registry_module, f"register_{name}").kind == name
        assert kind.group == f"plugrl.{kind.plural}"
    assert [name for name, kind in KINDS.items() if kind.stable] == [
        "trainer",
        "evaluator",
        "rollout_worker",
        "scenario",
    ]


@pytest.mark.parametrize("kind", [row.name for row in KINDS.values() if row.base is not None])
def test_the_base_that_a_class_lacks_is_named_as_users_import_it(kind):
    import plugrl

    with pytest.raises(PluginError, match=r"; derive it from plugrl\.\w+$") as caught:
        Registry([]).load(Record(kind=kind, name="x", target="collections:OrderedDict"))
    name = str(caught.value).rpartition(".")[2]
    assert name in plugrl.__all__
    assert getattr(plugrl, name) is import_target(KINDS[kind].base)


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("rl-a", None),
        ("RL_A", None),
        ("mean", None),
        ("rl_aa", "rl-a"),
        ("maen", "mean"),
        # Another machine may have it, and a configuration may be for both.
        ("something-else", None),
    ],
)
def test_a_misspelt_plugin_to_disable_is_known_by_its_close_name(name, close):
    assert Registry([entry("plugrl", "fsum", "math:fsum"), A, B]).close_plugin(name) == close
