"""A server of OpenAI's interface that a run starts, watches over and ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.endpoint.clients.reaper import MARK, REAPER, kill_session
from plugrl.plugins.openai.settings import PORT

_HOST = "127.0.0.1"
#: Seconds between two looks whether a server that starts answers.
_LOOK = 0.2
#: Seconds that one such look may take.
_ANSWER = 5.0
#: Seconds that a server may take to end when it is asked to.
_GRACE = 5.0
#: Bytes of the end of its output that messages are made from.
_TAIL = 4096
#: vLLM takes new weights in its development mode alone.
_VARIABLES = {"VLLM_SERVER_DEV_MODE": "1"}


class ServerProcess:
    """A server on a port of this machine, in a session of its own.

    However this process ends, the server and what it started end with it.

    Args:
        command: starts it, with ``{port}`` where the port is written.
        name: what messages call it.
    """

    def __init__(self, command: str, name: str) -> None:
        self._command, self.name = command, name
        self._session = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self.log = ""
        self.port = 0

    @property
    def root(self) -> str:
        """Its address."""
        return f"http://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The number of its process; 0: it was not started."""
        return 0 if self._process is None else self._process.pid

    def start(self, seconds: float) -> None:
        """Start it, and wait until it answers at ``/health``.

        Raises:
            ConfigError: there is no such program.
            RunError: it ends, or does not answer in so many seconds.
        """
        self.port = _free_port()
        words = shlex.split(self._command.replace(PORT, str(self.port)))
        number, self.log = tempfile.mkstemp(prefix="plugrl-server-", suffix=".log")
        with open(number, "wb") as log:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**_VARIABLES, **os.environ, MARK: self._session},
                    start_new_session=True,
                )
            except OSError as error:
                os.unlink(self.log)
                raise ConfigError(
                    f"{self.name} cannot be started: {words[0]!r} {error.strerror or error}; "
                    "install it, or correct command"
                ) from error
        REAPER.watch(self._session, self._process.pid)
        until = time.monotonic() + seconds
        while not self.is_healthy():
            ended = self.ended()
            if ended or time.monotonic() > until:
                fault = ended or f"did not answer at {self.root}/health within {seconds:g} seconds"
                said = self._said()
                self.kill()
                raise RunError(
                    f"{self.name} {fault} when it was started{said}; see {self.log}, then correct "
                    "command, or raise start_timeout"
                )
            time.sleep(_LOOK)

    def ended(self) -> str:
        """How it ended, as a predicate; "": it runs."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def is_healthy(self) -> bool:
        """Whether it runs and answers at ``/health``, with whatever."""
        if self.ended():
            return False
        try:
            with urllib.request.urlopen(f"{self.root}/health", timeout=_ANSWER) as answer:
                return bool(answer.status < 400) and not self.ended()
        except (OSError, ValueError):  # an error of HTTP, such as 503 while it loads, is one
            return False

    def stop(self) -> None:
        """End it in peace, and remove its log."""
        if self._process is None:
            return
        if not self.ended():
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self.kill()
        with contextlib.suppress(OSError):
            os.unlink(self.log)

    def kill(self) -> None:
        """End it, and all that it has started, at once."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        kill_session(self._session)
        self._process.wait()
        REAPER.forget(self._session)

    def _said(self) -> str:
        """The last line of its output, for messages."""
        try:
            with open(self.log, "rb") as log:
                log.seek(max(0, os.path.getsize(self.log) - _TAIL))
                lines = log.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" ({last[:200]})" if last else ""


def _free_port() -> int:
    """A port of this machine that nobody has at the moment."""
    with socket.socket() as own:
        own.bind((_HOST, 0))
        return int(own.getsockname()[1])
