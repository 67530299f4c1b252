"""The contract of trackers.

Run it with ``--plugrl-tracker NAME``, or subclass :class:`TrackerContract` with an attribute
``plugrl_tracker``. A tracker gives as ``conformance``: ``config``, its section, and ``read``, a
function from the run folder to the rows that it stored, ``[(step, name, value), ...]``. Without
``read`` what it stored is not looked at.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plugrl.core.run.tracking.tracker import TrackedRun, Tracker
from plugrl.testing.contract import ComponentContract, needed

OUTCOMES = ("done", "failed", "interrupted", "terminated")
METRICS: tuple[Mapping[str, float], ...] = (
    {"train/loss": 1.5, "rollout/reward": 0.25},
    {"train/loss": 1.25, "rollout/reward": 0.5, "guards/clipped": 1},
    {"train/loss": 1.0},
)


class TrackerContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_tracker``."""

    kind = "tracker"
    defaults: ClassVar[Mapping[str, Any]] = {"read": None}

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The run folder, beside an empty working directory."""
        here = tmp_path / "here"
        run = tmp_path / "runs" / "conformance" / "20260101-000000-abcdef"
        for path in (here, run):
            path.mkdir(parents=True)
        monkeypatch.chdir(here)
        return run

    def run(self, folder: Path, *, step: int = -1, resumed: bool = False) -> TrackedRun:
        return TrackedRun(
            id=folder.name,
            folder=folder,
            step=step,
            resumed=resumed,
            experiment="conformance",
            project="",
            config={"seed": 0, "trainer": {"type": "kit", "steps": [1, 2], "name": None}},
        )

    def log(self, tracker: Tracker, first: int = 1) -> None:
        """Log the metrics of steps from ``first`` on."""
        for step, metrics in enumerate(METRICS, 1):
            if step >= first:
                tracker.log(step, dict(metrics))
                tracker.flush()

    def rows(self, example: Mapping[str, Any], folder: Path) -> list[tuple[int, str, float]]:
        needed(example, "read")
        found = [(int(s), str(n), float(v)) for s, n, v in example["read"](folder)]
        return sorted(row for row in found if row[1] in {n for m in METRICS for n in m})

    def expected(self, until: int = len(METRICS)) -> list[tuple[int, str, float]]:
        return sorted(
            (step, name, float(value))
            for step, metrics in enumerate(METRICS[:until], 1)
            for name, value in metrics.items()
        )

    def test_a_fresh_run_misses_nothing(self, make: Callable[[], Tracker], folder: Path) -> None:
        tracker = make()
        stored = tracker.start(self.run(folder))
        assert stored is None or stored == -1, "a fresh run has no step that is stored"
        self.log(tracker)
        tracker.finish("done")

    @pytest.mark.parametrize("outcome", OUTCOMES)
    def test_every_end_is_taken(
        self, make: Callable[[], Tracker], folder: Path, outcome: str
    ) -> None:
        tracker = make()
        tracker.start(self.run(folder))
        tracker.log(1, dict(METRICS[0]))
        tracker.finish(outcome)

    def test_numbers_that_are_not_finite_are_taken(
        self, make: Callable[[], Tracker], folder: Path
    ) -> None:
        tracker = make()
        tracker.start(self.run(folder))
        tracker.log(1, {"train/loss": math.nan, "train/grad_norm": math.inf, "train/n": 1})
        tracker.flush()
        tracker.finish("done")

    def test_samples_and_files_are_taken(
        self, make: Callable[[], Tracker], folder: Path, tmp_path: Path
    ) -> None:
        tracker = make()
        tracker.start(self.run(folder))
        tracker.sample("evaluation", {"step": 1, "prompt": "1+1=", "text": "<b>é\x00🙂</b>"})
        report = folder / "report.html"
        report.write_text("<html></html>", encoding="utf-8")
        tracker.artifact("report", report)
        tracker.finish("done")
        assert report.read_text(encoding="utf-8") == "<html></html>"

    def test_metrics_are_left_as_they_were(self, make: Callable[[], Tracker], folder: Path) -> None:
        tracker, metrics = make(), dict(METRICS[0])
        tracker.start(self.run(folder))
        tracker.log(1, metrics)
        tracker.finish("done")
        assert metrics == METRICS[0]

    def test_all_is_done_in_another_thread(self, make: Callable[[], Tracker], folder: Path) -> None:
        # As in a run, which makes it in the main thread and calls it in one of its own.
        tracker, faults = make(), []

        def work() -> None:
            try:
                tracker.start(self.run(folder))
                self.log(tracker)
                tracker.finish("done")
            except BaseException as error:
                faults.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert faults == []

    def test_it_writes_inside_the_run_folder(
        self, make: Callable[[], Tracker], folder: Path, tmp_path: Path
    ) -> None:
        tracker = make()
        tracker.start(self.run(folder))
        self.log(tracker)
        tracker.finish("done")
        assert list((tmp_path / "here").iterdir()) == [], "it writes into the working directory"
        assert list(folder.parent.iterdir()) == [folder]

    def test_every_number_is_stored_once(
        self, make: Callable[[], Tracker], folder: Path, example: Mapping[str, Any]
    ) -> None:
        tracker = make()
        tracker.start(self.run(folder))
        self.log(tracker)
        tracker.finish("done")
        assert self.rows(example, folder) == self.expected()

    def test_a_resumed_run_stores_no_step_twice(
        self, make: Callable[[], Tracker], folder: Path, example: Mapping[str, Any]
    ) -> None:
        first = make()
        first.start(self.run(folder))
        self.log(first)
        first.finish("interrupted")
        # The checkpoint is of step 2: step 3 is done again.
        second = make()
        stored = second.start(self.run(folder, step=2, resumed=True))
        assert stored is None or stored >= -1
        self.log(second, first=3 if stored is None else min(stored, 2) + 1)
        second.finish("done")
        assert self.rows(example, folder) == self.expected()

    def test_two_runs_do_not_mix(
        self, make: Callable[[], Tracker], folder: Path, example: Mapping[str, Any]
    ) -> None:
        other = folder.with_name("20260101-000001-fedcba")
        other.mkdir()
        one, two = make(), make()
        one.start(self.run(folder))
        two.start(self.run(other))
        self.log(one)
        two.log(1, dict(METRICS[0]))
        one.finish("done")
        two.finish("done")
        assert self.rows(example, folder) == self.expected()
        assert self.rows(example, other) == self.expected(1)


class TestTracker(TrackerContract):
    """The contract for every ``--plugrl-tracker``."""

    __test__ = True
