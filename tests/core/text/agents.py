"""Rollout workers of a user's file, good and bad, for the tests of worker processes."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from plugrl import RolloutWorker, Trajectory
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.worker import trajectory_of

SAMPLING = SamplingParams(max_new_tokens=2)


def in_a_worker_process():
    return os.environ["AGENTS_DRIVER"] != str(os.getpid())


def first_time(task, what):
    """Whether no attempt at this problem has been here, in any process."""
    try:
        Path(os.environ["AGENTS_NOTES"], f"{what}-{task.item}-{task.run_id}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Turns(RolloutWorker):
    """One to three turns; the trajectory tells which process made it."""

    async def rollout(self, task):
        tokens = task.tokenizers["policy"].encode(task.prompt)
        for turn in range(1 + task.item % 3):
            prompt = list(tokens)
            completion = await task.ask("policy", prompt, SAMPLING)
            tokens = prompt + completion.tokens
            await asyncio.sleep(0)
            self.between(task, turn)
        trajectory = trajectory_of(task, "policy", prompt, completion)
        trajectory.metrics["draw"] = task.random.random()
        trajectory.extra_fields["pid"] = os.getpid()
        return trajectory

    def between(self, task, turn):
        pass


def plain(task):
    tokens = task.tokenizers["policy"].encode(task.prompt)
    for _ in range(1 + task.item % 3):
        prompt = list(tokens)
        completion = task.ask_now("policy", prompt, SAMPLING)
        tokens = prompt + completion.tokens
    trajectory = trajectory_of(task, "policy", prompt, completion)
    trajectory.metrics["draw"] = task.random.random()
    return [trajectory]


async def awaiting(task, worker):
    prompt = task.tokenizers["policy"].encode(task.prompt)
    completion = await task.ask(worker.config.model, prompt, SAMPLING)
    return trajectory_of(task, "policy", prompt, completion)


class Silent(RolloutWorker):
    def rollout(self, task):
        own = {"group_id": task.group_id, "run_id": task.run_id}
        return Trajectory([2, 3], [0, 1], versions=[-1, 3], **own)


class ExitsOnce(Turns):
    def between(self, task, turn):
        if task.item in (2, 5) and turn == 1 and first_time(task, "exit"):
            os._exit(7)


class ExitsAlways(Turns):
    def between(self, task, turn):
        if task.item == 2 and turn == 1:
            os._exit(7)


class Killed(Turns):
    def between(self, task, turn):
        if task.item == 2 and turn == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Crashes(Turns):
    def between(self, task, turn):
        if task.item == 2 and turn == 1:
            ctypes.string_at(0)


class KilledWhileItWaits(Turns):
    """Another thread ends the process while no code of an attempt runs."""

    async def rollout(self, task):
        if task.item == 2 and first_time(task, "kill"):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
            await asyncio.sleep(60)
        return await super().rollout(task)


def hangs(task):
    if task.item == 1:
        if in_a_worker_process():
            subprocess.Popen(["sleep", "300.125"])
        while True:
            time.sleep(0.01)
    return plain(task)


class Blocks(Turns):
    def between(self, task, turn):
        if task.item == 1:
            time.sleep(300)


class Sleeps(Turns):
    #: The problem at which it does not end.
    bad = 1

    async def rollout(self, task):
        if task.item == self.bad:
            await asyncio.sleep(300)
        return await super().rollout(task)


class Swallows(Sleeps):
    """Goes on whatever is thrown into it."""

    async def rollout(self, task):
        while task.item == self.bad:
            try:
                await self.wait(task)
            except BaseException as error:
                if isinstance(error, GeneratorExit):
                    raise
        return await super().rollout(task)

    async def wait(self, task):
        await asyncio.sleep(0.01)


class SwallowsInATask(Swallows):
    """Waits for a task that goes on, so that no cancellation reaches the attempt."""

    async def wait(self, task):
        async def stubborn():
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(300)

        await asyncio.create_task(stubborn())


class AsksOn(Swallows):
    async def wait(self, task):
        await asyncio.sleep(300 if task.turns == 0 else 0)
        await task.ask("policy", [2], SAMPLING)


class CleansUp(Sleeps):
    async def rollout(self, task):
        try:
            return await super().rollout(task)
        finally:
            await asyncio.sleep(0.1)
            Path(os.environ["AGENTS_NOTES"], f"cleaned-{task.item}-{task.run_id}").touch()


WAYS = (Turns, Sleeps, Swallows, SwallowsInATask, AsksOn, CleansUp)


class Stuck(Turns):
    """Does not end at any problem but the first, each time in another way."""

    async def rollout(self, task):
        worker = WAYS[task.item](self.config)
        worker.bad = task.item
        return await worker.rollout(task)


class Interrupts(Turns):
    def between(self, task, turn):
        if task.item == 1:
            raise KeyboardInterrupt


def interrupts(task):
    if task.item == 1:
        raise KeyboardInterrupt
    return plain(task)


def unpicklable(task):
    trajectory = plain(task)[0]
    if task.item == 1:
        trajectory.extra_fields["call"] = lambda: None
    return trajectory


def large(task):
    trajectory = plain(task)[0]
    trajectory.extra_fields["blob"] = bytes(40_000_000)
    return trajectory


def raises(task):
    if task.item % 2:
        raise OSError("tool is down")
    return plain(task)


def nothing(task):
    return None


def lost(task):
    task.ask_now("judge", [2], SAMPLING)


def elsewhere(task):
    return Trajectory([2], [0], model="judge")


def outside(task):
    return Trajectory([2, 999], [0, 1])


def long(task):
    return Trajectory([2] * 65, [0] * 65)


def unsampled(task):
    trajectory = plain(task)[0]
    trajectory.loss_mask[0] = 1
    return trajectory


def wrong_mask(task):
    trajectory = plain(task)[0]
    if task.item == 1:
        trajectory.loss_mask.pop()
    return trajectory


def exits(task):
    sys.exit("tool is down") if task.item == 1 else None
    return plain(task)


def logs(task):
    logging.getLogger("plugrl.agents").warning("problem %d", task.item)
    return plain(task)


class Unbuildable(Turns):
    def __init__(self, config=None):
        super().__init__(config)
        if in_a_worker_process():
            os._exit(9)


class Eats(Turns):
    """Takes memory until its process is ended."""

    def between(self, task, turn):
        if (task.item, task.run_id, turn) == (2, 0, 1) and self.eats(task):
            held = []
            while len(held) < 120:
                held.append(bytes([len(held)]) * 10**8)
            time.sleep(300)

    def eats(self, task):
        return True


class EatsOnce(Eats):
    def eats(self, task):
        return first_time(task, "eat")
