"""``Run``: a training's interface to its run folder, from the first file to the exit code."""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from plugrl.core.config.hidden import withhold
from plugrl.core.config.schemas.sections import RuntimeMonitorConfig, SettingsConfig
from plugrl.core.errors import RunError, RunInterrupted, RunTerminated, StopRun, UsageError
from plugrl.core.plugins.user_code.working_folder import absolute_path, display_path
from plugrl.core.renamed_methods import RenamedMethods
from plugrl.core.run import folder as folders
from plugrl.core.run.atomic_writes import remove_unfinished
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.checkpoints.compatibility import (
    CONFIG,
    check_resume,
    json_copy,
    warn_about_changes,
)
from plugrl.core.run.checkpoints.folder import checkpoint_folder
from plugrl.core.run.checkpoints.rng import rng_state, set_rng_state
from plugrl.core.run.checkpoints.schedule import CheckpointSchedule
from plugrl.core.run.deadlines import Deadlines
from plugrl.core.run.guards import Guards
from plugrl.core.run.initialization import (
    ComposedLike,
    ValidatedLike,
    check_plugins,
    create_run_folder,
    read_config,
)
from plugrl.core.run.loaded_state import restore_state
from plugrl.core.run.process.heap import GarbageCollection
from plugrl.core.run.process.signals import SignalWatch, write_stderr
from plugrl.core.run.progress import DETAIL, Bar, Progress
from plugrl.core.run.records.headline import headline_metric
from plugrl.core.run.records.places import Places
from plugrl.core.run.records.records import RunRecords, State, Status, plain_numbers
from plugrl.core.run.records.timeline import Timeline
from plugrl.core.run.report.live import LiveReport
from plugrl.core.run.resources import Item, ResourceCache
from plugrl.core.run.shutdown import Shutdown, outcome_of
from plugrl.core.run.tracking.group import TrackerGroup, make_tracked_run
from plugrl.core.run.tracking.tracker import Tracker

if TYPE_CHECKING:
    from plugrl.core.plugins.hooks import HookCaller
    from plugrl.core.run.lock import RunLock
    from plugrl.core.run.records.environment import ComponentRecord

log = logging.getLogger("plugrl.run")


class Stateful(Protocol):
    """The part of a trainer that a run relies on: what a checkpoint saves and restores."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Restore the state."""


class _FolderGoneError(RunError):
    """The run folder was deleted, moved or replaced while the run was going on."""


class Run(RenamedMethods):
    """One run: made by :meth:`create`, reopened by :meth:`open`, used in a ``with`` statement.

    The order is ``attach(trainer)``, ``restore()``, then ``with run: trainer.train()``. Leaving
    the ``with`` block ends the run. Without an exception it saves a last checkpoint and is
    ``done``; so it is after a ``StopRun``, which is swallowed. Other exceptions are recorded in
    ``status.json`` and propagate, with the command that resumes the run as a note.

    Attributes:
        folder: the run folder; absolute, because user code may change the working directory.
        id: its name, ``<time>-<id>``.
        step: the last completed step; 0 before the first.
        last_metrics: the metrics of that step.
        hooks: calls the hooks of the plugins.
        guards: the checks of ``runtime_monitor``.
        timeline: records what ran when.
        garbage: keeps full garbage collections out of the steps.
        best_score: the best score reported so far, earlier processes of the run included.
        phase_number: the phase that a trainer of several is in, counted from 1; 0: no phases.
    """

    phase_number = 0
    RENAMED_METHODS: ClassVar[Mapping[str, str]] = {"leave_open": "mark_resumable"}

    def __init__(
        self,
        folder: Path,
        tree: Mapping[str, Any],
        public: Mapping[str, Any],
        lock: RunLock,
        hooks: HookCaller | None,
        trackers: Sequence[Tracker],
    ) -> None:
        if hooks is None:
            from plugrl.core.plugins.hooks import HookCaller

            hooks = HookCaller()
        self.folder = folder
        self._folder_stat = os.stat(folder)
        self.id = folder.name
        self.step = 0
        self.last_metrics: dict[str, float | int] = {}
        self.best_score: float | None = None
        self.hooks = hooks
        self.settings = SettingsConfig.from_tree(tree.get("settings", {}))
        monitor = RuntimeMonitorConfig.from_tree(tree.get("runtime_monitor", {}))
        self._definition = {CONFIG: json_copy(public)}
        self.guards = Guards(monitor, folder / "dumps", self._definition)
        self._status = Status(folder)
        self._records = RunRecords(folder)
        self.timeline = Timeline(folder)
        self.places = Places(folder)
        self.garbage = GarbageCollection()
        self._trackers = TrackerGroup(trackers, self.settings.tracker_timeout)
        self._latest: dict[str, float | int] = {}
        self._progress = Progress(self.settings.progress, self._headline)
        self._schedule = CheckpointSchedule(
            self.settings.checkpoint_every, self.settings.checkpoint_minutes
        )
        self._report = LiveReport(folder, self._status.fields)
        self._shutdown = Shutdown(folder, lock, self._status, self._report)
        self._deadlines = Deadlines(
            lambda phase: self._shutdown.on_deadline(phase.name, phase.seconds, self.step)
        )
        self._signals = SignalWatch(
            self._on_stop_signal, self._shutdown.on_second_signal, self._deadlines.suspension
        )
        self._trainer: Stateful | None = None
        self._ended = -1
        self._score: float | None = None
        self._saved = -1
        self._stop: StopRun | None = None
        self._active = False
        self._resources = ResourceCache()

    @classmethod
    def create(
        cls,
        validated: ValidatedLike,
        composed: ComposedLike,
        *,
        hooks: HookCaller | None = None,
        trackers: Sequence[Tracker] = (),
        records: Iterable[ComponentRecord] = (),
        installed: Iterable[ComponentRecord] = (),
    ) -> Self:
        """Make the folder of a new run and take its lock.

        Args:
            validated: the configuration; its ``tree`` is saved as ``config.yaml``, without secrets.
            composed: the files and overrides that it was composed from.
            hooks: calls hooks; None: no plugins.
            trackers: where metrics go besides the run folder.
            records: components in use, for ``plugins.lock.json``.
            installed: components that are installed but not used.

        Raises:
            UsageError: the runs folder is not writable.
            RunError: the disk is full.
        """
        references = getattr(composed, "references", {})
        written = composed.tree if references else {}
        public, apart = withhold(validated.tree, references, written)
        origins = getattr(validated, "origins", {})
        folder, lock = create_run_folder(
            validated.tree, public, apart, composed, records, installed, origins
        )
        return cls(folder, validated.tree, public, lock, hooks, trackers)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        hooks: HookCaller | None = None,
        trackers: Sequence[Tracker] = (),
        records: Iterable[ComponentRecord] = (),
    ) -> Self:
        """Take the lock of an existing run, to resume it.

        Raises:
            UsageError: another process owns it, or it is not writable.
            ConfigError: the folder holds no run, or its newest checkpoint belongs to another model
                or order of data.
            PluginError: plugins changed and ``plugins.strict`` is set.
        """
        from plugrl.core.run.lock import RunLock

        path = absolute_path(folder)
        tree = read_config(path)
        public, _ = withhold(read_config(path, private=False))
        strict = bool((tree.get("plugins") or {}).get("strict", False))
        lock = RunLock(path)
        try:
            check_plugins(path, records, strict=strict)
            kept = checkpoint_folder(path, owned=True)
            check_resume(kept, public)
            for place in (kept, path, path / "dumps", path / "samples"):
                remove_unfinished(place)
            run = cls(path, tree, public, lock, hooks, trackers)
        except BaseException:
            lock.release()
            raise
        run._status.resume(folders.summarize(path).started)
        return run

    # -- state ------------------------------------------------------------------------------

    def attach(self, trainer: Stateful) -> None:
        """Set the trainer whose ``state_dict`` the checkpoints save."""
        self._trainer = trainer

    @property
    def trainer(self) -> Stateful | None:
        """The attached trainer; None before :meth:`attach`."""
        return self._trainer

    @property
    def resumable(self) -> bool:
        """Whether the attached trainer promises ``Capabilities(resume=True)``."""
        capabilities = getattr(self._trainer, "capabilities", None)
        return self._trainer is not None and bool(getattr(capabilities, "resume", True))

    def restore(self) -> int | None:
        """Load the newest intact checkpoint into the trainer; return its step, or None without one.

        Metrics and samples written after that checkpoint are cut off, so that no step is in the
        files twice.

        Raises:
            RunError: there are checkpoints, but not one can be read.
        """
        if self._trainer is None:
            raise UsageError("run.restore() needs a trainer: call run.attach(trainer) first")
        found = checkpoint.load_newest(self._checkpoints) if self.resumable else None
        if found is None:
            self._records.truncate({})
        else:
            self._load(*found)
        if self._active:
            self._start_trackers()
        return None if found is None else self.step

    def _load(self, path: Path, state: Mapping[str, Any]) -> None:
        if self._trainer is None:
            return
        warn_about_changes(path, self._definition[CONFIG])
        restore_state(self._trainer, state["trainer"], "trainer", path.name)
        run = state["run"]
        self.guards.load_state_dict(run["guards"])
        self.step = self._ended = self._saved = int(run["step"])
        self._status.fields["step"] = self.step
        self.last_metrics = dict(run["last_metrics"])
        self.best_score = run["best_score"]
        self._records.truncate(run["sizes"], self.step)
        # Last, because loading may draw random numbers.
        set_rng_state(state["rng"])
        log.info("resumed from %s", path.name)

    @property
    def _checkpoints(self) -> Path:
        return checkpoint_folder(self.folder)

    def mark_resumable(self, reason: str) -> None:
        """Let a run that ends cleanly be resumed later; ``reason`` such as a limit of costs."""
        self._status.fields["open"] = reason

    def save(self) -> Path | None:
        """Save a checkpoint of the last completed step now; :meth:`end_step` does so when due.

        Raises:
            RunError: the disk is full; older checkpoints are untouched.
        """
        if not self.resumable or self._trainer is None or self._ended < 0:
            return None
        # Records and trackers first: a checkpoint must never be ahead of the lines before it,
        # since a resume cuts the files back to the sizes that the checkpoint holds.
        with self.phase("checkpoint"), self._schedule.saving():
            self._records.sync()
            self._trackers.drain()
            state = {
                "trainer": self._trainer.state_dict(),
                "rng": rng_state(),
                "run": {
                    "id": self.id,
                    "step": self._ended,
                    "last_metrics": self.last_metrics,
                    "best_score": self.best_score,
                    "guards": self.guards.state_dict(),
                    "sizes": self._records.sizes(),
                },
            }
            path = checkpoint.save(
                self._checkpoints, self._ended, state, score=self._score, about=self._definition
            )
            checkpoint.prune(self._checkpoints, self.settings.keep_checkpoints)
        self._saved = self._ended
        log.info("saved %s", path.name, extra=DETAIL)
        self._call_hooks("plugrl_checkpoint_saved", run=self, step=self._ended, path=path)
        return path

    # -- steps ------------------------------------------------------------------------------

    def end_step(self, step: int, metrics: Mapping[str, Any], *, save: bool = False) -> None:
        """End a step: the only point at which a run is saved, stopped and resumed.

        Writes the metrics, runs guards and hooks, saves a checkpoint when one is due or a stop was
        requested, and then honours the stop.

        Args:
            step: the number of the step; larger than that of any step before.
            metrics: numbers by name.
            save: save a checkpoint whatever the settings say, such as after work that costs money.

        Raises:
            UsageError: the step number does not increase, or a metric is not a number.
            NonFiniteError: a loss or gradient among the metrics is NaN or infinite.
            RunInterrupted, RunTerminated: a signal requested the stop.
            StopRun: a hook requested the stop.
        """
        if step <= self._ended:
            raise UsageError(
                f"end_step({step}) came after end_step({self._ended}): steps must grow"
            )
        self._check_folder()
        numbers = self._numbers(metrics)
        self.log(step, numbers)
        self.guards.metrics(step, numbers)
        self.guards.end_step(step)
        self.step = self._ended = step
        self.last_metrics = numbers
        self._call_hooks("plugrl_step_end", run=self, step=step, metrics=numbers)
        # Read once: a signal that arrives while the checkpoint is written waits for the next step,
        # because this checkpoint was not saved for it.
        requested = self._signals.requested
        due = self._schedule.due(step, best=self._score is not None)
        if save or due or self._stop or requested:
            self.save()
        self._score = None
        self._status.step(step)
        self.places.write()
        self.garbage.end_step()
        self._honour_stop()
        # If this was the last step, the run is done, even if a stop was requested meanwhile.
        if requested is not None and not getattr(self._trainer, "complete", False):
            raise _stop_error(requested, step)

    @property
    def _folder_exists(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.folder), self._folder_stat)
        except OSError:
            return False

    def _check_folder(self) -> None:
        if not self._folder_exists:
            # Open files would go on being written although nobody can find them any more.
            raise _FolderGoneError(
                f"the run folder {display_path(self.folder)} is gone: it was deleted, moved or "
                "replaced "
                f"after step {max(self._ended, 0)}; put it back and resume it, or start a new run"
            )

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float | int]:
        try:
            return plain_numbers(metrics)
        except UsageError as error:
            if self._trainer is None:
                raise
            raise UsageError(f"trainer {type(self._trainer).__name__}: {error}") from None

    def _honour_stop(self) -> None:
        if self._stop is not None:
            raise self._stop

    def _call_hooks(self, name: str, **arguments: Any) -> None:
        # A StopRun is kept until the end of the step, the only point at which the run can be saved.
        try:
            self.hooks.call(name, **arguments)
        except StopRun as stop:
            self._stop = stop

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write metrics in the middle of a step, such as those of an evaluation."""
        numbers = self._numbers(metrics)
        self._start_trackers()
        self._latest |= numbers
        self._records.metrics(step, numbers)
        self._trackers.log(step, numbers)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Append a record, such as a generated text, to ``samples/<name>.jsonl``.

        A record without a ``step`` belongs to the step that is going on.
        """
        self._start_trackers()
        stamped = {"step": record.get("step", self._ended + 1), **record}
        self._records.sample(name, stamped)
        self._trackers.sample(name, stamped)

    def _start_trackers(self) -> None:
        # With the first number rather than with the run: a run that is restored only knows its step
        # after the checkpoint is loaded, and trackers are told from which step on they log.
        if self._trackers.is_pending:
            again = self._status.fields["resumed"] is not None
            tree = self._definition[CONFIG]
            self._trackers.start(make_tracked_run(self.folder, tree, self._ended, resumed=again))

    def report_score(
        self, score: float, metric: str | None = None, *, mode: Literal["max", "min"] = "max"
    ) -> bool:
        """Report a held-out score (higher is better) before the end of its step.

        Args:
            score: how good the weights are.
            metric: the metric that it is; the headline of the run from now on.
            mode: ``min`` where the score is the metric with its sign turned.

        Returns:
            Whether it is the best so far. If so, and if the run saves checkpoints by steps, the end
            of this step saves one, which stays on disk until a better one comes.
        """
        if metric is not None:
            self._status.fields["headline"] = {"metric": metric, "mode": mode}
        if not math.isfinite(score) or (self.best_score is not None and score <= self.best_score):
            return False
        self.best_score = self._score = float(score)
        return True

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Run a ``with`` body under a deadline: ``settings.deadlines[name]``, or ``deadline``.

        A body that exceeds it ends the process with exit code 1, after the phase and all stacks are
        printed. The timeline of the run shows the body as a span of that name.
        """
        if self._active:
            self._honour_stop_between_steps()
        # A checkpoint belongs to the step that has ended, anything else to the next one.
        return self._phase(name, self.step + (name != "checkpoint"))

    @contextmanager
    def _phase(self, name: str, step: int) -> Iterator[None]:
        seconds = self.settings.deadlines.get(name, self.settings.deadline)
        with (
            self._deadlines.phase(name, seconds),
            self.timeline.span("trainer", name, step=step),
            self._progress.at(name),
        ):
            yield

    def _honour_stop_between_steps(self) -> None:
        # Nothing is lost by stopping here: before the first step there is nothing to save, and a
        # trainer that cannot resume starts over anyway.
        if self._ended < 0:
            self._honour_stop()
        early = self._ended < 0 or not self.resumable
        if early and self._signals.requested is not None:
            raise _stop_error(self._signals.requested, self._ended)

    def label(self, step: int) -> str:
        """The name of a step in messages; runs of phases put the phase in front."""
        return f"step {step}"

    def progress(self, description: str, total: int | None = None) -> Bar:
        """Start a progress bar: ``update(completed, **numbers)`` and ``close()``."""
        return self._progress.bar(description, total)

    def _headline(self) -> dict[str, float | int]:
        """The latest value of the metric by which the run is judged, if there is one yet."""
        metric = headline_metric(self._status.fields, self._latest)
        return {} if metric is None else {metric: self._latest[metric]}

    def keep(self, name: str, make: Callable[[], Item]) -> Item:
        """The resource called ``name``, made by ``make`` on first use.

        All trainers of the run share it; its ``close()`` is called at the end of the run.
        """
        return self._resources.get(name, make)

    @property
    def stop_requested(self) -> bool:
        """Whether the run ends at the next :meth:`end_step`."""
        return self._stop is not None or self._signals.requested is not None

    def _on_stop_signal(self, number: signal.Signals) -> None:
        write_stderr(f"{number.name}: stopping at the end of this step; once more stops at once")

    # -- life -------------------------------------------------------------------------------

    @property
    def resume_command(self) -> str:
        """The command that resumes this run."""
        return f"plugrl resume {shlex.quote(os.fspath(display_path(self.folder)))}"

    def __enter__(self) -> Self:
        self._shutdown.open_log()
        try:
            self._status.write()
        except BaseException as error:
            self._shutdown.close("failed", self.step, error)
            raise
        self._report.start()
        # After the status: from here on a signal ends the run through it.
        self._signals.install()
        self._active = True
        self._progress.start()
        try:
            self._call_hooks("plugrl_run_start", run=self)
        except BaseException as error:
            self.finish(outcome_of(error), error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        stopped = error is None or isinstance(error, StopRun)
        if outcome_of(error) in ("done", "failed") and not isinstance(error, _FolderGoneError):
            # A missing folder is the cause of whatever failed, so it is the error that is reported.
            try:
                self._check_folder()
            except _FolderGoneError as gone:
                self.finish("failed", gone)
                raise gone from error
        if stopped and self._saved != self._ended:
            try:
                self.save()
            except BaseException as failure:
                failure.add_note(self.resume_command)
                self.finish(outcome_of(failure), failure)
                raise
        outcome = outcome_of(error)
        if error is not None and outcome != "done" and self._folder_exists:
            error.add_note(self.resume_command)
        self.finish(outcome, error)
        return isinstance(error, StopRun)

    def finish(self, outcome: State, error: BaseException | None = None) -> None:
        """End the run: hooks, report, trackers, status, lock. Only the first call has an effect."""
        if self._shutdown.ended:
            return
        self._shutdown.ended = True
        self._active = False
        self._progress.close()
        self.places.write(last=True)
        self._resources.close()
        self.garbage.thaw()
        # Hooks and trackers may still log, so the files are closed after them; the lock is released
        # last, since from then on another process may resume the run.
        self._call_hooks("plugrl_run_end", run=self, outcome=outcome)
        report = self._shutdown.report(outcome, self.step, error) if self._folder_exists else {}
        self._trackers.finish(outcome, report)
        if self._trackers.failures:
            self._status.fields["trackers_failed"] = self._trackers.failures
        self._deadlines.close()
        self._records.close()
        self.timeline.close()
        self._signals.uninstall()
        self._shutdown.close(outcome, self.step, error)


def _stop_error(number: signal.Signals, step: int) -> RunInterrupted | RunTerminated:
    when = f"after step {step}" if step >= 0 else "before the first step"
    if number == signal.SIGTERM:
        return RunTerminated(f"terminated {when}")
    return RunInterrupted(f"interrupted {when}")
