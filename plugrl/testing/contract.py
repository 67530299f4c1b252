"""What the contracts of all kinds share: the component by its name, and what every one promises."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from plugrl.core.component import build
from plugrl.core.config.check import configure
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.kinds import KINDS, Record
from plugrl.core.plugins.registry import default_registry
from plugrl.testing.processes import NewProcess, defining_name


class ComponentContract:
    """The tests of a component of any kind.

    A subclass for a component has an attribute ``plugrl_KIND``, its name. A component says what it
    needs in an attribute ``conformance``, a mapping whose ``config`` is its section; each kind has
    further keys. The subclass may say it in place of the component.

    Attributes:
        kind: a key of :data:`plugrl.core.plugins.kinds.KINDS`.
        defaults: what ``conformance`` holds unless the component says otherwise.
        conformance: what a subclass says in place of its component.
    """

    __test__ = False
    kind: ClassVar[str]
    defaults: ClassVar[Mapping[str, Any]] = {}
    conformance: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def record(self, plugrl_component: str) -> Record:
        return default_registry().resolve(self.kind, plugrl_component)

    @pytest.fixture
    def cls(self, record: Record) -> Any:
        return default_registry().load(record)

    @pytest.fixture
    def example(self, cls: Any) -> dict[str, Any]:
        own = getattr(cls, "conformance", None) or {}
        return copy.deepcopy({"config": {}, **self.defaults, **own, **self.conformance})

    @pytest.fixture
    def make(self, cls: Any, record: Record, example: Mapping[str, Any]) -> Callable[[], Any]:
        """Makes one more component with the section of the example."""
        return lambda: build(cls, configure(cls, {"type": record.reference, **example["config"]}))

    @pytest.fixture
    def section(self, cls: Any, record: Record, example: Mapping[str, Any]) -> Any:
        return configure(cls, {"type": record.reference, **example["config"]})

    def test_metadata_names_it(self, record: Record) -> None:
        assert record.distribution, f"{record.name} comes from no installed package"
        assert record.version
        assert record.name == record.name.strip().lower()

    def test_a_new_process_finds_the_same(
        self, record: Record, cls: Any, plugrl_new_process: NewProcess
    ) -> None:
        assert plugrl_new_process.location(record) == defining_name(cls)

    def test_it_is_a_documented_component(self, cls: Any) -> None:
        base = KINDS[self.kind].base
        if base is not None:
            module, _, name = base.partition(":")
            assert isinstance(cls, type)
            assert issubclass(cls, getattr(importlib.import_module(module), name))
        else:
            assert callable(cls)
        assert (cls.__doc__ or "").strip(), f"{cls.__name__} has no docstring"

    def test_an_unknown_key_is_refused(self, cls: Any, example: Mapping[str, Any]) -> None:
        with pytest.raises(ConfigError, match="no_such_key_anywhere"):
            configure(cls, {**example["config"], "no_such_key_anywhere": 1})


def needed(example: Mapping[str, Any], *keys: str) -> None:
    """Skip a test for which the component's ``conformance`` has to say something."""
    missing = [key for key in keys if example.get(key) is None]
    if missing:
        pytest.skip(f"conformance has no {' and no '.join(missing)}")
