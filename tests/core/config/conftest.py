"""A registry with small real components, and files to compose from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from plugrl.core.config.schemas.schema import component, described, phases
from plugrl.core.config.schemas.sections import DataConfig
from plugrl.core.config.sources.compose import compose
from plugrl.core.config.validation import validate
from plugrl.core.errors import ConfigError
from plugrl.core.plugins.registry import Registry
from plugrl.core.trainer import Trainer


@dataclass
class ClippedConfig:
    low: float = described(0.2, "lower clip")
    high: float = described(0.2, "upper clip")

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError("low must not be above high")


@dataclass
class AlgorithmConfig:
    loss: Any = component("loss", "clipped", help="loss")
    epochs: int = described(1, "passes")


@dataclass
class ToyConfig:
    RENAMED: ClassVar[dict[str, str]] = {"learning_rate": "lr"}

    lr: float = described(0.5, "learning rate")
    steps: int = described(10, "steps")
    mode: Literal["fast", "slow"] = described("fast", "mode")
    threads: int | str = described("auto", "threads")
    limit: int | None = described(None, "limit")
    folder: Path = described(Path("here"), "a folder")
    names: list[str] = described([], "names")
    weights: dict[str, float] = described({}, "weights")
    share: float = described(0.5, "share", above=0, at_most=1)
    counts: list[int] = described([1], "counts", at_least=1)
    rates: dict[str, float] = described({}, "rates", at_least=0, below=1)
    flag: bool = described(False, "flag")
    title: str = described("t", "title")
    algorithm: AlgorithmConfig = described(AlgorithmConfig, "algorithm")
    losses: Any = component("loss", many=True)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError("steps must not be negative")
        if self.limit is not None and self.limit > self.steps:
            raise ValueError("limit and steps disagree")


class ToyTrainer(Trainer):
    Config = ToyConfig
    sections = {"data": DataConfig, "notes": None}

    def train(self) -> None:
        return None


class HeirTrainer(ToyTrainer):
    """Has no Config of its own."""


class BareTrainer(Trainer):
    """No Config at all, and no sections."""

    def train(self) -> None:
        return None


class CheckedTrainer(ToyTrainer):
    @classmethod
    def check_config(cls, config: Any) -> Any:
        if config.data.batch_size > config.trainer.steps:
            yield "data.batch_size", "is more than trainer.steps"


@dataclass
class OtherConfig:
    depth: int = described(1, "depth")


class OtherTrainer(Trainer):
    Config = OtherConfig
    sections = {"rl": None}

    def train(self) -> None:
        return None


@dataclass
class PhaseConfig:
    name: str
    repeat: int = 1


@dataclass
class PhasesConfig:
    phases: list[PhaseConfig] = phases("one after the other")


class PhasesTrainer(Trainer):
    Config = PhasesConfig

    def train(self) -> None:
        return None


def clipped(logp: Any, batch: Any, config: Any) -> Any:
    return logp, {}


clipped.Config = ClippedConfig  # type: ignore[attr-defined]


def plain_loss(logp: Any, batch: Any, config: Any) -> Any:
    return logp, {}


@pytest.fixture
def registry(monkeypatch) -> Registry:
    monkeypatch.setenv("PLUGRL_PLUGINS_BLOCKED", "")
    registry = Registry(entry_points=())
    for name, cls in {
        "toy": ToyTrainer,
        "heir": HeirTrainer,
        "bare": BareTrainer,
        "checked": CheckedTrainer,
        "other": OtherTrainer,
        "phases": PhasesTrainer,
    }.items():
        registry.register("trainer", name, cls)
    registry.register("loss", "clipped", clipped)
    registry.register("loss", "plain", plain_loss)
    return registry


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write files into an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(**texts: str) -> Path:
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture
def check(registry):
    """Compose and validate."""

    def run(source, *overrides, **kwargs):
        return validate(compose(source, overrides, **kwargs), registry)

    return run


@pytest.fixture
def faults(check):
    """The report of a wrong configuration, line by line."""

    def run(source, *overrides, **kwargs) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            check(source, *overrides, **kwargs)
        return list(caught.value.faults)

    return run
