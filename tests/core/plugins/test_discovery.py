"""Loading hook plugins in this process: what one registers before it fails is taken back."""

import sys

import pytest

from plugrl.core.errors import PluginError, UnknownComponentError
from plugrl.core.plugins import loading
from plugrl.core.plugins.discovery import load_hook_plugins
from plugrl.core.plugins.packages.installed import HOOK_GROUP, EntryPoint, PluginSelection
from plugrl.core.plugins.registry import Registry

REGISTERS = """
import plugrl

def {name}(logp, batch, config):
    return logp, {{}}

@plugrl.hookimpl
def plugrl_register_components(registry):
    registry.register("loss", "{name}", {name})
    registry.register("loss", "{name}_too", {name})
    {after}

@plugrl.hookimpl
def plugrl_step_end(step):
    pass
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Writes a hook plugin and gives its entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name, after="pass"):
        (tmp_path / f"hooks_{name}.py").write_text(REGISTERS.format(name=name, after=after))
        return EntryPoint(
            distribution=f"rl-{name}",
            group=HOOK_GROUP,
            name=name,
            target=f"hooks_{name}",
            version="1.0",
            location=str(tmp_path),
        )

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("hooks_"):
            del sys.modules[name]


def test_what_a_failing_plugin_has_registered_is_taken_back(plugin, caplog):
    entries = [plugin("a"), plugin("half", "raise ValueError('no more')"), plugin("z")]
    registry = Registry(entries, PluginSelection())
    result = load_hook_plugins(registry)
    assert [entry.name for entry in result.loaded] == ["a", "z"]
    assert [record.name for record in registry.records("loss")] == ["a", "a_too", "z", "z_too"]
    with pytest.raises(UnknownComponentError, match="half"):
        registry.resolve("loss", "half")
    names = [name for name, found in result.manager.list_name_plugin() if found is not None]
    assert sorted(names) == ["rl-a/a", "rl-z/z"]
    (failure,) = result.failures
    assert (failure.name, failure.phase) == ("half", "components")
    assert failure.seconds >= 0
    assert registry.failed == [failure.message]
    # To load once more tells it no second time.
    load_hook_plugins(registry)
    assert len(caplog.records) == 1


def test_a_failure_is_raised_where_that_is_asked_for(plugin):
    registry = Registry([plugin("half", "raise ValueError('no more')")], PluginSelection())
    with pytest.raises(PluginError, match=r"rl-half 1.0 was not loaded \(components\)") as caught:
        load_hook_plugins(registry, strict=True)
    assert isinstance(caught.value.__cause__, ValueError)
    assert registry.records("loss") == []


def test_ctrl_c_is_no_failure_of_a_plugin(plugin):
    registry = Registry([plugin("half", "raise KeyboardInterrupt")], PluginSelection())
    with pytest.raises(KeyboardInterrupt):
        load_hook_plugins(registry)


def test_a_plugin_that_is_not_selected_is_not_imported(plugin):
    entries = [plugin("a"), plugin("b")]
    registry = Registry(entries, PluginSelection(blocked=frozenset({"rl-b"})))
    assert [entry.name for entry in load_hook_plugins(registry).loaded] == ["a"]
    assert "hooks_b" not in sys.modules


@pytest.fixture
def named(tmp_path):
    """Write a file for ``-p`` and give its path."""

    def write(text):
        (tmp_path / "steps.py").write_text(f"import plugrl\nSEEN = []\n{text}")
        return tmp_path / "steps.py"

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@plugrl.hookimpl\ndef plugrl_step_ended(): pass", "unknown hook plugrl_step_ended; did"),
        ("def plugrl_step_end(): pass", "plugrl_step_end is not marked with @plugrl.hookimpl"),
        (
            "@plugrl.hookimpl\ndef plugrl_step_end(stp): pass",
            "no argument 'stp'; did you",
        ),
        ("PLUGRL_HOOK_API = 99", "hook API 99"),
        (
            "@plugrl.hookimpl\ndef plugrl_register_components(registry): raise SystemExit(3)",
            "SystemExit: 3 at .*steps.py",
        ),
    ],
)
def test_wrong_hooks_of_such_a_file_are_refused_in_one_line(named, text, said):
    loading.import_user_module(str(named(text)))
    with pytest.raises(PluginError, match=rf"^-p .*steps.py: .*{said}") as failure:
        load_hook_plugins(Registry([], PluginSelection()))
    assert "\n" not in str(failure.value)


def test_a_file_without_hooks_is_no_plugin(named):
    loading.import_user_module(str(named("")))
    loaded = load_hook_plugins(Registry([], PluginSelection()), strict=True)
    assert loaded.manager.get_plugins() == set()
