"""How long tests wait for what must come: conditions with a deadline that a busy machine meets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Seconds. Long, since it only ends tests that would wait for ever, and below pytest's own limit,
#: so that the failure names what did not come.
DEADLINE = 240.0
#: Seconds for learning curves, which take minutes of processor time each and run beside others.
CURVES = 7200.0


def wait_until(
    condition: Callable[[], Any], process: Any = None, *, seconds: float = DEADLINE
) -> Any:
    """Wait until ``condition`` gives something true, and give it.

    Args:
        condition: asked again and again.
        process: what has to run meanwhile, in the manner of ``subprocess.Popen``.
        seconds: the time it has.

    Raises:
        AssertionError: the process has ended before, or the time is over.
    """
    end = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended before: {process.communicate()}")
        assert time.monotonic() < end, f"{condition} is not true after {seconds:.0f} s"
        time.sleep(0.005)
    return found
