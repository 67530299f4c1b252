"""Captures what is logged where it arrives at the root logger, as pytest did before version 9.

It attaches its two handlers to each of the sixty loggers that torch and others keep from the root,
for each phase of each test: more than a test itself takes, of which there are thousands.
"""

from __future__ import annotations

import logging

from _pytest.logging import catching_logs


def _attach(self: catching_logs) -> logging.Handler:
    root = logging.getLogger()
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(self.orig_level, self.level))
    return self.handler


if hasattr(catching_logs, "attached_loggers"):
    catching_logs.__enter__ = _attach
