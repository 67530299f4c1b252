"""The output of a setup script: forwarded while it runs; the last line goes into messages."""

from __future__ import annotations

import codecs
import os
import sys
from typing import IO

from plugrl.core.wording import shown

_CHUNK = 65536
_KEPT = 2000
_LONGEST = 300
#: More output than this is taken for an endless loop, in bytes.
MOST = 50_000_000


class ScriptOutput:
    """Follows a file that a script prints to.

    Args:
        file: the file; it is read through its descriptor, whose position is left alone.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._descriptor = file.fileno()
        self._read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = ""

    @property
    def is_excessive(self) -> bool:
        """Whether the script printed more than :data:`MOST` bytes."""
        return self._read > MOST

    def pass_on(self) -> None:
        """Write new output to stderr, without terminal control characters."""
        while not self.is_excessive and (chunk := os.pread(self._descriptor, _CHUNK, self._read)):
            self._read += len(chunk)
            text = shown(self._decoder.decode(chunk).replace("\r\n", "\n"))
            self._tail = (self._tail + text)[-_KEPT:]
            sys.stderr.write(text)
            sys.stderr.flush()

    def last(self) -> str:
        """The last line of the output, to append to a message; empty if there is none."""
        lines = [" ".join(line.split()) for line in self._tail.splitlines() if line.strip()]
        return f"; the last it printed: {lines[-1][-_LONGEST:]}" if lines else ""

    def fault(self, seconds: float) -> str:
        """The message about the limit that was exceeded; ``seconds`` is the time limit."""
        if self.is_excessive:
            return f"printed more than {MOST:,} bytes{self.last()}; let it print less"
        return (
            f"ran longer than {seconds:g} seconds{self.last()}; allow more with "
            "settings.deadlines.setup_script, or do long work before the run"
        )
