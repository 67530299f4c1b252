"""What ``settings.cluster`` says, for the components of this process that join a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugrl.core.config.schemas.sections import ClusterConfig

_settings = ClusterConfig()


def configure(section: Mapping[str, Any]) -> None:
    """Keep ``settings.cluster`` of the run that this process begins."""
    global _settings
    _settings = ClusterConfig(**section)


def settings() -> ClusterConfig:
    """The settings of the present run; the defaults before the first."""
    return _settings
