"""Where policy losses clip their ratios."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.core.config.schemas.schema import described


@dataclass
class ClipRange:
    """Where a ratio is clipped."""

    clip_ratio_low: float = described(
        0.2, "the ratio is clipped below at 1 - this", at_least=0, at_most=1
    )
    clip_ratio_high: float = described(
        0.2, "the ratio is clipped above at 1 + this", at_least=0, at_most=1e6
    )

    def __post_init__(self) -> None:
        """Nothing is left to check; subclasses that were written for 0.1 call it."""
