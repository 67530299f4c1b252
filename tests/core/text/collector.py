"""Rollouts of the workers of ``agents.py``, in the driver or in processes."""

import os
from pathlib import Path

import engines

from plugrl.core.config.check import configure
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.data.loader import Prompt
from plugrl.core.text.inference.sampling import SamplingParams
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.processes.lockstep import PooledRollouts
from plugrl.core.text.rollout.processes.messages import worker_setup
from plugrl.core.text.rollout.processes.pool import WorkerPool
from plugrl.plugins.transformers.tokenizer import CharacterTokenizer

AGENTS = Path(__file__).parent / "agents.py"
SAMPLING = SamplingParams(max_new_tokens=2)


class Engine(engines.Engine):
    """It notes prompts besides, and its tokenizer can be sent."""

    tokenizer = CharacterTokenizer("".join(map(chr, range(32, 126))))
    vocabulary_size = 96

    def noted(self, request):
        return tuple(request.prompt_tokens), request.stream


def prompts(items=4):
    """Two attempts at each problem."""
    return [
        Prompt({"prompt": "ab"[: 1 + i % 2]}, i, run, f"0/{i}", i)
        for i in range(items)
        for run in range(2)
    ]


class Collector:
    """Collects rollouts.

    Args:
        notes: a folder for what the workers write; processes learn of it when they start.
        pool: the processes.
    """

    def __init__(self, notes, pool):
        self.notes = notes
        self.pool = pool
        self.engine = Engine()

    def fresh(self, max_restarts):
        """Use processes that no other test uses."""
        self.pool = WorkerPool(max_restarts)

    def rollouts(self, name, processes, **section):
        registry = Registry()
        record = registry.load_path("rollout_worker", AGENTS, name)
        factory = Factory(registry, {"rollout_worker": record})
        cls = registry.load(record)
        view = configure(cls, {**section, "processes": processes})
        worker = factory.build("rollout_worker", view, "rollout_worker")
        services = {"policy": self.engine}
        pooled = None
        if processes:
            setup = worker_setup(factory, view, services)
            pooled = PooledRollouts(self.pool, processes, setup, worker, services)
        return LockstepRollouts(worker, services, 5, pooled=pooled, timeout=view.timeout)

    def __call__(self, name, processes, *, items=4, step=7, is_val=False, engine=None, **section):
        self.engine = engine or Engine()
        for note in self.notes.iterdir():
            note.unlink()
        rollouts = self.rollouts(name, processes, **section)
        return rollouts.collect(prompts(items), step, SAMPLING, is_val=is_val)


def without_pid(trajectories):
    for trajectory in trajectories:
        trajectory.extra_fields.pop("pid", None)
    return trajectories


def environment(notes):
    """What the workers read from the environment."""
    return {"AGENTS_NOTES": str(notes), "AGENTS_DRIVER": str(os.getpid())}
