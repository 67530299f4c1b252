"""Full collections pass over what a run has set up, and see it again when the run ends."""

import gc
import weakref

import pytest

from plugrl.core.run.process.garbage_collection import WARM_UP, GarbageCollection


@pytest.fixture(autouse=True)
def as_before():
    # What tests before this one left makes full collections slow.
    gc.freeze()
    yield
    gc.unfreeze()


class Circle:
    """Lives until a collection finds it, as models do."""

    def __init__(self):
        self.itself = self


def warm(garbage):
    for _ in range(WARM_UP):
        garbage.end_step()


def test_what_was_there_before_is_passed_over_until_it_is_thawed():
    garbage, early = GarbageCollection(), Circle()
    seen_early = weakref.ref(early)
    warm(garbage)
    late = Circle()
    seen_late = weakref.ref(late)
    del early, late
    gc.collect()
    assert seen_early() is not None
    assert seen_late() is None
    garbage.thaw()
    gc.collect()
    assert seen_early() is None


def test_garbage_of_the_set_up_is_collected_first():
    lost = Circle()
    seen = weakref.ref(lost)
    del lost
    warm(GarbageCollection())
    assert seen() is None


def test_a_run_freezes_after_its_first_steps_and_thaws_at_its_end(make_run):
    run = make_run()
    with run:
        for step in range(WARM_UP - 1):
            run.end_step(step, {})
        before = gc.get_freeze_count()
        run.end_step(WARM_UP - 1, {})
        frozen = gc.get_freeze_count()
        assert frozen > before
        kept = [Circle() for _ in range(1000)]
        run.end_step(WARM_UP, {})
        assert gc.get_freeze_count() <= frozen
    assert gc.get_freeze_count() == 0
    assert len(kept) == 1000
