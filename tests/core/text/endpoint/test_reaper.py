"""What the reaper kills when its owner is gone, and what it leaves alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.text.endpoint.clients import reaper

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")

# The file alone: a program that imports the package takes longer than what is tested.
OWNER = """
import os, runpy, signal, sys
watch = runpy.run_path(sys.argv[1])["REAPER"]
for word in sys.argv[2:]:
    session, _, group = word.partition(":")
    if session.startswith("-"): watch.forget(session[1:])
    else: watch.watch(session, int(group or 0))
os.kill(os.getpid(), signal.SIGKILL)
"""


def sleeper(session):
    """A process that leads a group of its own, in a session or with an empty environment."""
    env = {} if session is None else {reaper.MARK: session}
    return subprocess.Popen(["/bin/sleep", "1000"], env=env, start_new_session=True)


def test_nothing_is_started_to_forget_what_was_never_watched():
    own = reaper.Reaper()
    own.forget("s")
    assert own._process is None


def test_what_a_killed_owner_had_started_is_killed_and_nothing_else():
    name = f"reaped-{os.getpid()}"
    group, marked = sleeper(None), sleeper(f"{name}-1")
    ended, other = sleeper(f"{name}-2"), sleeper(f"{name}-3")
    try:
        words = [f"{name}-0:{group.pid}", f"{name}-1", f"{name}-2:{ended.pid}", f"-{name}-2"]
        owner = subprocess.run([sys.executable, "-S", "-c", OWNER, reaper.__file__, *words])
        assert owner.returncode == -9
        assert group.wait(DEADLINE) == -9
        assert marked.wait(DEADLINE) == -9
        assert ended.poll() is None
        assert other.poll() is None
    finally:
        for each in (group, marked, ended, other):
            each.kill()
            each.wait()
