"""Rollouts of the workers of ``agents.py`` in actors."""

from collector import AGENTS, Collector

from plugrl.core.config.check import configure
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import Registry
from plugrl.core.text.rollout.lockstep import LockstepRollouts
from plugrl.core.text.rollout.processes.lockstep import PooledRollouts
from plugrl.core.text.rollout.processes.messages import worker_setup
from plugrl.core.text.rollout.processes.pool import WorkerPool
from plugrl.plugins.ray.rollouts import RayExecutor


class OnActors(Collector):
    """Collects rollouts in actors; with 0 processes, here."""

    def __init__(self, notes, **executor):
        super().__init__(notes, None)
        self.executor = RayExecutor({"workers": 2, **executor})
        self.pool = WorkerPool(8, None, self.executor)
        self.prepared = False

    def rollouts(self, name, processes, **section):
        registry = Registry()
        record = registry.load_path("rollout_worker", AGENTS, name)
        factory = Factory(registry, {"rollout_worker": record})
        view = configure(registry.load(record), section)
        worker = factory.build("rollout_worker", view, "rollout_worker")
        services, pooled = {"policy": self.engine}, None
        if processes:
            setup = worker_setup(factory, view, services)
            if not self.prepared:
                self.executor.prepare(setup)
                self.prepared = True
            pooled = PooledRollouts(self.pool, processes, setup, worker, services)
        return LockstepRollouts(worker, services, 5, pooled=pooled, timeout=view.timeout)

    @property
    def places(self):
        return list(self.pool.places().values())
