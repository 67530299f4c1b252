"""Whether a run that has ended is complete, or may be taken up again."""

import json
import shutil

import pytest
from run_driver import Toy

from plugrl.core.errors import PlugrlDeprecationWarning
from plugrl.core.run.initialization import is_complete


@pytest.mark.parametrize(
    ("opened", "lost", "complete"),
    [
        (False, [], True),
        (False, [1], True),
        (False, [3], False),
        # Nothing is left to go on from.
        (False, [1, 3], True),
        (True, [], False),
    ],
)
def test_a_run_is_complete_when_it_is_done_and_saved_to_its_end(make_run, opened, lost, complete):
    """Saved after step 1 and at its end; ``opened``: by a limit; ``lost``: deleted since."""
    run = make_run(settings={"checkpoint_every": 0})
    run.attach(Toy())
    with run:
        for step in range(1, 4):
            run.end_step(step, {"value": 1.0}, save=step == 1)
            assert not is_complete(run.folder)
        if opened:
            run.mark_resumable("it was enough")
    for step in lost:
        shutil.rmtree(run.folder / "checkpoints" / f"step-{step:08d}")
    assert json.loads((run.folder / "status.json").read_text("utf-8"))["state"] == "done"
    assert is_complete(run.folder) == complete


def test_a_run_that_saves_nothing_is_complete_when_it_is_done(make_run):
    run = make_run()
    with run:
        run.end_step(1, {"value": 1.0})
    assert is_complete(run.folder)


def test_a_run_is_left_open_by_the_name_of_0_1_too(make_run):
    run = make_run()
    with pytest.warns(PlugrlDeprecationWarning, match="write mark_resumable"):
        run.leave_open("it was enough")
    with run:
        run.end_step(1, {"value": 1.0})
    assert not is_complete(run.folder)
