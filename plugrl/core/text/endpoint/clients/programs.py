"""Programs that make attempts: starts them, and ends them with all their child processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.core.text.endpoint.clients.reaper import REAPER, kill_session

#: Bytes of each output that are kept, the last ones.
KEPT = 1 << 20
#: Seconds between SIGTERM and SIGKILL of a program that is ended.
GRACE = 0.5
#: Seconds between two looks whether a program has ended.
_LOOK = 0.02
#: Seconds in which output must have come after the program's end.
_DRAIN = 1.0


class ProgramError(Exception):
    """A program failed; the text says how, with the end of what it wrote to standard error."""


@dataclass(frozen=True)
class ProgramResult:
    """What a program left: its exit code, and the ends of its outputs."""

    code: int
    out: str
    err: str

    def check(self) -> None:
        """Raise unless the program ended well.

        Raises:
            ProgramError: it did not.
        """
        if self.code == 0:
            return
        if self.code < 0:
            known = -self.code in set(signal.Signals)
            how = f"was ended by {signal.Signals(-self.code).name if known else -self.code}"
        else:
            how = f"exited with code {self.code}"
        lines = [line.strip() for line in self.err.strip().splitlines() if line.strip()]
        tail = " | ".join(lines[-5:])[-600:]
        raise ProgramError(f"the program {how}" + (f": {tail}" if tail else ""))


async def run_program(
    words: Sequence[str],
    *,
    variables: Mapping[str, str],
    given: bytes,
    folder: str | Path | None,
    session: str,
) -> ProgramResult:
    """Run a program to its end; when this is cancelled, the program and its children are ended.

    Args:
        words: the program and its arguments.
        variables: over those of this process.
        given: its standard input.
        folder: where it runs; None: here.
        session: what ``PLUGRL_SESSION`` is for it and its children.

    Raises:
        ConfigError: there is no such program.
        ProgramError: it cannot be started.
    """
    environment = {**os.environ, **variables}
    # `python` is the one that runs this.
    own = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join(filter(None, (own, environment.get("PATH"))))
    REAPER.watch(session)
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *_resolve_program(words, environment["PATH"]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    )
    try:
        try:
            # Cancelled half started, asyncio would wait for all that hold the outputs by then.
            process = await asyncio.shield(starting)
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise ConfigError(
                f"rollout_worker.command: cannot start {words[0]!r}: {error.strerror}"
            ) from error
        except OSError as error:
            raise ProgramError(f"the program cannot be started: {one_line(error)}") from error
        REAPER.watch(session, process.pid)
        return await _run_to_end(process, given, session)
    finally:
        await asyncio.wait([starting])
        if starting.exception() is None:
            _kill(starting.result().pid, signal.SIGKILL)
            kill_session(session)
            # Pipes that a child keeps open would outlive the event loop.
            starting.result()._transport.close()  # type: ignore[attr-defined]
        REAPER.forget(session)


async def _run_to_end(
    process: asyncio.subprocess.Process, given: bytes, session: str
) -> ProgramResult:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    out, err = bytearray(), bytearray()
    feeding = asyncio.ensure_future(_feed(process.stdin, given))
    reading = [
        asyncio.ensure_future(_read(process.stdout, out)),
        asyncio.ensure_future(_read(process.stderr, err)),
    ]
    try:
        code = await _exit(process)
        # Children may hold the outputs open for ever.
        _, held = await asyncio.wait(reading, timeout=0.05)
        _kill(process.pid, signal.SIGKILL)
        if held:
            kill_session(session)
            await asyncio.wait(reading, timeout=_DRAIN)
    except asyncio.CancelledError:
        await _end(process)
        raise
    finally:
        for task in (feeding, *reading):
            task.cancel()
    return ProgramResult(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a program to end, and kill it if it does not."""
    _kill(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_exit(process), GRACE)


async def _exit(process: asyncio.subprocess.Process) -> int:
    """The exit code of a program; ``wait`` would wait for its outputs too."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK)
    return process.returncode


async def _feed(pipe: asyncio.StreamWriter, given: bytes) -> None:
    # Programs need not read it.
    with contextlib.suppress(OSError):
        pipe.write(given)
        await pipe.drain()
    with contextlib.suppress(OSError):
        pipe.close()


async def _read(pipe: asyncio.StreamReader, kept: bytearray) -> None:
    while chunk := await pipe.read(KEPT):
        kept += chunk
        del kept[:-KEPT]


def _kill(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


def _resolve_program(words: Sequence[str], path: str) -> list[str]:
    """``words`` with the program's place on ``path``; the system would look on its own path."""
    import shutil

    if os.sep in words[0]:
        return list(words)
    return [shutil.which(words[0], path=path) or words[0], *words[1:]]
