"""Starts a real server of the Tinker API: that of ``skyrl``, over JAX on the CPU.

It wants another ``transformers`` than plugrl, so it is installed once into an environment of its
own, below the folder that ``PLUGRL_TEST_SERVERS`` names. Tests of it have the marker ``server``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

SKYRL, TORCH = "0.3.0", "2.13.0"
#: skyrl declares a pydantic model with ``typing.TypedDict``, which pydantic takes from Python 3.12.
SHIM = "import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict\n"
#: Small sizes compile and run fast on the CPU; a session that sends no heartbeat ends soon. That of
#: the tests lives as long as they do, and with it the adapter of each service that they make.
ENGINE = {
    "max_lora_adapters": 64,
    "max_lora_rank": 32,
    "train_micro_batch_size": 64,
    "sample_max_num_sequences": 64,
}

#: Ends a process group when the process that started it is gone, however that ended.
WATCH = """
import os, signal, sys, time
group, owner = map(int, sys.argv[1:])
while os.getppid() == owner:
    time.sleep(0.5)
try:
    os.killpg(group, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


#: The folder below which servers for tests are installed.
VARIABLE = "PLUGRL_TEST_SERVERS"
UNSET = (
    f"tests of the marker server install servers below the folder that {VARIABLE} names, and it "
    "is not set"
)


def environment() -> Path:
    """The environment of the server, built if it is not there.

    Raises:
        UsageError: no folder is named for it.
    """
    if VARIABLE not in os.environ:
        raise pytest.UsageError(UNSET)
    folder = Path(os.environ[VARIABLE]).absolute() / f"tinker-skyrl-{SKYRL}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w", encoding="utf-8") as lock:
        # Several test processes may want it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".ready").exists():
            build(folder)
    return folder


def build(folder: Path) -> None:
    """Install the server.

    Raises:
        AssertionError: pip failed, for example without a network.
    """
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    own = {**os.environ, "PIP_CACHE_DIR": str(folder / "pip-cache")}
    # torch first, so that the newest one is not taken along with skyrl.
    for what in ([f"torch=={TORCH}"], [f"skyrl[tinker,jax]=={SKYRL}", "uv"]):
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what],
            check=False,
            capture_output=True,
            text=True,
            timeout=900,
            env=own,
        )
        assert done.returncode == 0, f"pip install {what[0]}: {done.stderr.strip()[-300:]}"
    shutil.rmtree(folder / "pip-cache", ignore_errors=True)
    code = "import site; print(site.getsitepackages()[0])"
    packages = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    Path(packages.stdout.strip(), "typed_dict.pth").write_text(SHIM, encoding="utf-8")
    (folder / ".ready").touch()


class Server:
    """A server that was started; it can be killed, stopped, and started again on its port."""

    #: It reads the moments too where the weights alone are asked for.
    leaves_moments_out = False

    def __init__(self, folder: Path, model: Path, state: Path) -> None:
        self._folder, self.model, self._state = folder, str(model), state
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = state / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    def start(self, *, fresh: bool = False) -> None:
        """Start it and wait until it answers; ``fresh``: it has forgotten everything."""
        state = self._state / (f"state-{time.monotonic_ns()}" if fresh else "state")
        state.mkdir(parents=True, exist_ok=True)
        binaries = self._folder / "bin"
        # uv must be the parent: the server begins its engine with the options of its parent's uv.
        words = [
            binaries / "uv", "run", "--active", "--no-project", "-m", "skyrl.tinker.api",
            "--base-model", self.model, "--host", "127.0.0.1", "--port", str(self.port),
            "--database-url", f"sqlite:///{state}/tinker.db",
            "--checkpoints-base", state / "checkpoints",
            "--backend-config", json.dumps(ENGINE),
            "--session-timeout-sec", "60", "--session-cleanup-interval-sec", "5",
        ]  # fmt: skip
        own = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._folder),
            "UV_PYTHON": str(binaries / "python"),
            "UV_OFFLINE": "1",
            # What it and its libraries keep for later belongs to the test.
            "HOME": str(state),
            "XDG_CACHE_HOME": str(state / "cache"),
            "JAX_PLATFORMS": "cpu",
        }
        before = self._ready()
        with open(self.log, "ab") as log:
            # A session of its own: its processes are ended as one group.
            self._process = subprocess.Popen(
                list(map(str, words)),
                cwd=state,
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        group, owner = str(self._process.pid), str(os.getpid())
        self._watch = subprocess.Popen(
            [sys.executable, "-c", WATCH, group, owner], start_new_session=True
        )
        self._wait(before, 300)

    def _ready(self) -> int:
        return self._text().count("Starting background engine")

    def _text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def _wait(self, before: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._process is None or self._process.poll() is not None:
                raise AssertionError(f"the server ended: {self._text()[-800:]}")
            if self._ready() > before and self.answers():
                return
            time.sleep(0.2)
        raise AssertionError(f"the server did not start within {seconds} s: {self._text()[-800:]}")

    def answers(self) -> bool:
        """Whether it answers requests."""
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=2).status == 200
        return False

    def halt(self) -> None:
        """Stop all of its processes: it accepts connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        self._send(signal.SIGCONT)

    def lacks(self, loss: str) -> None:
        """Some losses it does not have, ``dro`` among them."""
        assert loss == "dro"

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Kill all of its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._watch is not None:
            self._watch.kill()
            self._watch.wait()
            self._watch = None


@contextlib.contextmanager
def serving(model: Path, state: Path) -> Iterator[Server]:
    """A server of the model in a folder, ended with all of its processes."""
    server = Server(environment(), model, state)
    try:
        server.start()
        yield server
    finally:
        server.end()
