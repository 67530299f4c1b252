"""``Box``: runs Python programs that nobody has read, and says what came of each."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from plugrl.core.errors import RunError

_LAUNCHER = Path(__file__).with_name("launcher.py")
#: Folders and files that programs may read besides their own.
_READABLE = ("/usr", "/lib", "/lib64", "/etc/localtime", "/dev/null", "/dev/zero", "/dev/urandom")
#: Seconds between looks at what a program has written.
_LOOK = 0.05

Verdict = Literal["done", "raised", "time", "memory", "output", "files", "killed"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use.

    Attributes:
        seconds: processor time.
        wall_seconds: time by the clock, for programs that sleep and for busy machines.
        memory_mb: address space.
        file_kb: size of a file; all files together may have 16 times as much.
        files: number of files.
        output_kb: what it may print; standard error may have as much.
        packages: whether it may import what is installed besides the standard library.
    """

    seconds: float = 5.0
    wall_seconds: float = 30.0
    memory_mb: int = 512
    file_kb: int = 1024
    files: int = 64
    output_kb: int = 256
    packages: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a program.

    Attributes:
        verdict: ``done``: it came to its end, for a test: passed or answered. ``raised``: it ended
            with an exception, another exit code or, for a test, before the test was through.
            Else the limit that it passed, or ``killed`` by a signal.
        output: what it printed, up to the limit.
        errors: the last lines of its standard error.
        value: what the function returned that was asked for, as JSON has it.
        kernel: what the kernel enforced: ``files``, ``calls``, both or neither.
    """

    verdict: Verdict
    output: str = ""
    errors: str = ""
    value: Any = None
    kernel: tuple[str, ...] = ()


class Box:
    """Runs programs, each in a process and a folder of its own; it may be used from many threads.

    Args:
        limits: what each program may use.
        kernel: whether the kernel is asked to refuse calls and files; if not, as where it cannot,
            the interpreter refuses them, which native code gets around.
    """

    def __init__(self, limits: Limits | None = None, *, kernel: bool = True) -> None:
        self.limits = limits or Limits()
        self._kernel = kernel

    def script(self, program: str, stdin: str = "") -> Outcome:
        """Run ``program`` as a script that reads ``stdin``."""
        return self._run(program, "script", stdin)

    def asserts(self, program: str, code: str) -> Outcome:
        """Run ``program``, then ``code`` among its names; ``done`` when it came to its end."""
        return self._run(program, "asserts", "", {"code": code})

    def call(self, program: str, name: str, arguments: list[Any]) -> Outcome:
        """Run ``program``, then its function ``name``, or that method of its ``Solution``."""
        return self._run(program, "function", "", {"name": name, "arguments": arguments})

    def _run(
        self, program: str, mode: str, stdin: str, job: Mapping[str, Any] | None = None
    ) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="plugrl-box-", ignore_cleanup_errors=True) as made:
            # The program's own temporary folder; input lies where it cannot write.
            box = os.path.realpath(made)
            source = program.encode("utf-8", "replace")
            Path(box, "program.py").write_bytes(source)
            with tempfile.TemporaryFile() as given:
                given.write(stdin.encode("utf-8", "replace"))
                given.seek(0)
                return _Running(self.limits, self._kernel, box, mode, job, given).outcome()


class _Running:
    """One program while it runs."""

    def __init__(
        self,
        limits: Limits,
        kernel: bool,
        box: str,
        mode: str,
        job: Mapping[str, Any] | None,
        stdin: IO[bytes],
    ) -> None:
        self._limits = limits
        self._kernel = kernel
        self._box = box
        self._word = secrets.token_hex(16)
        self._deadline = time.monotonic() + limits.wall_seconds
        self._stopped: Verdict | None = None
        self._got: dict[str, bytearray] = {
            name: bytearray() for name in ("output", "errors", "status", "result")
        }
        self._asked = job is not None
        self._job = json.dumps({**job, "word": self._word}).encode() if job is not None else b""
        status, status_end = os.pipe()
        result, result_end = os.pipe()
        job_end, job_feed = os.pipe()
        self._process = self._started(mode, stdin, (status_end, result_end, job_end))
        os.set_blocking(job_feed, False)
        self._job_pipe = job_feed
        self._files = {
            cast("IO[bytes]", self._process.stdout).fileno(): "output",
            cast("IO[bytes]", self._process.stderr).fileno(): "errors",
            status: "status",
            result: "result",
        }
        self._own = {status, result, job_feed}

    def _started(
        self, mode: str, stdin: IO[bytes], ends: tuple[int, int, int]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self._command(mode, *ends),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._box,
                env=_environment(self._box),
                pass_fds=ends,
                start_new_session=True,
            )
        except OSError as error:
            raise RunError(f"no process can be started for a program: {error}") from error
        finally:
            for end in ends:
                os.close(end)

    def _command(self, mode: str, status: int, result: int, job: int) -> list[str]:
        limits = self._limits
        spec = {
            "box": self._box,
            "kernel": self._kernel,
            "mode": mode,
            "status": status,
            "result": result,
            "job": job,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_mb << 20,
            "file_bytes": limits.file_kb << 10,
            "readable": [*_READABLE, *dict.fromkeys((sys.prefix, sys.base_prefix))],
        }
        options = ["-s", "-P", "-B", "-X", "utf8", *([] if limits.packages else ["-S"])]
        return [sys.executable, *options, str(_LAUNCHER), json.dumps(spec)]

    def outcome(self) -> Outcome:
        """Wait for the end, which the limits bring about."""
        try:
            self._watch()
        finally:
            self._kill()
            for end in self._own:
                os.close(end)
            for pipe in (self._process.stdout, self._process.stderr):
                cast("IO[bytes]", pipe).close()
        return self._judged()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for file in self._files:
                os.set_blocking(file, False)
                selector.register(file, selectors.EVENT_READ)
            if self._job:
                selector.register(self._job_pipe, selectors.EVENT_WRITE)
            while self._stopped is None:
                for key, _ in selector.select(_LOOK):
                    self._move(selector, key.fd)
                if time.monotonic() > self._deadline:
                    self._stopped = "time"
                elif self._too_many_files():
                    self._stopped = "files"
                elif self._process.poll() is not None and not selector.select(0):
                    break

    def _move(self, selector: selectors.BaseSelector, file: int) -> None:
        if file == self._job_pipe:
            try:
                self._job = self._job[os.write(file, self._job) :]
            except BlockingIOError:
                return
            except OSError:
                self._job = b""
            if not self._job:
                selector.unregister(file)
                self._own.discard(file)
                os.close(file)
            return
        name = self._files[file]
        try:
            data = os.read(file, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            selector.unregister(file)
        held = self._got[name]
        held += data
        limit = self._limits.output_kb << 10
        if len(held) > limit:
            del held[limit:]
            if name == "errors":
                return
            self._stopped = "output"

    def _too_many_files(self) -> bool:
        count = size = 0
        try:
            for folder, _, names in os.walk(self._box):
                for name in names:
                    count += 1
                    size += os.lstat(os.path.join(folder, name)).st_size
                    if count > self._limits.files + 1 or size > self._limits.file_kb << 14:
                        return True
        except OSError:
            pass
        return False

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def _judged(self) -> Outcome:
        texts = {name: bytes(data).decode("utf-8", "replace") for name, data in self._got.items()}
        try:
            kernel = tuple(json.loads(texts["status"]))
        except ValueError:
            raise RunError(f"a box could not be set up: {texts['errors'].strip()[-300:]}") from None
        verdict, value = self._verdict(texts), None
        if verdict == "done" and texts["result"].startswith(self._word):
            answer = texts["result"][len(self._word) :]
            value = json.loads(answer) if answer else None
        lines = texts["errors"].strip().splitlines()[-20:]
        return Outcome(verdict, texts["output"], "\n".join(lines), value, kernel)

    def _verdict(self, texts: Mapping[str, str]) -> Verdict:
        code = self._process.returncode
        if self._stopped is not None:
            return self._stopped
        if code in (-signal.SIGXCPU, -signal.SIGPROF, -signal.SIGKILL):
            return "time"
        if code == -signal.SIGXFSZ:
            return "files"
        if code < 0:
            return "killed"
        if code and "MemoryError" in texts["errors"][-400:]:
            return "memory"
        if code or (self._asked and not texts["result"].startswith(self._word)):
            return "raised"
        return "done"


def _environment(box: str) -> dict[str, str]:
    """Nothing of this process's own: it may hold secrets."""
    kept = {"PATH": "", "HOME": box, "TMPDIR": box, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
    # Each thread of a numerical library takes address space.
    return kept | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
