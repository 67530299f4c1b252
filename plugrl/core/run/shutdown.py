"""The end of a run, orderly or immediate: log, report, status, lock, last message."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import shlex
import signal
import threading
from pathlib import Path

from plugrl.core.config.hidden import without_credentials
from plugrl.core.errors import (
    EXIT_RUN_FAILED,
    ConfigError,
    PlugrlError,
    RunInterrupted,
    RunTerminated,
    StopRun,
)
from plugrl.core.plugins.user_code.error_location import TRACE
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.lock import RunLock
from plugrl.core.run.process.signals import exit_code, exit_soon, write_stderr
from plugrl.core.run.progress import DETAIL
from plugrl.core.run.records.records import State, Status, now
from plugrl.core.run.report.live import LiveReport
from plugrl.core.run.report.page import REPORT_FILE
from plugrl.core.wording import LONGEST_RECORD, bounded, shown

LOG_FILE = "log.txt"
log = logging.getLogger("plugrl.run")


def outcome_of(error: BaseException | None) -> State:
    """The final state of a run that ended with ``error``."""
    if error is None or isinstance(error, StopRun):
        return "done"
    if isinstance(error, (RunInterrupted, KeyboardInterrupt)):
        return "interrupted"
    if isinstance(error, RunTerminated):
        return "terminated"
    return "failed"


class _LogFile(logging.FileHandler):
    """Writes ``log.txt``; a full disk costs log lines, not the run."""

    #: Whether the latest record could not be written.
    lost = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record."""
        self.lost = True

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, if the file can be opened."""
        self.lost = False
        try:
            super().emit(record)
        except OSError:
            self.lost = True

    def close(self) -> None:
        """Close the file; on a full disk, buffered lines are lost."""
        with contextlib.suppress(OSError):
            super().close()

    def format(self, record: logging.LogRecord) -> str:
        """The record, with the traceback that only the log file gets."""
        trace = getattr(record, TRACE, "")
        said = bounded(super().format(record), LONGEST_RECORD)
        text = "\n".join(part for part in (said, trace) if part)
        return shown(without_credentials(text))


class Shutdown:
    """Ends a run, in order or immediately."""

    def __init__(self, folder: Path, lock: RunLock, status: Status, report: LiveReport) -> None:
        self.ended = False
        self._folder = folder
        self._lock = lock
        self._status = status
        self._report = report
        self._handler: _LogFile | None = None
        self._once = threading.Lock()

    def open_log(self) -> None:
        """Start copying plugrl's log messages to ``log.txt``."""
        self._handler = _LogFile(self._folder / LOG_FILE, encoding="utf-8", delay=True)
        form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        self._handler.setFormatter(logging.Formatter(form))
        logger = logging.getLogger("plugrl")
        logger.addHandler(self._handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)

    def report(self, outcome: State, step: int, error: BaseException | None) -> dict[str, Path]:
        """Write the report; return the files for trackers, by name."""
        line = _error_line(error) if outcome != "done" else None
        end = {"state": outcome, "step": step, "ended": now(), "error": line}
        try:
            self._report.finish({**self._status.fields, **end})
        except Exception as problem:
            # The numbers are safe in metrics.jsonl; a report is only a view of them.
            log.warning("cannot write report.html (%s)", problem)
            return {}
        return {REPORT_FILE: self._folder / REPORT_FILE}

    def close(self, outcome: State, step: int, error: BaseException | None) -> None:
        """Write the last log line and the status, and release the lock.

        The message of an error of plugrl gets a pointer to its traceback in the log.
        """
        self._report.stop()
        self._status.fields["step"] = step
        line = _error_line(error) if outcome != "done" else None
        if error is not None and outcome == "failed":
            self._log_failure(step, error)
        else:
            log.info("run %s at step %d", outcome, step, extra=DETAIL)
        self._status.end(outcome, line)
        if self._handler is not None:
            logging.getLogger("plugrl").removeHandler(self._handler)
            self._handler.close()
            self._handler = None
        self._lock.release()

    def _log_failure(self, step: int, error: BaseException) -> None:
        """Write the traceback to ``log.txt`` only, since the command prints one line."""
        if self._handler is not None:
            trace = (type(error), error, error.__traceback__)
            record = log.makeRecord(
                log.name, logging.ERROR, __file__, 0, "run failed at step %d", (step,), trace
            )
            self._handler.handle(record)
            # Other exceptions print their own traceback, and the text of a ConfigError is a report
            # of several lines.
            own = isinstance(error, PlugrlError) and not isinstance(error, ConfigError)
            if own and not self._handler.lost and (self._folder / LOG_FILE).exists():
                error.args = (
                    f"{error}; the full traceback is in {display_path(self._folder / LOG_FILE)}",
                )

    def on_second_signal(self, number: signal.Signals) -> None:
        """End the process on a second signal."""
        state: State = "terminated" if number == signal.SIGTERM else "interrupted"
        self._die(state, exit_code(number), f"{number.name} again: stopped at once")

    def on_deadline(self, phase: str, seconds: float, step: int) -> None:
        """End the process because a phase exceeded its deadline."""
        message = (
            f"error: phase {phase!r} after step {step} passed its deadline of {seconds:g} s; "
            f"the stacks below say where it hangs (settings.deadlines.{phase} allows more)"
        )
        self._die("failed", EXIT_RUN_FAILED, message, stacks=True)

    def _die(self, state: State, code: int, message: str, *, stacks: bool = False) -> None:
        # No Python lock is taken on this path: the hung thread may hold any of them.
        if not self._once.acquire(blocking=False):
            return
        exit_soon(code)
        self._status.end(state, message.removeprefix("error: "))
        log = self._folder / LOG_FILE
        # A path in the message may contain bytes that are not valid text.
        with (
            contextlib.suppress(OSError),
            open(log, "a", encoding="utf-8", errors="backslashreplace") as file,
        ):
            file.write(message + "\n")
            if stacks:
                # Which writes what is buffered first.
                faulthandler.dump_traceback(file=file, all_threads=True)
        write_stderr(message)
        if stacks:
            with contextlib.suppress(OSError, ValueError):
                faulthandler.dump_traceback(file=2, all_threads=True)
        write_stderr(f"plugrl resume {shlex.quote(os.fspath(display_path(self._folder)))}")
        os._exit(code)


def _error_line(error: BaseException | None) -> str | None:
    if error is None:
        return None
    text = without_credentials(" ".join(bounded(str(error), LONGEST_RECORD).split()))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
