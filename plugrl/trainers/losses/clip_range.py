"""Where policy losses clip their ratios."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError


@dataclass
class ClipRange:
    """Where a ratio is clipped."""

    clip_ratio_low: float = described(0.2, "the ratio is clipped below at 1 - this")
    clip_ratio_high: float = described(0.2, "the ratio is clipped above at 1 + this")

    def __post_init__(self) -> None:
        if not 0 <= self.clip_ratio_low <= 1:
            raise ConfigError("clip_ratio_low must be between 0 and 1")
        if self.clip_ratio_high < 0:
            raise ConfigError("clip_ratio_high must not be negative")
