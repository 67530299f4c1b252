"""Programs end with whatever they started, wherever it hides and however they end themselves."""

import asyncio
import gc
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest
from waiting import wait_until

from plugrl.core.errors import ConfigError
from plugrl.core.text.endpoint.clients import programs, reaper

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the environment of processes")
# A child keeps away from: the session's mark, the group, and SIGTERM.
HIDING = {
    "stubborn": "trap '' TERM; sleep 1000 & echo $! > note; trap - TERM",
    "without the mark": "trap '' TERM; env -i sleep 1000 & echo $! > note; trap - TERM",
    "outside the group": "setsid sleep 1000 & echo $! > note",
}


def run(script, folder, *, until=None, starting=False):
    """Run a script of a shell; with ``until`` it is cancelled as soon as that file is written.

    With ``starting`` nothing else happens in this process between its start and that.
    """

    async def inner():
        session = f"program-{os.getpid()}"
        words = ["sh", "-c", script]
        variables = {reaper.MARK: session}
        running = asyncio.ensure_future(
            programs.run_program(
                words, variables=variables, given=b"in", folder=folder, session=session
            )
        )
        while until is not None and not (until.exists() and until.read_text().endswith("\n")):
            # The first turns of the loop start it.
            await asyncio.sleep(0 if starting else 0.01)
            await asyncio.sleep(0)
            if starting:
                wait_until(lambda: until.exists() and until.read_text().endswith("\n"))
        if until is not None:
            running.cancel()
        return await asyncio.wait_for(running, 20)

    return asyncio.run(inner())


def gone(pid):
    """Whether a process has ended, though nobody may have asked how."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text("utf-8")
    except FileNotFoundError:
        return True


@linux
@pytest.mark.parametrize("how", ["ends", "is cancelled", "is cancelled as it starts"])
@pytest.mark.parametrize("hiding", HIDING)
def test_no_child_outlives_its_program(monkeypatch, tmp_path, hiding, how):
    # Whoever holds the outputs is killed, not waited for.
    monkeypatch.setattr(programs, "_DRAIN", 3600.0)
    note = tmp_path / "note"
    if how == "ends":
        assert run(f"{HIDING[hiding]}; cat; exit 3", tmp_path).code == 3
    else:
        with pytest.raises(asyncio.CancelledError):
            run(f"{HIDING[hiding]}; wait", tmp_path, until=note, starting=how.endswith("starts"))
    pid = int(note.read_text())
    wait_until(lambda: gone(pid))


def test_outputs_exit_code_and_input(tmp_path):
    ended = run("cat; echo out; echo err >&2; exit 4", tmp_path)
    assert ended == programs.ProgramResult(4, "inout\n", "err\n")


@linux
def test_pipes_that_a_child_out_of_reach_keeps_open_do_not_outlive_the_loop(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "_DRAIN", 0.01)
    # What other tests left is none of this one's.
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        script = "echo out; setsid env -i sleep 1000 & echo $! > note; sleep 0.1"
        assert run(script, tmp_path).out == "out\n"
        gc.collect()
    os.kill(int((tmp_path / "note").read_text()), signal.SIGKILL)
    assert not [each for each in caught if "unclosed transport" in str(each.message)]


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("no-such-program", ConfigError, "cannot start 'no-such-program': No such file"),
        ("./note", ConfigError, "cannot start './note': Permission denied"),
        ("./empty", programs.ProgramError, "the program cannot be started: .*Exec format error"),
    ],
)
def test_what_cannot_be_started_is_told(tmp_path, word, error, said):
    (tmp_path / "note").write_text("")
    (tmp_path / "empty").write_text("")
    (tmp_path / "empty").chmod(0o755)

    async def start():
        await programs.run_program([word], variables={}, given=b"", folder=tmp_path, session="none")

    with pytest.raises(error, match=said):
        asyncio.run(start())
