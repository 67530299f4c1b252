"""Runs the bash script of ``environment.setup_script`` and imports the variables that it exports.

The script is sourced in a bash of its own, so that only exported variables reach the run: no
functions, no change of directory, no traps.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from plugrl.core.config.sources.files import locate
from plugrl.core.config.sources.origins import nearest
from plugrl.core.errors import ConfigError
from plugrl.core.run.process.signals import raise_on_sigterm
from plugrl.core.wording import shown

if TYPE_CHECKING:
    from plugrl.core.config.sources.compose import ComposedConfig


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


log = logging.getLogger("plugrl.run")

#: Default time limit in seconds; ``settings.deadlines.setup_script`` overrides it.
TIME_LIMIT = 600.0
#: The key in `settings.deadlines`.
PHASE = "setup_script"
#: Variables of the shell itself, which it sets or drops whatever the script does: its place, the
#: terminal's size, prompts, options and the state of its parser; and of the program below.
_SHELL = frozenset(
    {"_", "SHLVL", "PWD", "OLDPWD", "COLUMNS", "LINES", "PS0", "PS1", "PS2", "PS3", "PS4"}
    | {"PROMPT_COMMAND", "BASHOPTS", "SHELLOPTS", "IFS", "OPTIND"}
)
_OWN = "_prl_"
# The place is noted before each command, because `exit` and `set -e` leave no other trace of it.
# The trap of EXIT is a command too: where a frame of the script is still there, the place before
# counts. What is exported is written when the script is over, also when it ended with `exit`.
_PROGRAM = r"""
_prl_to=$2 _prl_env=$3 _prl_at= _prl_was=
_prl_report() {
  trap - DEBUG EXIT
  printf '%s\0' "$1" "${2:-${3-}}" >&"$_prl_to"
  "$_prl_env" -0 >&"$_prl_to"
}
trap '[[ -z ${BASH_SOURCE-} ]] || { _prl_was=$_prl_at; _prl_at=$BASH_SOURCE:$LINENO; }' DEBUG
trap '_prl_report "$?" "${BASH_SOURCE:+$_prl_was}" "$_prl_at"' EXIT
set -eET
. "$1"
_prl_report 0
"""
_REMEDY = "correct it; plugrl validate --setup tries it without training"
_seen: dict[tuple[str, int, int], dict[str, str | None]] = {}


def apply_setup_script(script: str | Path, seconds: float | None = None) -> None:
    """Run a script and set its variables in this process; ``seconds`` limits its time.

    A script runs once per process, even if several runs name it.

    Raises:
        ConfigError: see :func:`exported_variables`.
    """
    path = os.path.abspath(script)
    try:
        found = os.stat(path)
    except OSError as error:
        raise ConfigError(f"environment.setup_script {script}: {error.strerror}") from None
    key = (path, found.st_mtime_ns, found.st_size)
    if key not in _seen:
        _seen[key] = exported_variables(path, seconds)
        names = ", ".join(sorted(_seen[key]))
        # Names alone: values may be secrets.
        log.info("environment.setup_script %s sets: %s", script, names or "nothing")
    for name, value in _seen[key].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def apply_configured_script(composed: ComposedConfig) -> bool:
    """Run the script that a configuration names, if it exists; return whether it ran.

    Faults of the setting itself are left to validation.

    Raises:
        ConfigError: see :func:`exported_variables`.
    """
    path = ("environment", "setup_script")
    section, settings = composed.tree.get("environment"), composed.tree.get("settings")
    script = section.get("setup_script") if isinstance(section, dict) else None
    found = locate(script, nearest(composed.origins, path)) if isinstance(script, str) else None
    if found is None or not found.is_file():
        return False
    deadlines = settings.get("deadlines") if isinstance(settings, dict) else None
    limit = deadlines.get(PHASE) if isinstance(deadlines, dict) else None
    number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
    apply_setup_script(found, limit if number else None)
    return True


def exported_variables(script: str | Path, seconds: float | None = None) -> dict[str, str | None]:
    """Run a script and return the exported variables that it changes; None for those it unsets.

    Its output goes to stderr, and it gets no input. Processes that it starts in the background keep
    running unless the script fails.

    Raises:
        ConfigError: it fails, takes longer than ``seconds``, or cannot be run.
        RunTerminated: SIGTERM arrived meanwhile.
    """
    where = f"environment.setup_script {script}"
    bash, env = shutil.which("bash"), shutil.which("env")
    if bash is None or env is None:
        raise ConfigError(f"{where} needs bash and env, which are not on the PATH; install them")
    limit = TIME_LIMIT if seconds is None else seconds
    # Files rather than pipes: background processes must be able to go on writing.
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as printed:
        words = [bash, "--norc", "--noprofile", "-c", _PROGRAM, "bash", os.path.abspath(script)]
        words += [str(told.fileno()), env]
        output = ScriptOutput(printed)
        code = _run(words, told, printed, output, limit)
        if code is None:
            raise ConfigError(f"{where} {output.fault(limit)}")
        status, at, variables = _parse_report(told)
    if code or status != "0":
        # bash names the line of a syntax error itself; the last command is not where it is.
        known = at and "syntax error" not in output.last()
        line = _line_suffix(at, script) if known else ""
        raise ConfigError(f"{where} failed with exit code {code}{line}{output.last()}; {_REMEDY}")
    if variables is None:
        raise ConfigError(
            f"{where} ended the shell before its variables could be read; write `return` for "
            "`exit`, and no `exec`"
        )
    return _changes(variables)


def _run(
    words: list[str], told: IO[bytes], printed: IO[bytes], output: ScriptOutput, limit: float
) -> int | None:
    """Run bash and forward its output; return the exit code, or None if a limit was exceeded."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=subprocess.STDOUT,
        pass_fds=[told.fileno()],
        start_new_session=True,
    )
    over = time.monotonic() + limit
    with _kill_on_stop(process):
        while process.poll() is None:
            output.pass_on()
            if time.monotonic() > over or output.is_excessive:
                _kill(process)
                process.wait()
                output.pass_on()
                return None
            time.sleep(0.02)
    output.pass_on()
    if process.returncode:
        _kill(process)
    return process.returncode


@contextlib.contextmanager
def _kill_on_stop(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill the script, which runs in a session of its own, if this process has to stop."""

    try:
        with raise_on_sigterm("terminated in the setup script"):
            yield
    except BaseException:
        _kill(process)
        raise


def _kill(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


def _parse_report(file: IO[bytes]) -> tuple[str, str, list[str] | None]:
    """The exit code, the location of the last command, and ``NAME=value`` strings or None."""
    file.seek(0)
    data = os.fsdecode(file.read())
    if not data.endswith("\0"):
        return "0", "", None
    status, at, *variables = data[:-1].split("\0")
    return status, at, variables or None


def _line_suffix(at: str, script: str | Path) -> str:
    """The line where a script failed, for messages; ``at`` may be in a file that it sources."""
    file, _, line = at.rpartition(":")
    return f" in line {line}" + ("" if file == os.path.abspath(script) else f" of {file}")


def _changes(variables: list[str]) -> dict[str, str | None]:
    after = dict(entry.split("=", 1) for entry in variables if "=" in entry)
    changes: dict[str, str | None] = {
        name: value
        for name, value in after.items()
        if os.environ.get(name) != value and name not in _SHELL and not name.startswith(_OWN)
    }
    return changes | dict.fromkeys(set(os.environ) - set(after) - _SHELL)
