"""The types that hooks receive, as protocols: what is promised of runs and configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from plugrl.core.plugins.packages.installed import EntryPoint, PluginSelection


@runtime_checkable
class Registrar(Protocol):
    """A registry, as a plugin uses it."""

    def register(self, kind: str, name: str, obj: Any, *, replace: bool = False) -> Any:
        """Register ``obj`` as ``type: name`` of ``kind``."""


class HookRegistry(Registrar, Protocol):
    """A registry as the loading of hook plugins uses it."""

    #: One line for each hook plugin that could not be loaded.
    failed: list[str]

    @property
    def selection(self) -> PluginSelection:
        """Which installed plugins may be used."""

    @property
    def entry_points(self) -> Sequence[EntryPoint]:
        """The installed entry points."""

    def credit_to(self, entry: EntryPoint, *, hook: bool = False) -> AbstractContextManager[None]:
        """Credit what is registered inside the block to the distribution of ``entry``."""

    def snapshot(self) -> Any:
        """The registrations of this process, for :meth:`restore`."""

    def restore(self, snapshot: Any) -> None:
        """Go back to the registrations of ``snapshot``."""


@runtime_checkable
class ValidatedConfig(Protocol):
    """The validated configuration; ``tree`` is all of it, defaults filled in, as plain values."""

    tree: dict[str, Any]

    @property
    def hyper_params(self) -> Mapping[str, Any]:
        """Everything that defines the experiment."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What does not change the algorithm."""

    def section(self, name: str) -> Mapping[str, Any]:
        """One section as the component that it configures sees it."""


@runtime_checkable
class Run(Protocol):
    """A run: where its files are, and how far it has come."""

    folder: Path
    id: str
    step: int
    last_metrics: Mapping[str, Any]

    @property
    def trainer(self) -> Any:
        """The trainer; None before it is bound."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write metrics besides those of the trainer."""

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a record to ``samples/<name>.jsonl``."""


@runtime_checkable
class Trajectory(Protocol):
    """One attempt as tokens, with its reward; see the class ``plugrl.Trajectory``."""

    tokens: list[int]
    loss_mask: list[int]
    logprobs: list[float] | None
    versions: list[int] | None
    reward: float
    model: str
    group_id: str
    run_id: int
    valid: bool
    finish_reason: str
    is_val: bool
    metrics: dict[str, float]
    extra_fields: dict[str, Any]
