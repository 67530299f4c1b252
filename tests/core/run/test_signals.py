"""When a stop is asked for: before the first step, in the last one, while a run is made."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_driver import Toy

from plugrl.core.errors import RunInterrupted, RunTerminated
from plugrl.core.run.folder import summarize
from plugrl.core.run.process.signals import defer_signals
from plugrl.core.run.run import Run

ASKED = [
    (signal.SIGTERM, RunTerminated, "terminated"),
    (signal.SIGINT, RunInterrupted, "interrupted"),
]


WATCHED = """
import signal, sys, time
from plugrl.core.run.process.signals import SignalWatch

asked, first, second = signal.Signals[sys.argv[1]], [], []
before = signal.getsignal(asked)
watch = SignalWatch(first.append, second.append)
watch.install()
signal.raise_signal(asked)
while not first: time.sleep(0.01)
signal.raise_signal(asked)
while len(second) < 2: time.sleep(0.01)
watch.uninstall()
assert first == [asked] and second == [asked] * 2 and watch.requested is asked
assert signal.getsignal(asked) is before
"""


@pytest.mark.parametrize("asked", ["SIGINT", "SIGTERM"])
def test_the_first_signal_asks_once_and_both_who_watch_see_the_second(asked):
    """The handler and the thread: neither waits for the other, whoever comes first."""
    # In a process of its own: a handler that waits could not be left again.
    subprocess.run([sys.executable, "-c", WATCHED, asked], check=True, timeout=30)


SUSPENDED = """
import asyncio, pathlib, signal, sys, time
from run_driver import Toy, make

run = make(pathlib.Path.cwd(), "hang")
run._deadlines._grace = 0.2
run.attach(Toy())
with run:
    if "asyncio" in sys.argv:
        loop = asyncio.new_event_loop()
        # Whose own descriptor is told of signals then, and nobody's once it is closed.
        loop.add_signal_handler(signal.SIGUSR1, print)
        loop.close()
    with run.phase("rollout"):
        print("ready", flush=True)
        # Busy, so that the thread that watches is late when the process goes on.
        end = time.process_time() + 0.3
        while time.process_time() < end: pass
    run.end_step(1, {"value": 1.0})
assert signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
print("done")
"""


def suspended(tmp_path, *words, **how):
    """A run in a process of its own, to which a terminal sends Ctrl-Z twice."""
    process = subprocess.Popen(
        [sys.executable, "-c", SUSPENDED, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        **how,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTSTP)
    process.send_signal(signal.SIGTSTP)
    return process


@pytest.mark.integration
def test_a_run_that_no_shell_could_let_go_on_is_not_suspended(tmp_path):
    process = suspended(tmp_path, start_new_session=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "done\n", "")


@pytest.mark.integration
@pytest.mark.parametrize("descriptor", ["own", "asyncio"])
def test_the_time_in_which_a_terminal_has_suspended_a_run_counts_against_no_deadline(
    tmp_path, descriptor
):
    # A group of its own in this session, as a job of a shell has.
    process = suspended(tmp_path, descriptor, process_group=0)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    # Longer than the deadline, and than the gap between ticks that is taken for a suspension.
    time.sleep(7)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "done\n", "")


FORKING = """
import os, signal, time
from plugrl.core.run.process.signals import SignalWatch

asked = []
watch = SignalWatch(asked.append, asked.append)
watch.install()
ready, own = os.pipe()
child = os.fork()
if child == 0:
    os.write(own, b"1")
    time.sleep(20)
    os._exit(1)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
time.sleep(0.3)
assert not asked, asked
assert signal.getsignal(signal.SIGTERM) == watch._handle
"""


def test_a_signal_to_a_forked_process_is_none_to_the_run():
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=30)


class Finite(Toy):
    """A toy that knows how many steps it takes."""

    total = 2

    @property
    def complete(self):
        return self.done >= self.total


def train(run, toy, asked, at):
    run.attach(toy)
    with run:
        while toy.done < Finite.total:
            with run.phase("rollout"):
                value = toy.step()
                if toy.done == at:
                    signal.raise_signal(asked)
            run.end_step(toy.done, {"value": value})


@pytest.mark.parametrize(("asked", "error", "state"), ASKED)
def test_a_signal_in_the_last_step_leaves_a_run_that_is_done(make_run, asked, error, state):
    run = make_run()
    train(run, Finite(), asked, at=2)
    ended = summarize(run.folder)
    assert (ended.state, ended.step, ended.error) == ("done", 2, None)
    other = make_run()
    with pytest.raises(error, match="(?m)after step 1$"):
        train(other, Finite(), asked, at=1)
    assert summarize(other.folder).state == state


@pytest.mark.parametrize(("asked", "error", "state"), ASKED)
def test_a_signal_while_a_run_is_made_ends_it_before_its_first_step(make_run, asked, error, state):
    before = signal.getsignal(asked)

    def begin():
        with defer_signals():
            run = make_run()
            made.append(run)
            os.kill(os.getpid(), asked)
            assert summarize(run.folder).state == "running"
            train(run, Finite(), asked, at=0)

    made: list[Run] = []
    with pytest.raises(error, match="(?m)before the first step$") as caught:
        begin()
    assert caught.value.__notes__ == [made[0].resume_command]
    assert summarize(made[0].folder).state == state
    assert signal.getsignal(asked) is before
    # It can be taken up, from the beginning.
    again = Run.open(made[0].folder)
    train(again, Finite(), asked, at=0)
    assert summarize(again.folder).state == "done"


def test_a_signal_that_no_run_has_taken_counts_afterwards():
    def fail():
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("no run")

    with pytest.raises(KeyboardInterrupt):
        fail()
