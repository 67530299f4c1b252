"""A worker process: builds its own components and attempts what the driver sends.

It imports no torch, loads no weights and knows no other process: models are asked through the
driver. It ends when its connection does, whatever its code is busy with.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from plugrl.core.component import build
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.plugins.user_code.error_location import TRACE, format_traceback, one_line
from plugrl.core.plugins.user_code.relocation import relocate, relocated_values
from plugrl.core.text.rollout.attempts import Attempts
from plugrl.core.text.rollout.failures import failed_trajectory, place_of, worker_label
from plugrl.core.text.rollout.judge import make_evaluator
from plugrl.core.text.rollout.processes.messages import (
    SentTokenizers,
    Setup,
    pack_error,
    unpack_error,
)
from plugrl.core.text.rollout.rounds import Pending, Round

if TYPE_CHECKING:
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.rollout.attempts import RolloutContext
    from plugrl.core.text.rollout.worker import RolloutWorker
    from plugrl.core.text.trajectory import Trajectory

MARK = struct.Struct("<q")
IDLE = -1
#: Size of the shared memory: whose code runs, and how many signs of life there were.
SHARED = 2 * MARK.size
#: Seconds between two signs of life.
BEAT = 0.25


class _Forward(logging.Handler):
    """Sends log messages to the driver, which has the log file."""

    def __init__(self, process: WorkerProcess) -> None:
        super().__init__()
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        trace = getattr(record, TRACE, "")
        if record.exc_info and record.exc_info[1] and not trace:
            trace = format_traceback(record.exc_info[1])
        try:
            text = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        self._process.send("log", record.name, record.levelno, text, trace)


class WorkerProcess:
    """The process itself.

    Args:
        connection: to the driver.
        shared: memory in which the driver reads whose code was running when the process died.
    """

    def __init__(self, connection: Connection, shared: mmap.mmap) -> None:
        self._connection = connection
        self._shared = shared
        self._sending = threading.Lock()
        self._setup: Setup | None = None
        self._worker: RolloutWorker | None = None
        self._attempts: Attempts | None = None
        self._running: tuple[int, float] = (IDLE, 0.0)
        self._watching = False
        self._waiting: dict[int, Pending] = {}
        self._asks = 0
        self._done: list[tuple[int, bytes]] = []
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unpaced: Round | None = None

    def send(self, *message: Any) -> None:
        """Send a message; without a driver the process ends."""
        data = pickle.dumps(message)
        try:
            with self._sending:
                self._connection.send_bytes(data)
        except OSError:
            leave()

    async def serve(self) -> None:
        """Do what the driver sends until its end."""
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

        def read() -> None:
            while True:
                try:
                    message = self._connection.recv()
                except (EOFError, OSError):
                    leave()
                take = self._take_answers if message[0] == "answers" else inbox.put_nowait
                loop.call_soon_threadsafe(take, message)

        threading.Thread(target=read, name="plugrl-driver", daemon=True).start()
        threading.Thread(target=self._heartbeat, name="plugrl-beat", daemon=True).start()
        while True:
            name, *arguments = await inbox.get()
            try:
                if name == "setup":
                    self._set_up(*arguments)
                elif self._attempts is not None:
                    await getattr(self, f"_{name}")(*arguments)
            except Exception as error:
                trace = format_traceback(error)
                self.send("fatal", pack_error(error), trace)
                self._attempts = None if name == "setup" else self._attempts

    def _set_up(self, setup: Setup) -> None:
        self._attempts = None
        logging.getLogger("plugrl").setLevel(setup.level)
        registry = default_registry()
        section = _section_here(setup.section)
        worker: RolloutWorker = build(registry.load(setup.worker), section)
        if section.get("evaluator") is not None:
            worker.evaluator = make_evaluator(
                Factory(registry, setup.evaluators),
                section["evaluator"],
                "rollout_worker.evaluator",
                reference_key=setup.reference_key,
                prompt_key=setup.prompt_key,
            )
        if not self._watching and setup.timeout is not None:
            self._watching = True
            threading.Thread(target=self._watch, name="plugrl-watch", daemon=True).start()
        self._setup, self._worker = setup, worker
        self._attempts = Attempts(
            worker,
            SentTokenizers(setup.tokenizers),
            setup.limits,
            timeout=setup.timeout,
            mark=self._mark,
        )
        # Rollouts that are not opened do not wait for each other.
        self._unpaced = Round(tuple(setup.limits), self._report_open)
        self.send("ready")

    async def _collect(self, context: RolloutContext, sent: list[tuple[int, bytes]]) -> None:
        assert self._attempts is not None
        assert self._setup is not None
        self._waiting.clear()
        self._done.clear()
        prompts = _problems(sent)

        def done(number: int, trajectories: list[Trajectory]) -> None:
            self._done.append((number, self._pack_report(prompts[number], trajectories, context)))

        round_ = Round(tuple(self._setup.limits), self._report)
        await self._attempts.run(round_, prompts, context, done)
        if self._done:
            self._report([])

    async def _begin(self, context: RolloutContext, sent: list[tuple[int, bytes]]) -> None:
        """Begin attempts that do not wait for each other; it does not wait for them either."""
        for number, prompt in _problems(sent).items():
            self._tasks[number] = asyncio.ensure_future(self._attempt(number, prompt, context))

    async def _attempt(self, number: int, prompt: Prompt, context: RolloutContext) -> None:
        assert self._attempts is not None
        assert self._unpaced is not None
        try:
            result = await self._attempts.attempt(self._unpaced, number, prompt, context)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            trace = format_traceback(error)
            self.send("fatal", pack_error(error), trace)
            return
        if self._tasks.pop(number, None) is not None:
            self._done.append((number, self._pack_report(prompt, result, context)))
            self._schedule_report()

    def _schedule_report(self) -> None:
        """Report what has ended, along with what else ends or asks at this moment."""
        if len(self._done) == 1:
            asyncio.get_running_loop().call_soon(self._report_open, [])

    def _report_open(self, pending: list[Pending]) -> None:
        # Code that swallowed its cancellation waits for answers that nobody gives.
        self._report([entry for entry in pending if entry.asked.rollout in self._tasks])

    async def _cancel(self, numbers: list[int]) -> None:
        for number in numbers:
            task = self._tasks.pop(number, None)
            if task is not None:
                task.cancel()

    def _pack_report(
        self, prompt: Prompt, result: list[Trajectory], context: RolloutContext
    ) -> bytes:
        try:
            return pickle.dumps(result)
        except Exception as error:
            assert self._worker is not None
            reason = (
                f"what {worker_label(self._worker)} returned cannot be sent to the driver: "
                f"{one_line(error)}{place_of(self._worker)}"
            )
            return pickle.dumps(
                [failed_trajectory(self._worker, prompt, reason, is_val=context.is_val)]
            )

    def _report(self, pending: list[Pending]) -> None:
        """Tell the driver that every open attempt waits, for what, and which have ended."""
        if not pending and not self._done:
            return
        asked = []
        for entry in pending:
            self._asks += 1
            self._waiting[self._asks] = entry
            asked.append((self._asks, entry.asked))
        try:
            self.send("round", asked, self._done)
            self._done.clear()
        except Exception as error:
            # One of the requests holds something odd; its attempt must not wait for ever.
            reason = TypeError(f"requests cannot be sent to the driver: {one_line(error)}")
            for entry in pending:
                entry.settle(reason)

    def _take_answers(self, message: tuple[Any, ...]) -> None:
        for key, outcome in message[1]:
            entry = self._waiting.pop(key, None)
            if entry is not None:
                entry.settle(unpack_error(outcome) if isinstance(outcome, bytes) else outcome)

    def _mark(self, number: int) -> None:
        self._running = (number, time.monotonic())
        MARK.pack_into(self._shared, 0, number)

    def _heartbeat(self) -> None:
        """Show the driver that this process runs, and that no code holds up all of it."""
        count = 0
        while True:
            count += 1
            MARK.pack_into(self._shared, MARK.size, count)
            time.sleep(BEAT)

    def _watch(self) -> None:
        """End the process when the code of one attempt does not come back in time."""
        while True:
            limit = self._setup.timeout if self._setup is not None else None
            time.sleep(0.5 if limit is None else min(0.5, limit / 10))
            number, since = self._running
            if limit is not None and number != IDLE and time.monotonic() - since > limit:
                self.send("hung", number)
                leave()


def _section_here(section: Any) -> Any:
    """The section with the paths of this machine, which is the driver's unless files travelled."""
    here = relocated_values(section)
    return section if here is section else ConfigView(here, "rollout_worker", checked=True)


def _problems(sent: list[tuple[int, bytes]]) -> dict[int, Prompt]:
    """The problems that the driver sent, by the number of the attempt."""
    try:
        return {number: pickle.loads(data) for number, data in sent}
    except Exception as error:
        raise RunError(
            f"a problem cannot be read in a worker process: {one_line(error)}; give it plain "
            "values, or set rollout_worker.processes=0"
        ) from error


def leave() -> None:
    """End this process and whatever its workers have started."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(files: Mapping[str, str]) -> None:
    """Run a worker process; the descriptors of connection and shared memory are arguments.

    Args:
        files: where folders of the driver's machine are on this one.
    """
    relocate(files)
    connection, memory = map(int, sys.argv[1:3])
    process = WorkerProcess(Connection(connection), mmap.mmap(memory, SHARED))
    logging.getLogger().addHandler(_Forward(process))
    asyncio.run(process.serve())
