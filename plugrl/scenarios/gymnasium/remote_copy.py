"""``RemoteCopy``: one environment in a process of its own, which may hang or die."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import cloudpickle

from plugrl.core.errors import RunError
from plugrl.core.tensordict.environment.copies import Crashes
from plugrl.core.tensordict.environment.state import Unsavable
from plugrl.scenarios.gymnasium.local_copy import Outcome
from plugrl.scenarios.gymnasium.recipe import Recipe
from plugrl.scenarios.gymnasium.seeding import restart_seed

if TYPE_CHECKING:
    from plugrl.core.text.rollout.processes.executor import Channel, Executor

#: A fresh interpreter, and not ``multiprocessing``: that would run the user's script again.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from plugrl.scenarios.gymnasium.worker import main; main()"
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: Seconds that a process may take to start and to make its environment.
START = 120.0
#: Seconds that a trial of the state may take at least.
_TRIAL = 10.0
#: Seconds that a process whose connection ended may take to end itself.
_PATIENCE = 2.0


class _Lost(Exception):
    """The process does not answer any more; the text says why."""


class _Started:
    """A process of this machine that will hold an environment.

    Attributes:
        socket: to the process.
        connection: messages over it.
        pid: its number.
    """

    def __init__(self, files: Mapping[str, str] | None = None) -> None:
        self.socket, there = socket.socketpair()
        self.connection = Connection(os.dup(self.socket.fileno()))
        descriptor = there.fileno()
        # A group of its own: a signal from the terminal is for the parent, which decides.
        self._popen = subprocess.Popen(
            [
                *(sys.executable, "-c", _PROGRAM, str(descriptor), str(os.getpid())),
                json.dumps(sys.path),
            ],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            process_group=0,
        )
        there.close()
        self.pid = self._popen.pid

    def send(self, data: bytes) -> None:
        """Send a message."""
        self.connection.send_bytes(data)

    def end(self) -> str:
        """End the process if it has not ended, and say how it did."""
        try:
            code = self._popen.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            self._popen.wait()
            how = "closed its connection and was ended"
        else:
            how = f"ended its process with code {code}"
            if code < 0:
                known = -code in set(signal.Signals)
                how = f"was ended by {signal.Signals(-code).name if known else f'signal {-code}'}"
        self.kill()
        self.connection.close()
        self.socket.close()
        return how

    def kill(self) -> None:
        """End it, and what it has started, without waiting."""
        with suppress(OSError):
            os.killpg(self._popen.pid, signal.SIGKILL)


class _Process:
    """One process; it is killed when nothing refers to it any more."""

    def __init__(self, recipe: Recipe, index: int, allowed: int, executor: Executor | None) -> None:
        self._process = _Started() if executor is None else executor.channel(_Started)
        self._how = ""
        self.end = weakref.finalize(self, _end, self._process)
        self.limit(START)
        data: bytes = cloudpickle.dumps((recipe, index, allowed))  # type: ignore[no-untyped-call]
        with suppress(OSError):  # the answer says how it died
            self._process.send(pickle.dumps(recipe.id))
            self._process.send(data)

    def limit(self, seconds: float) -> None:
        """Wait for answers this long from now on."""
        self._seconds = seconds
        value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._process.socket.setsockopt(socket.SOL_SOCKET, option, value)

    def send(self, *message: Any) -> None:
        """Send a message; raises :class:`_Lost`."""
        try:
            self._process.send(pickle.dumps(message))
        except OSError:
            raise self._lost() from None

    def receive(self) -> tuple[bool, Any, list[str]]:
        """Whether it went well, the result or the fault, and crashes; raises :class:`_Lost`."""
        try:
            answer: tuple[bool, Any, list[str]] = self._process.connection.recv()
        except BlockingIOError:
            raise _Lost(f"did not answer within {self._seconds:g} s and was ended") from None
        except (EOFError, OSError):
            raise self._lost() from None
        return answer

    def _lost(self) -> _Lost:
        self._how = self._how or self._process.end()
        return _Lost(self._how)


def _end(process: _Started | Channel) -> None:
    process.kill()
    process.end()


class RemoteCopy:
    """One environment in a process of its own; see ``LocalCopy`` for what it does.

    Args:
        recipe: makes the environment.
        index: its place among the copies.
        crashes: counts what breaks.
        allowed: how often it may break.
        seconds: how long a step may take; a process that takes longer is replaced.
        executor: where the process lives; None: on this machine.
    """

    def __init__(
        self,
        recipe: Recipe,
        index: int,
        crashes: Crashes,
        allowed: int,
        seconds: float,
        executor: Executor | None = None,
    ) -> None:
        self._made = (recipe, index, allowed, executor)
        self._crashes = crashes
        self._seconds = seconds
        self._seed: int | None = None
        self._restarts = 0
        self._reason: _Lost | None = None
        self._process = _Process(*self._made)
        self._is_new = True

    def begin_reset(self, seed: int | None) -> None:
        """Ask for ``LocalCopy.reset``; :meth:`end_reset` gives what comes of it."""
        if seed is not None:
            self._seed = seed
        self._ask("reset", seed)

    def end_reset(self) -> Any:
        """The first observation of an episode."""
        try:
            return self._answer()
        except _Lost as lost:
            return self._restart(lost)

    def begin_step(self, action: Any) -> None:
        """Ask for ``LocalCopy.step``; :meth:`end_step` gives what comes of it."""
        self._ask("step", action)

    def end_step(self) -> Outcome:
        """What the step gave; a process that is gone or hangs is replaced."""
        try:
            outcome: Outcome = self._answer()
            return outcome
        except _Lost as lost:
            return self._restart(lost), 0.0, False, True, None

    def _ask(self, *message: Any) -> None:
        try:
            self._wait_for_start()
            self._process.send(*message)
        except _Lost as lost:
            self._reason = lost

    def _wait_for_start(self) -> None:
        """Wait until a new process has made its environment."""
        if not self._is_new:
            return
        self._is_new = False
        good, value, _ = self._process.receive()
        if not good:
            raise RunError(value)
        self._process.limit(self._seconds)

    def _answer(self) -> Any:
        if self._reason is not None:
            reason, self._reason = self._reason, None
            raise reason
        good, value, told = self._process.receive()
        for line in told:
            self._crashes.add(line)
        if not good:
            raise RunError(value)
        return value

    def _restart(self, lost: _Lost) -> Any:
        """The first observation of a new process in place of one that is gone."""
        while True:
            self._restarts += 1
            self._process.end()
            self._crashes.add(f"copy {self._made[1]} {lost}")
            self._process, self._is_new = _Process(*self._made), True
            try:
                # Told apart from the seeds of copies that break without taking their process along.
                self._ask("reset", restart_seed(self._seed, self._restarts + (1 << 31)))
                return self._answer()
            except _Lost as again:
                lost = again

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs.

        Raises:
            Unsavable: something cannot be saved.
        """
        held = self._call("state_dict")
        if isinstance(held, Unsavable):
            raise held
        return {**held, "replaced": [self._seed, self._restarts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        self._seed, self._restarts = state["replaced"]
        self._call("load_state_dict", {k: v for k, v in state.items() if k != "replaced"})

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            self._ask(name, *arguments)
            return self._answer()
        except _Lost as lost:
            recipe, index, *_ = self._made
            raise RunError(f"environment {recipe.id}: copy {index} {lost} in {name}()") from None

    def unsaved(self) -> str | None:
        """Why environments like this one cannot be saved; None: they can. It tries others."""
        recipe, index, allowed, executor = self._made
        trial = RemoteCopy(recipe, index, self._crashes, allowed, self._trial_seconds, executor)
        try:
            trial._ask("unsaved")
            reason: str | None = trial._answer()
        except _Lost as lost:
            reason = f"copy {index} {lost}"
        finally:
            trial.close()
        return reason

    @property
    def _trial_seconds(self) -> float:
        """How long the trial may take, which is some hundred steps of which few take long."""
        return min(START, max(_TRIAL, 20 * self._seconds))

    def close(self) -> None:
        """End the process."""
        self._process.end()
