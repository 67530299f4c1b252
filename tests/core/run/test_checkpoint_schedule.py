"""Checkpoints by steps and by time, with a clock that the test moves."""

import pytest

from plugrl.core.run.checkpoints import schedule as checkpoint_schedule
from plugrl.core.run.checkpoints.schedule import CheckpointSchedule


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(checkpoint_schedule, "time", clock)
    return clock


def test_by_steps_and_best_scores(clock):
    schedule = CheckpointSchedule(4, 0)
    assert [s for s in range(1, 13) if schedule.due(s, best=False)] == [4, 8, 12]
    assert schedule.due(5, best=True)
    clock.now += 1e9
    assert not schedule.due(5, best=False)


def test_by_time_since_the_last_one(clock):
    schedule = CheckpointSchedule(0, 5)
    clock.now += 299
    assert not schedule.due(7, best=True)
    clock.now += 1
    assert schedule.due(8, best=False)
    with schedule.saving():
        clock.now += 2
    clock.now += 299
    assert not schedule.due(9, best=False)
    clock.now += 1
    assert schedule.due(10, best=False)


def test_by_time_beside_steps(clock):
    schedule = CheckpointSchedule(100, 5)
    clock.now += 200
    assert schedule.due(100, best=False)
    with schedule.saving():
        pass
    clock.now += 200
    assert not schedule.due(101, best=False)
    clock.now += 100
    assert schedule.due(102, best=False)


def test_those_by_time_take_a_fiftieth_of_it(clock):
    schedule = CheckpointSchedule(0, 1)
    with schedule.saving():
        clock.now += 12
    clock.now += 599
    assert not schedule.due(1, best=False)
    clock.now += 1
    assert schedule.due(2, best=False)


def test_neither(clock):
    schedule = CheckpointSchedule(0, 0)
    clock.now += 1e9
    assert not schedule.due(1000, best=True)


class Counting:
    """Stands for a trainer: its state is how many steps it has done."""

    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def test_a_run_without_steps_between_checkpoints_goes_on_after_a_kill(make_run, clock):
    run, trainer = make_run(settings={"checkpoint_every": 0}), Counting()
    run.attach(trainer)
    run.__enter__()
    for step in range(1, 9):
        clock.now += 100
        trainer.done = step
        run.end_step(step, {})
    # Killed here: nothing is saved on the way out.
    kept = sorted(path.name for path in (run.folder / "checkpoints").glob("step-*"))
    assert kept == ["step-00000003", "step-00000006"]
    again = Counting()
    run.attach(again)
    assert run.restore() == 6
    assert again.done == 6
