"""``LiveReport``: keeps ``report.html`` up to date while a run goes on."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.run.atomic_writes import write_text
from plugrl.core.run.report.contents import RunContents
from plugrl.core.run.report.page import REPORT_FILE, report_page

#: Seconds until the first page, and at least between two.
_FIRST, _INTERVAL = 3.0, 10.0
#: A page that took a second is followed by none for this many.
_PAUSE = 250.0
#: Seconds for which the end of a run waits for a page that is being written.
_PATIENCE = 30.0


class LiveReport:
    """Writes the page from the files of the run, in a thread that no step waits for.

    The thread reads what ``metrics.jsonl`` has got since the last page, and bounded parts of the
    other files. It works for at most 0.4 % of the time: after a page it rests 250 times as long as
    the page took, and at least ten seconds.

    Args:
        folder: the run folder.
        status: the fields of its status, which the run changes.
    """

    def __init__(self, folder: Path, status: Mapping[str, Any]) -> None:
        self._folder = folder
        self._status = status
        self._contents = RunContents(folder)
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to write pages."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._go_on, name="plugrl-report", daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        pause = _FIRST
        due = _INTERVAL
        while not self._ended.wait(pause):
            began = time.thread_time()
            try:
                self.write(self._status, due=due)
            except Exception as problem:
                # The next page may succeed, and the last one says why it could not be written.
                logging.getLogger("plugrl.run").debug("no page of the report: %s", problem)
            pause = due = pause_after(time.thread_time() - began)

    def write(self, status: Mapping[str, Any], *, due: float | None = None) -> None:
        """Write the page now.

        Args:
            status: of the run.
            due: seconds until the next page, about; None: it is the last one.

        Raises:
            OSError: it could not be written.
        """
        contents = self._contents.read(dict(status), live=due is not None)
        write_text(self._folder / REPORT_FILE, report_page([contents], due))

    def stop(self) -> None:
        """Begin no further page."""
        self._ended.set()

    def finish(self, status: Mapping[str, Any]) -> None:
        """Write the last page, with the final ``status``.

        Raises:
            OSError: it could not be written.
        """
        self.stop()
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):
                self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                self._contents = RunContents(self._folder)
            self._thread = None
        self.write(status)


def pause_after(seconds: float) -> float:
    """Seconds without a page after one that took ``seconds`` of processor time."""
    return max(_INTERVAL, _PAUSE * seconds)
