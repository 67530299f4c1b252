"""Which sampling temperatures are possible, wherever one is written."""

from __future__ import annotations

import math

from plugrl.core.errors import ConfigError

#: The smallest besides 0. Logits divided by a much smaller one are infinite.
LEAST = 1e-4


def check_temperature(value: float) -> None:
    """Check a sampling temperature.

    Raises:
        ConfigError: it is negative, not finite, or so small that logits overflow.
    """
    if not (math.isfinite(value) and (value == 0 or value >= LEAST)):
        raise ConfigError(
            f"temperature is {value}; 0 (greedy) or more is possible, but nothing below {LEAST:g}"
        )
