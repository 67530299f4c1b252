"""What benchmarks beside a peer share: its environment, sides that take turns, the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PACKAGES = Path(__file__).with_name("peers.txt")
#: Of the process's environment: it may name the folder of an environment with the peers.
VARIABLE = "PLUGRL_PEERS"


class BenchmarkError(Exception):
    """What keeps the benchmark from running, in one line; ``code`` is the exit code."""

    code = 1


class NoPeerError(BenchmarkError):
    """There is no environment with the peer where the command line says."""

    code = 2


@dataclass(frozen=True)
class Peer:
    """An environment of its own that holds the peer.

    Attributes:
        name: how messages call it.
        modules: what is imported from it.
    """

    name: str
    modules: Sequence[str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that say where it is."""
        group = parser.add_mutually_exclusive_group()
        group.add_argument(
            "--peer-python", metavar="PATH", help=f"Python that has {self.name}; or {VARIABLE}"
        )
        group.add_argument(
            "--make-peer", metavar="FOLDER", help="make the peer's environment there"
        )
        group.add_argument("--no-peer", action="store_true", help="measure plugrl alone")

    def python(self, given: argparse.Namespace) -> str | None:
        """Its Python; None without a peer.

        Raises:
            NoPeerError: there is none, or the peer cannot be imported with it.
        """
        if given.no_peer:
            return None
        if given.make_peer:
            return self.make(Path(given.make_peer))
        folder = os.environ.get(VARIABLE)
        path = given.peer_python or (folder and os.path.join(folder, "bin", "python"))
        if not path:
            raise NoPeerError(
                f"no Python with {self.name}: give --peer-python PATH or set {VARIABLE}, make "
                "one with --make-peer FOLDER, or measure plugrl alone with --no-peer"
            )
        # Not resolved: a virtual environment is found by the place of its link.
        path = os.path.abspath(os.path.expanduser(path))
        code = f"import {', '.join(self.modules)}"
        try:
            found = subprocess.run([path, "-c", code], capture_output=True, encoding="utf-8")
        except OSError as error:
            raise NoPeerError(f"{path} cannot be run: {error.strerror or error}") from None
        if found.returncode != 0:
            reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NoPeerError(
                f"{path} has no usable {self.name} ({reason}); --make-peer FOLDER makes one"
            )
        return path

    def make(self, folder: Path) -> str:
        """Make the environment in ``folder``, unless it is there; its Python.

        Raises:
            BenchmarkError: it cannot be made.
        """
        python = folder.expanduser().absolute() / "bin" / "python"
        done = python.parent.parent / "peer-is-complete"
        if done.exists():
            return str(python)
        commands = [[sys.executable, "-m", "venv", str(folder.expanduser())]]
        commands.append([str(python), "-m", "pip", "install", "--quiet", "-r", str(_PACKAGES)])
        for command in commands:
            # Only the result goes to stdout.
            if subprocess.run(command, stdout=sys.stderr).returncode != 0:
                words = " ".join(command)
                raise BenchmarkError(f"the peer's environment was not made: {words} failed")
        done.touch()
        return str(python)


class Side:
    """One side in a process of its own, which goes on only when it is told to.

    Args:
        python: that runs it.
        script: of the side.
        words: its arguments.
        folder: for what it prints to stderr.
        threads: that the libraries of numbers may use.
        environment: further variables of the process.
    """

    def __init__(
        self,
        python: str,
        script: Path,
        words: Sequence[str],
        folder: Path,
        *,
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        variables |= {"OPENBLAS_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
        self._name = script.name
        self._errors = folder / f"{script.name}-{id(self)}.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [python, str(script), *words],
                env={**os.environ, **variables, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )

    def go(self) -> None:
        """Let it take its next turn; :meth:`read` waits for the end of it."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read(self) -> str:
        """What it says when its turn ends.

        Raises:
            BenchmarkError: it failed; its stderr was passed on.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            code = self._process.wait()
            sys.stderr.write(self._errors.read_text(errors="replace"))
            raise BenchmarkError(f"{self._name} failed with exit code {code}")
        return line

    def kill(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the process if it has not ended."""
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.kill()


def run(
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    given: argparse.Namespace,
) -> int:
    """Measure and print; 1 or 2 with one line on stderr when that cannot be done."""
    try:
        result = measure(given)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.code
    print(json.dumps(result, indent=2) if given.json else table(result))
    return 0


def positive(text: str) -> int:
    """A number of at least 1, for ``argparse``."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def known(versions: Mapping[str, str | None]) -> dict[str, str]:
    """The packages that are installed."""
    return {name: version for name, version in versions.items() if version is not None}


def machine() -> dict[str, Any]:
    """What the times depend on."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
