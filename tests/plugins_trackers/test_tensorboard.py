import sys

import pytest

from plugrl.core.errors import PluginError

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from plugrl.plugins.tensorboard.events import events
from plugrl.plugins.tensorboard.tracker import TensorBoardTracker


def read(folder):
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    return events


def texts(events, name):
    return [
        (e.step, e.tensor_proto.string_val[0].decode())
        for e in events.Tensors(f"{name}/text_summary")
    ]


def test_everything_of_a_run_is_there(make_run, train):
    run = make_run(TensorBoardTracker(), models={"judge": {"api_key": "sk-123"}})
    train(run, 3)
    found = read(run.folder / "tensorboard")
    assert [(e.step, e.value) for e in found.Scalars("train/loss")][:2] == [(1, 1), (2, 0.5)]
    assert texts(found, "answers")[1] == (
        2,
        "| prompt | answer | reward |\n| --- | --- | --- |\n| 2+1= | a\\|2 | 0.5 |",
    )
    ((step, config),) = texts(found, "config")
    assert step == 0
    assert "    experiment_name: toy\n" in config
    assert "<hidden>" in config
    assert "sk-123" not in config


def test_a_resume_goes_on_with_no_step_doubled_and_none_lost(make_run, train):
    run = make_run(TensorBoardTracker())
    train(run, 6, save_at=(3,), crash=True)
    run._trackers.drain()
    run._shutdown._lock.release()
    train(make_run(TensorBoardTracker(), folder=run.folder), 8)
    found = read(run.folder / "tensorboard")
    assert [e.step for e in found.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step, _ in texts(found, "answers")] == [0, 2, 3, 4, 5, 6, 7, 8]
    assert len(texts(found, "config")) == 1


def test_what_a_kill_lost_is_written_again(make_run, train):
    run = make_run(TensorBoardTracker())
    train(run, 4)
    (path,) = (run.folder / "tensorboard").iterdir()
    (end, *_) = [end for event, end in events(path) if event.step == 2]
    path.write_bytes(path.read_bytes()[: end + 9])
    assert texts(read(run.folder / "tensorboard"), "answers")[-1][0] < 3
    train(make_run(TensorBoardTracker(), folder=run.folder), 5)
    found = read(run.folder / "tensorboard")
    assert [e.step for e in found.Scalars("train/loss")] == [1, 2, 3, 4, 5]


def test_a_run_without_a_checkpoint_begins_anew(make_run, train):
    run = make_run(TensorBoardTracker())
    train(run, 2, crash=True)
    run._trackers.drain()
    run._shutdown._lock.release()
    train(make_run(TensorBoardTracker(), folder=run.folder), 3)
    found = read(run.folder / "tensorboard")
    assert [e.step for e in found.Scalars("train/loss")] == [1, 2, 3]


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PluginError, match=r'pip install "plugrl\[tensorboard\]"'):
        TensorBoardTracker({})
