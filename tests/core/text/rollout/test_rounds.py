"""Work that rollouts do together: who does it, on what, and who takes over from one that ends."""

import asyncio

import pytest

from plugrl.core.text.rollout.rounds import Round

LOOKS = 50


async def settled():
    """Let everything happen that needs no more than the loop."""
    for _ in range(LOOKS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("moment", ["waiting", "chosen", "working"])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_one_that_is_cancelled_leaves_the_work_to_the_others(who, moment):
    """Before the work is given out, when it was and nobody has begun, and in its midst."""
    done = []

    async def play():
        lockstep = Round(["policy"], lambda pending: None)
        for rollout in range(3):
            lockstep.rollout_started(rollout)
        gate = asyncio.Event()

        async def work(entries):
            if moment == "working" and not gate.is_set():
                gate.set()
                await asyncio.sleep(3600)
            done.append(list(entries))

        async def rollout(number):
            try:
                await lockstep.run_jointly(number, "abc"[number], work)
            finally:
                lockstep.rollout_ended(number)

        def begin(number):
            return asyncio.ensure_future(rollout(number))

        # The last one to come completes the gathering, which is seen one turn of the loop later.
        tasks = [begin(number) for number in (0, 1)]
        if moment == "waiting":
            await settled()
            if who < 2:
                tasks[who].cancel()
                await settled()
            tasks.append(begin(2))
            if who == 2:
                await asyncio.sleep(0)
                tasks[2].cancel()
        else:
            tasks.append(begin(2))
            await asyncio.sleep(0)
            if moment == "chosen":
                # The work is given out in this turn of the loop, before this call.
                asyncio.get_running_loop().call_soon(tasks[who].cancel)
            else:
                await asyncio.wait_for(gate.wait(), 60)
                # The first one works; when another is cancelled, it goes on, and so it is ended.
                tasks[who].cancel()
                await settled()
                tasks[0].cancel()
        await settled()
        assert all(task.done() for task in tasks)
        return {number for number, task in enumerate(tasks) if task.cancelled()}

    cancelled = asyncio.run(play())
    assert cancelled == ({0, who} if moment == "working" else {who})
    # The first one is given what all had brought, and does it for one that has ended since, too.
    kept = moment == "chosen" and who != 0
    left = [letter for number, letter in enumerate("abc") if kept or number not in cancelled]
    assert done == [left]
