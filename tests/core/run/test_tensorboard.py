import sys

import pytest

from plugrl.core.errors import PluginError
from plugrl.plugins.tensorboard.tracker import TensorBoardTracker


def test_scalars_can_be_read_back_and_a_resume_purges(make_run):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = make_run(trackers=[TensorBoardTracker({})])
    with run:
        run.sample("texts", {"text": "hello"})
        for step in (1, 2, 3):
            run.end_step(step, {"value": step / 2})
    resumed = TensorBoardTracker({})
    run.step = 1
    resumed.start(run)
    resumed.log(2, {"value": 9.0})
    resumed.finish("done")
    events = accumulator.EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("value")] == [(1, 0.5), (2, 9.0)]
    assert events.Tags()["tensors"] == ["texts/text_summary"]


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(PluginError, match=r'pip install "plugrl\[tensorboard\]"'):
        TensorBoardTracker({})
