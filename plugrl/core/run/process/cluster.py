"""What ``settings.cluster`` says, for the components of this process that join a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from plugrl.core.config.schemas.sections import ClusterConfig

_settings = ClusterConfig()


def configure(section: Mapping[str, Any], variables: Mapping[str, str] | None = None) -> None:
    """Keep ``settings.cluster`` of the run that this process begins.

    Args:
        section: as validated.
        variables: of ``environment``, which actors get too.
    """
    global _settings
    given = ClusterConfig(**section)
    _settings = replace(given, variables={**(variables or {}), **given.variables})


def settings() -> ClusterConfig:
    """The settings of the present run; the defaults before the first."""
    return _settings
