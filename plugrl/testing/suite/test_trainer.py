"""The contract of trainers.

Run it with ``--plugrl-trainer NAME``, or subclass :class:`TrainerContract` with an attribute
``plugrl_trainer``. A trainer that needs other sections than the kit's tiny text task declares
them as ``conformance = {"data": {...}, ...}``; ``None`` removes one.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.experiment import TrainedRun, prepare, resume, start
from plugrl.core.plugins.callbacks import as_callbacks
from plugrl.core.trainer import Capabilities, Trainer
from plugrl.testing import tiny
from plugrl.testing.attributes import Attributes, forgotten
from plugrl.testing.comparison import assert_equal_states, comparable_metrics
from plugrl.testing.contract import ComponentContract
from plugrl.testing.recorder import Recorder, order_faults

#: Limit of processor time for two steps of the tiny task, which take less than a second.
SECONDS = 60.0


def checkpoint_names(folder: Path) -> list[str]:
    """The names of the checkpoints of a run, oldest first."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if path.is_dir())


def copy_until(run: TrainedRun, kept: int, folder: Path) -> Path:
    """A copy of a run as it was after its first ``kept`` checkpoints."""
    shutil.copytree(run.folder, folder)
    for later in checkpoint_names(folder)[kept:]:
        shutil.rmtree(folder / "checkpoints" / later)
    return folder


def why_it_differs(run: TrainedRun, trainer: type[Trainer], kept: int, folder: Path) -> str:
    """Why a resumed run differs: the attributes that training changed and no state holds.

    Args:
        run: the uninterrupted one.
        trainer: its class; both runs are repeated, to look at its attributes.
        kept: checkpoints of the run that was resumed.
        folder: for the repeated runs.
    """
    whole, resumed = Attributes(trainer), Attributes(trainer)
    with whole.watched():
        again = tiny.merged(run.config, {"settings": {"runs_folder": str(folder / "whole")}})
        start(prepare(again), as_callbacks([whole]))
    with resumed.watched():
        resume(copy_until(run, kept, folder / "resumed"), callbacks=[resumed])
    names = forgotten(whole, resumed, kept)
    if not names:
        return (
            "the resumed run differs, and no attribute of the trainer tells why: look at variables "
            "inside train(), at globals, and at objects that the trainer only borrows"
        )
    return (
        f"the resumed run differs: training changed {', '.join(f'self.{name}' for name in names)}, "
        "and load_state_dict did not bring it back; return it from state_dict, and take it back "
        "in load_state_dict"
    )


class TrainerContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_trainer``."""

    kind = "trainer"

    @pytest.fixture
    def trainer(self, cls: type[Trainer]) -> type[Trainer]:
        """The class of the trainer."""
        return cls

    def test_it_says_what_it_can(self, trainer: type[Trainer]) -> None:
        assert isinstance(trainer.capabilities, Capabilities)

    def test_its_config_is_a_documented_dataclass(self, trainer: type[Trainer]) -> None:
        config = trainer.Config
        assert dataclasses.is_dataclass(config)
        text = (config.__doc__ or "").strip()
        # Without a docstring of its own a dataclass gets its signature as one.
        assert text, f"{config.__name__} has no docstring"
        assert not text.startswith(f"{config.__name__}("), f"{config.__name__} has no docstring"

    def test_the_example_is_valid(self, plugrl_trainer_config: dict[str, Any]) -> None:
        assert prepare(plugrl_trainer_config).validated.tree["trainer"]["type"]

    def test_an_unknown_key_is_refused(  # type: ignore[override]
        self, plugrl_trainer_config: dict[str, Any]
    ) -> None:
        wrong = tiny.merged(plugrl_trainer_config, {"trainer": {"no_such_key_anywhere": 1}})
        with pytest.raises(ConfigError) as caught:
            prepare(wrong)
        assert any("no_such_key_anywhere" in fault for fault in caught.value.faults)

    def test_it_trains(self, plugrl_run: TrainedRun, plugrl_recorder: Recorder) -> None:
        assert plugrl_run.status["state"] == "done"
        assert plugrl_run.metrics, "train() ended no step; call self.run.end_step(step, metrics)"
        assert plugrl_recorder.seconds < SECONDS
        assert not any(plugrl_recorder.complete[:-1]), (
            "complete is true at the end of a step that another one follows"
        )

    def test_hooks_are_called_in_order(
        self, plugrl_run: TrainedRun, plugrl_recorder: Recorder
    ) -> None:
        assert order_faults(plugrl_recorder.calls) == []

    def test_it_stops_when_asked(
        self, plugrl_trainer_config: dict[str, Any], trainer: type[Trainer]
    ) -> None:
        recorder = Recorder(stop=True)
        run = tiny.train(plugrl_trainer_config, recorder)
        assert run.status["state"] == "done"
        assert len(recorder.ended_steps) == 1
        if trainer.capabilities.resume:
            assert run.checkpoint()["run"]["step"] == recorder.ended_steps[0]

    def test_equal_seeds_give_equal_numbers(
        self, plugrl_run: TrainedRun, plugrl_trainer_config: dict[str, Any]
    ) -> None:
        again = start(prepare(plugrl_trainer_config))
        assert comparable_metrics(again) == comparable_metrics(plugrl_run)

    def test_it_writes_inside_its_run_folder(
        self, plugrl_run: TrainedRun, plugrl_trainer_config: dict[str, Any]
    ) -> None:
        runs = Path(plugrl_trainer_config["settings"]["runs_folder"])
        assert {path.name for path in runs.parent.iterdir()} <= {"runs", "problems.jsonl", "cwd"}
        assert list(tiny.working_directory(plugrl_trainer_config).iterdir()) == []
        assert list(runs.iterdir()) == [plugrl_run.folder.parent]

    def test_resumed_it_equals_the_uninterrupted_run(
        self, plugrl_run: TrainedRun, trainer: type[Trainer], tmp_path: Path
    ) -> None:
        if not trainer.capabilities.resume:
            pytest.skip("the trainer declares Capabilities(resume=False)")
        steps = checkpoint_names(plugrl_run.folder)
        assert len(steps) > 1, "a run of two steps must have two checkpoints"
        for kept in range(1, len(steps)):
            resumed = resume(copy_until(plugrl_run, kept, tmp_path / f"after-{steps[kept - 1]}"))
            try:
                assert comparable_metrics(resumed) == comparable_metrics(plugrl_run)
                assert_equal_states(
                    resumed.checkpoint()["trainer"], plugrl_run.checkpoint()["trainer"]
                )
            except AssertionError as error:
                cause = why_it_differs(plugrl_run, trainer, kept, tmp_path / f"why-{kept}")
                raise AssertionError(f"{cause}\n{error}") from error


class TestTrainer(TrainerContract):
    """The contract for every ``--plugrl-trainer``."""

    __test__ = True
