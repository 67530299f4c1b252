"""What parsers have in common that look for text between two marks."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class TagsConfig:
    """Two marks, neither of which is empty."""

    opening: str = described("[", "what a call begins with")
    closing: str = described("]", "what a call ends with")

    def __post_init__(self) -> None:
        for name in ("opening", "closing"):
            if not getattr(self, name):
                raise ConfigError(f"{name} must not be empty")
