"""A configuration that was checked: its values, its components and what nobody checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugrl.core.config.sources.origins import Origins
from plugrl.core.config.view import ConfigView, ExperimentSettings, HyperParameters

if TYPE_CHECKING:
    from plugrl.core.plugins.kinds import Record


@dataclass(frozen=True)
class ValidatedConfig:
    """A configuration without faults.

    Attributes:
        tree: all values with the defaults filled in, plain; written to a file, it validates again
            to an equal tree.
        origins: where each value was written, or ``default``.
        unchecked: keys that no schema describes.
        meant: for some of them, the known key that they resemble.
        records: the component that was picked at each path, such as ``models.policy.train``.
        trainer: the trainer class.
        phases: name and configuration of each phase, for a trainer that runs phases.
    """

    tree: dict[str, Any]
    origins: Origins
    unchecked: list[str]
    records: dict[str, Record]
    trainer: Any = None
    phases: list[tuple[str, ValidatedConfig]] = field(default_factory=list)
    meant: dict[str, str] = field(default_factory=dict)

    @property
    def last_phase(self) -> ValidatedConfig:
        """The configuration that is trained last; the whole one where there are no phases."""
        return self.phases[-1][1].last_phase if self.phases else self

    @property
    def unchecked_lines(self) -> list[str]:
        """One line for people about each unchecked key."""
        return [
            f"unchecked: {key} (no schema describes it)"
            + (f"; did you mean {self.meant[key]}?" if key in self.meant else "")
            for key in self.unchecked
        ]

    @property
    def hyper_params(self) -> HyperParameters:
        """Everything that defines the experiment."""
        values = {name: value for name, value in self.tree.items() if name != "settings"}
        values["trainer"] = self._trainer_section()
        return HyperParameters(values, checked=True)

    @property
    def settings(self) -> ExperimentSettings:
        """What does not change the algorithm."""
        return ExperimentSettings(self.tree["settings"], "settings", checked=True)

    def section(self, name: str) -> ConfigView:
        """Give one section as the component that it configures sees it.

        Raises:
            KeyError: the configuration has no such section, or it holds no mapping.
        """
        values = self._trainer_section() if name == "trainer" else self.tree[name]
        if not isinstance(values, Mapping):
            raise KeyError(name)
        return ConfigView(values, name, checked=True)

    def _trainer_section(self) -> dict[str, Any]:
        """Mount the train service of the one trained model in the trainer's section."""
        section = dict(self.tree["trainer"])
        models = self.tree.get("models")
        if "train_service" not in section and isinstance(models, dict):
            trained = [
                m["train"] for m in models.values() if isinstance(m, dict) and m.get("train")
            ]
            if len(trained) == 1:
                section["train_service"] = trained[0]
        return section
