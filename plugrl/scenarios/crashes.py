"""``Crashes``: copies of environments that broke, counted and bounded."""

from __future__ import annotations

import logging

from plugrl.core.errors import RunError
from plugrl.core.plugins.blame import one_line, raised_at

logger = logging.getLogger(__name__)


class Crashes:
    """How many copies of an environment broke, and how many may.

    Args:
        name: of the environment, as configured.
        allowed: ``scenario.max_restarts``.
    """

    def __init__(self, name: str, allowed: int) -> None:
        self.name = name
        self.allowed = allowed
        self.count = 0

    def add(self, doing: str, error: BaseException) -> None:
        """Count a crash.

        Raises:
            RunError: there were too many.
        """
        self.count += 1
        at = raised_at(error, {self.name.partition(":")[0].partition(".")[0]})
        what = f"{self.name} broke in {doing}: {one_line(error)}{f' at {at}' if at else ''}"
        if self.count > self.allowed:
            raise RunError(
                f"{what}; that is crash {self.count} and scenario.max_restarts is "
                f"{self.allowed}: mend the environment, or allow more"
            ) from error
        logger.warning(
            "%s; built anew (%d of %d times), and its episode counts as cut off",
            what,
            self.count,
            self.allowed,
        )
