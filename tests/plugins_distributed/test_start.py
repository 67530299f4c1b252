"""Engines of the cluster and ranks start side by side; where one cannot, none of them is left."""

import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from here import CLUSTER, spec
from waiting import DEADLINE, wait_until

from plugrl.core.config.check import configure
from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError, RunError
from plugrl.core.factory import Factory
from plugrl.core.plugins.registry import default_registry
from plugrl.core.run.process import cluster as configured
from plugrl.core.text.models import Models
from plugrl.plugins.distributed import ranks as ranks_module
from plugrl.plugins.distributed import train_service
from plugrl.plugins.distributed.rank_actor import RankActor
from plugrl.plugins.distributed.train_service import FsdpTrainService
from plugrl.plugins.ray import replicas as replicas_module
from plugrl.plugins.ray.engines import RayInferenceService

pytestmark = pytest.mark.integration
ENGINE = {
    "custom_inference_service_module_path": str(Path(__file__).with_name("late_engine.py")),
    "custom_inference_service_class_name": "LateEngine",
}


def test_nobody_gets_the_port_of_a_rank_before_it_joins():
    actor = RankActor()
    host, port, process = actor.place()
    assert process == os.getpid()
    with pytest.raises(OSError, match="in use"):
        socket.create_server((host, port), reuse_port=False)
    actor._server.close()


class Loading:
    """Models whose engine waits to be told, loaded in a thread; what begins is noted."""

    def __init__(self, told, patch, ranks=2, each=1.0):
        self.told, self.models, self.error = told, None, None
        self.ranks = self.replicas = None
        ranks_module.end_idle()
        take, made = train_service.take_ranks, replicas_module.Replicas.begin

        def taken(*key):
            self.ranks = take(*key)
            return self.ranks

        def begun(replicas):
            made(replicas)
            self.replicas = replicas

        patch.setattr(train_service, "take_ranks", taken)
        patch.setattr(replicas_module.Replicas, "begin", begun)
        engine = {"engine": {**ENGINE, "told": str(told)}, "resources": {"CPU": each}}
        tree = {
            "source": spec().source,
            "inference": {"type": "ray", **configure(RayInferenceService, engine).to_dict()},
            "train": {
                "type": "fsdp",
                **configure(FsdpTrainService, {"learning_rate": 0.01, "workers": ranks}).to_dict(),
            },
        }
        self._section = ConfigView({"policy": tree}, "models")
        self._thread = threading.Thread(target=self._load, daemon=True)
        self._thread.start()

    def _load(self):
        try:
            self.models = Models.load(
                self._section, Factory(default_registry()), seed=0, device="cpu"
            )
        except BaseException as error:
            self.error = error

    def tell(self, text=""):
        """Let the engine load its model, or fail with ``text``."""
        whole = self.told.with_suffix(".new")
        whole.write_text(text, encoding="utf-8")
        whole.rename(self.told)

    def wait(self):
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self.models

    @property
    def processes(self):
        """Those of engines and ranks."""
        engines = [int(seat.place["pid"]) for seat, _ in self.replicas._loading]
        return [*engines, *self.ranks.processes]


@pytest.fixture
def begin(cluster, tmp_path, monkeypatch):
    return lambda **options: Loading(tmp_path / "told", monkeypatch, **options)


def gone(processes):
    return not any(Path(f"/proc/{each}").exists() for each in processes)


def test_ranks_load_while_engines_do_and_both_are_what_they_are_alone(begin, ranks):
    loading = begin()
    wait_until(lambda: loading.ranks is not None and len(loading.ranks._sent) == 2)
    sent = [ref for _, asked in loading.ranks._sent for ref in asked]
    # They have their parts of the model, and the engine still waits.
    ready, _ = loading.ranks._ray.wait(sent, num_returns=len(sent), timeout=DEADLINE)
    assert len(ready) == len(sent) == 4
    assert loading.replicas._loading
    assert loading.models is loading.error is None
    loading.tell()
    model = loading.wait()["policy"]
    model.train.sync_to(model.inference)
    weights = dict(model.train.weights())
    model.inference.close()
    model.train.close()
    # By the same processes.
    alone = ranks(spec(), timeout=1800.0)
    assert all(bool((alone.weights()[name] == value).all()) for name, value in weights.items())


def test_an_engine_that_cannot_load_ends_the_ranks_too(begin):
    loading = begin(ranks=1)
    wait_until(lambda: loading.ranks is not None)
    processes = loading.processes
    assert len(processes) == 2
    loading.tell("models.policy.source: has no weights")
    assert loading.wait() is None
    assert isinstance(loading.error, ConfigError)
    assert str(loading.error) == "models.policy.source: has no weights"
    wait_until(lambda: gone(processes))


def test_a_rank_that_dies_while_it_starts_is_named_and_nothing_is_left(begin):
    loading = begin()
    wait_until(lambda: loading.ranks is not None)
    processes = loading.processes
    os.kill(loading.ranks.processes[1], signal.SIGKILL)
    loading.tell()
    assert loading.wait() is None
    assert isinstance(loading.error, RunError)
    assert str(loading.error).startswith("rank 1 on node ")
    assert "was killed (out of memory?) while it " in str(loading.error)
    assert "\n" not in str(loading.error)
    wait_until(lambda: gone(processes))


def test_ranks_for_which_engines_leave_no_room_are_refused_and_the_engines_end(begin, monkeypatch):
    # Of a start that cannot be, this is what passes.
    short = replace(configured.settings(), start_timeout=2.0)
    monkeypatch.setattr(ranks_module, "settings", lambda: short)
    loading = begin(ranks=2, each=CLUSTER["cpus"] - 1.0)
    (seat,) = wait_until(lambda: loading.replicas and [s for s, _ in loading.replicas._loading])
    loading.wait()
    assert isinstance(loading.error, RunError)
    assert str(loading.error) == "2 ranks cannot be placed: others use what they need"
    wait_until(lambda: gone([int(seat.place["pid"])]))
