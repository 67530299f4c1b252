"""Calls in helper processes: limits that hold in C code, in threads and while others go on."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import DEADLINE

from plugrl.core.time_limited_pool import CallFailedError, LimitExceededError, TimeLimitedPool

#: Of processor time, for calls that take all of it.
SECONDS = 0.1


def interrupted(target, *arguments):
    before = os.times()
    with pytest.raises(LimitExceededError, match="of processor time"):
        TimeLimitedPool(target, seconds=SECONDS).call(*arguments)
    after = os.times()
    assert after.children_user - before.children_user < 5


def test_results_come_back_and_a_helper_serves_several_calls():
    calls = TimeLimitedPool("os:getppid", seconds=5)
    assert calls.call() == calls.call() == os.getpid()
    helpers = TimeLimitedPool("os:getpid", seconds=5)
    assert helpers.call() == helpers.call()


def test_code_that_holds_the_interpreter_is_ended():
    # One call of `re` that would take longer than the universe has.
    interrupted("re:match", r"(a+)+$", "a" * 60 + "b")


def test_it_is_ended_when_called_in_another_thread():
    failures = []

    def attempt():
        try:
            interrupted("builtins:pow", 7, 7**8, 10**400_000)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert failures == []


def test_after_an_end_another_helper_answers():
    calls = TimeLimitedPool("time:process_time", seconds=5)
    assert calls.call() >= 0
    hung = TimeLimitedPool("builtins:eval", seconds=SECONDS)
    with pytest.raises(LimitExceededError):
        hung.call("[1 for _ in iter(int, 1)]")
    assert hung.call("1 + 1") == 2


def test_memory_exceptions_exits_and_crashes_are_failures_of_the_call():
    calls = TimeLimitedPool("builtins:eval", seconds=5, memory=1 << 30)
    with pytest.raises(CallFailedError, match="more than 1024 MiB"):
        calls.call("bytearray(2 << 30)")
    with pytest.raises(CallFailedError, match="ZeroDivisionError"):
        calls.call("1 / 0")
    with pytest.raises(CallFailedError, match="SystemExit: 3"):
        calls.call("exit(3)")
    with pytest.raises(CallFailedError, match="exit code 9"):
        calls.call("__import__('os')._exit(9)")
    with pytest.raises(CallFailedError, match="signal 11"):
        calls.call("__import__('ctypes').string_at(0)")
    assert calls.call("2") == 2


def test_what_cannot_be_imported_is_named():
    with pytest.raises(CallFailedError, match="No module named 'no_such_module'"):
        TimeLimitedPool("no_such_module:f", seconds=1).call()


def test_awaited_calls_run_at_the_same_time_in_any_loop():
    calls = TimeLimitedPool("builtins:eval", seconds=5, helpers=2)
    slept = "[t := __import__('time'), t.monotonic(), t.sleep(0.5), t.monotonic()][1::2]"

    async def both():
        return await asyncio.gather(calls(slept), calls(slept))

    asyncio.run(both())
    one, other = asyncio.run(both())
    # Each begins before the other ends.
    assert one[0] < other[1]
    assert other[0] < one[1]


def test_what_is_printed_is_no_answer():
    calls = TimeLimitedPool("builtins:eval", seconds=1)
    assert calls.call("[print('x' * 10000), 5][1]") == 5


def test_a_stop_of_the_whole_group_does_not_cost_an_answer():
    calls = TimeLimitedPool("builtins:eval", seconds=5)
    stop = "[__import__('os').kill(__import__('os').getpid(), s) for s in (2, 15)] and 7"
    assert calls.call(stop) == 7
    assert calls.call("8") == 8


def test_a_helper_ends_with_its_parent(tmp_path):
    program = (
        "import sys\nfrom plugrl.core.time_limited_pool import TimeLimitedPool\n"
        "print(TimeLimitedPool('os:getpid', seconds=1).call(), flush=True)\n"
        "import os; os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    helper = int(done.stdout)
    deadline = time.monotonic() + DEADLINE
    while os.path.exists(f"/proc/{helper}/status") and time.monotonic() < deadline:
        if "State:\tZ" in Path(f"/proc/{helper}/status").read_text("utf-8"):
            break
        time.sleep(0.05)
    assert time.monotonic() < deadline
