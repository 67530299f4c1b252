"""Event loops that end, whatever stops them."""

import asyncio

import pytest

from plugrl.core.errors import RunError
from plugrl.core.text.rollout.time_limits import end_all, run_coroutine


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("stops", [0, 1, 2])
@pytest.mark.parametrize("interrupt", [None, SystemExit, KeyboardInterrupt])
def test_all_tasks_end_although_wishes_to_stop_still_wait(loop, stops, interrupt):
    ended = []

    async def waits(number):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(number)
            if interrupt is not None and number == 1:
                raise interrupt

    tasks = [loop.create_task(waits(number)) for number in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    for _ in range(stops):
        # As of a thread that closes what has just ended by itself, or of a second Ctrl-C.
        loop.call_soon_threadsafe(loop.stop)
    end_all(loop)
    assert sorted(ended) == [0, 1, 2]
    assert all(task.done() for task in tasks)
    [task.exception() for task in tasks if not task.cancelled()]


def test_code_that_stops_the_loop_after_it_was_cancelled_keeps_no_other_from_its_end(loop):
    ended = []

    async def stops():
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
            ended.append(True)

    task = loop.create_task(stops())
    loop.run_until_complete(asyncio.sleep(0))
    end_all(loop)
    assert (ended, task.cancelled()) == ([True], True)


def test_code_that_stops_the_loop_is_said_to():
    async def stops():
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    with pytest.raises(RunError, match=r"stopped the event loop that it runs in; take loop.stop"):
        run_coroutine(stops())
