"""Calling hooks: order, isolation, and the two exceptions that pass."""

from __future__ import annotations

import logging
import types

import pytest

from plugrl.core.errors import ConfigError, PluginError, StopRun, UsageError
from plugrl.core.plugins.callbacks import as_callbacks
from plugrl.core.plugins.discovery import check_hook_plugin, new_manager
from plugrl.core.plugins.hooks import HookCaller
from plugrl.core.plugins.hookspecs import hookimpl
from plugrl.core.plugins.packages.requirements import check_requirements


def manager(**plugins):
    result = new_manager()
    for name, function in reversed(plugins.items()):
        module = types.ModuleType(name)
        setattr(module, function.__name__, function)
        result.register(module, name)
    return result


def observer(seen, name, **options):
    @hookimpl(**options)
    def plugrl_step_end(step):
        seen.append((name, step))

    return plugrl_step_end


def failing(error):
    @hookimpl(tryfirst=True)
    def plugrl_step_end():
        raise error

    return plugrl_step_end


ARGUMENTS = {"run": None, "step": 3, "metrics": {}}


def test_order():
    seen = []
    plugins = manager(
        last=observer(seen, "last", trylast=True),
        a=observer(seen, "a"),
        b=observer(seen, "b"),
        first=observer(seen, "first", tryfirst=True),
    )
    HookCaller(plugins).call("plugrl_step_end", **ARGUMENTS)
    assert seen == [("first", 3), ("a", 3), ("b", 3), ("last", 3)]


def test_without_plugins_nothing_happens():
    caller = HookCaller()
    caller.call("plugrl_step_end", **ARGUMENTS)
    assert caller.failures == {}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0)])
def test_a_failure_is_logged_once_and_counted(error, caplog):
    seen = []
    caller = HookCaller(manager(bad=failing(error), good=observer(seen, "good")))
    with caplog.at_level(logging.WARNING, "plugrl"):
        for _ in range(3):
            caller.call("plugrl_step_end", **ARGUMENTS)
    assert seen == [("good", 3)] * 3
    assert caller.failures == {("bad", "plugrl_step_end"): 3}
    [record] = caplog.records
    assert record.getMessage().startswith("plugin bad: hook plugrl_step_end failed: ")


def test_strict_raises():
    caller = HookCaller(manager(bad=failing(ValueError("no"))), strict=True)
    with pytest.raises(PluginError, match="plugin bad: hook plugrl_step_end failed: ValueError"):
        caller.call("plugrl_step_end", **ARGUMENTS)


def test_stop_run_passes_after_the_others_were_called():
    seen = []
    caller = HookCaller(manager(stops=failing(StopRun("enough")), good=observer(seen, "good")))
    with pytest.raises(StopRun, match="enough"):
        caller.call("plugrl_step_end", **ARGUMENTS)
    assert seen == [("good", 3)]
    assert caller.failures == {}


def test_only_plugrl_configure_may_refuse():
    @hookimpl
    def plugrl_configure(config):
        raise ConfigError(f"not with {config}")

    with pytest.raises(ConfigError, match="not with this"):
        HookCaller(manager(judge=plugrl_configure)).call("plugrl_configure", config="this")
    caller = HookCaller(manager(bad=failing(ConfigError("no"))))
    caller.call("plugrl_step_end", **ARGUMENTS)
    assert caller.failures == {("bad", "plugrl_step_end"): 1}


def check(**attributes):
    module = types.ModuleType("checked")
    for name, value in attributes.items():
        setattr(module, name, value)
    check_hook_plugin(module)


def test_what_a_hook_plugin_may_be():
    check(PLUGRL_HOOK_API=1, plugrl_step_end=observer([], "x"))

    def plugrl_run_end(run):
        return None

    plugrl_run_end.__module__ = "checked"
    with pytest.raises(Exception, match="plugrl_run_end is not marked with @plugrl.hookimpl"):
        check(plugrl_run_end=plugrl_run_end)
    with pytest.raises(Exception, match="hook API 0, this plugrl has 1"):
        check(PLUGRL_HOOK_API=0)
    wrapper = hookimpl(wrapper=True)(plugrl_run_end)
    with pytest.raises(Exception, match="plugrl_run_end is a wrapper"):
        check(plugrl_run_end=wrapper)


async def awaited(run, step):
    """Runs nothing when it is called."""


def generated(run, step):
    yield


async def both(run, step):
    yield


@pytest.mark.parametrize("later", [awaited, generated, both])
def test_a_hook_that_a_call_does_not_run_is_refused(later):
    said = "plugrl_step_end is async or has a yield: .*; write a plain def"
    with pytest.raises(Exception, match=said):
        check(plugrl_step_end=hookimpl(later))
    for callback in (later, types.SimpleNamespace(plugrl_step_end=later)):
        with pytest.raises(UsageError, match=said):
            as_callbacks([callback])


def test_requirements():
    assert check_requirements(["pluggy>=1", "plugrl"]) == []
    assert check_requirements(['gone>=1; python_version < "3"']) == []
    missing, old, malformed = check_requirements(["plugrl-gone>=1", "pluggy>=99", ">=1"])
    assert missing == 'plugrl-gone>=1 is not installed; run: pip install "plugrl-gone>=1"'
    assert old.startswith("pluggy>=99 is required, but pluggy ")
    assert malformed.startswith("'>=1' is not a requirement such as 'plugrl-x>=1.2': ")
