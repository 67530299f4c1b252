"""Which hub names mean: plugrl's own, or the one that ``PLUGRL_HUB`` names."""

import pytest

import plugrl
from plugrl.core.hub.hub import DEFAULT_HUB, find_hub
from plugrl.core.plugins.registry import default_registry


class Drive(plugrl.Hub):
    """Keeps nothing."""


for _name in Drive.__abstractmethods__:
    setattr(Drive, _name, lambda self, *words, **options: None)
Drive.__abstractmethods__ = frozenset()


@pytest.fixture
def drive():
    """A hub of this process, by name."""
    held = default_registry().snapshot()
    plugrl.register_hub("drive")(Drive)
    yield "drive"
    default_registry().restore(held)


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_it_is_the_default(monkeypatch, value):
    monkeypatch.delenv("PLUGRL_HUB", raising=False)
    if value is not None:
        monkeypatch.setenv("PLUGRL_HUB", value)
    assert type(find_hub()) is default_registry().get("hub", DEFAULT_HUB)


def test_the_variable_names_another_one(monkeypatch, drive):
    monkeypatch.setenv("PLUGRL_HUB", drive)
    assert type(find_hub()) is Drive


def test_a_name_that_nobody_has_is_refused_with_the_variable(monkeypatch, drive):
    monkeypatch.setenv("PLUGRL_HUB", "drve")
    with pytest.raises(plugrl.ConfigError, match=r"^PLUGRL_HUB: unknown hub 'drve'; .*drive"):
        find_hub()
