"""``PureTextRlTrainer``: sample, log, test, fine-tune and wait, each saved before the next."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from plugrl.core.errors import ConfigError, StopRun
from plugrl.core.protocol.nested_array_dict import NestedArrayDict
from plugrl.core.text.evaluate.scores import report_evaluation, report_score
from plugrl.core.text.jobs.model_groups import wait_for_jobs
from plugrl.core.text.preflight import agents_of_protocol
from plugrl.core.text.staged.files import RunFiles
from plugrl.core.text.staged.limits import LimitReachedError
from plugrl.core.text.staged.plan import staged_plan
from plugrl.core.text.staged.preflight import pure_text_findings
from plugrl.core.text.staged.sections import PURE_TEXT, guess_replacement_proportion
from plugrl.core.text.staged.setup import Parts, make_parts
from plugrl.core.text.staged.stats import episode_metrics
from plugrl.core.text.staged.transcripts import transcript, write_transcripts
from plugrl.core.trainer import Trainer, TrainingResult

if TYPE_CHECKING:
    from pathlib import Path

    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.config.view import HyperParameters
    from plugrl.core.protocol.protocol import Protocol
    from plugrl.core.text.data.loader import Prompt
    from plugrl.core.text.jobs.model_groups import SharedModelGroup
    from plugrl.core.text.models import Model, Models
    from plugrl.core.text.protocol.episode import Episode
    from plugrl.core.text.rollout.task import RolloutTask
    from plugrl.core.text.staged.journal import RolloutJournal
    from plugrl.core.text.trajectory import Trajectory

logger = logging.getLogger(__name__)

SAMPLE: Final = "sample_rollouts"
LOG: Final = "log_stats"
TEST: Final = "test_during_training"
CREATE: Final = "create_fine_tune_jobs"
AWAIT: Final = "await_fine_tune_jobs"
FINAL_TEST: Final = "test"
DONE: Final = "done"


class _StopAskedError(Exception):
    """A stop was asked for while jobs are waited for, which go on without the run."""


@dataclass
class PureTextRlConfig:
    """The trainer section of trainers of text agents; what they share is in `text_rl`."""


class PureTextRlTrainer(Trainer):
    """Trains agents that talk, by fine-tune jobs; write :meth:`_stage_create_fine_tune_jobs`.

    An iteration has five stages: rollouts are sampled, their statistics logged, held-out episodes
    played when ``text_rl.test_scheme`` says so, a fine-tune job is created for each group of
    agents that share a model, and the jobs are waited for. After each stage the run is saved and
    may be stopped; a resumed run goes on with the next one.

    A finished rollout is written down at once, and a job is looked for under its name before it
    is created: a run that is killed anywhere plays no finished rollout again and makes no job
    twice.
    """

    Config: ClassVar[type] = PureTextRlConfig
    sections: ClassVar[Mapping[str, Any]] = PURE_TEXT
    _parts: Parts
    _files: RunFiles

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._step = 0
        self._iteration = 0
        self._stage = self._jobs_prefix = ""
        self._last_metrics: dict[str, float] = {}
        #: Attempts of the stage that failed, and all of them.
        self._failed = (0, 0)
        #: Of this iteration; None: they were sampled before this process.
        self._trajectories: list[Trajectory] | None = None
        self._pending_state: Mapping[str, Any] | None = None
        self._initial_weights: Mapping[str, Any] = {}

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Data, models and agents that are missing, and settings that have no effect."""
        yield from pure_text_findings(check)

    @classmethod
    def known_agents(cls, check: Preflight) -> Collection[str] | None:
        """The agents of the protocol that the rollout worker plays; None: it plays none."""
        return agents_of_protocol(check)

    @classmethod
    def batch_plan(cls, root: HyperParameters) -> list[tuple[str, str]]:
        """What ``plugrl validate`` prints as the plan, as (what, how many) rows."""
        return staged_plan(root, cls.rollouts_per_attempt(root))

    # What algorithms write or change

    @classmethod
    def rollouts_per_attempt(cls, root: HyperParameters) -> int | None:
        """The most rollouts that :meth:`_rollouts_of` gives, for the plan; None: it is not known.

        Args:
            root: the whole configuration.
        """
        return 1

    @abstractmethod
    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        """Create the next job of each group of :attr:`shared_model_groups`.

        It may run again after a kill, with the same rollouts: draw random numbers from
        :meth:`_generator`, and name jobs with :meth:`_get_fine_tune_job_name`.

        Args:
            rollouts: ``[n, R]``, those of this iteration, or of all so far with
                ``text_rl.fine_tune_on_all_previous_rollouts``.
        """

    def _sample_rollouts(self, iteration: int, *, is_test: bool = False) -> NestedArrayDict:
        """Sample rollouts ``[n, R]``; override it to change what is played or kept.

        Args:
            iteration: from 0.
            is_test: whether they are held-out episodes.

        Raises:
            RunError: not one attempt is valid.
        """
        return self._play_prompts(self._prompts(is_test=is_test), iteration, is_test=is_test)

    async def _rollouts_of(self, task: RolloutTask) -> NestedArrayDict:
        """The rollouts ``[m, R]`` of one attempt at one problem: one episode, to its end.

        An attempt is written down as a whole when it is finished.
        """
        return await self._parts.play(task)

    def _as_rollouts(self, task: RolloutTask, episodes: Sequence[Episode]) -> NestedArrayDict:
        """Episodes of an attempt as rollouts ``[m, R]``, of which plugins get the trajectories.

        Args:
            task: the attempt.
            episodes: all that :meth:`_rollouts_of` gives of it.
        """
        return self._parts.sampler.rollouts(task, episodes, self.protocol)

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> dict[str, float]:
        """Statistics of rollouts; override it, call this one, and add to what it gives.

        Args:
            rollouts: ``[n, R]``.
            train: whether they were sampled to learn from; else they are a test's.
        """
        return episode_metrics(rollouts, self.protocol, "rollout" if train else "test")

    def _get_fine_tune_job_name(self, group: SharedModelGroup) -> str:
        """The name of the job of this iteration for a group; it is the job's alone."""
        return f"{self._jobs_prefix}-iteration-{self._iteration + 1}-{group.name}"

    # What algorithms read

    @property
    def protocol(self) -> Protocol:
        """Who speaks when, and what it is worth."""
        return self._parts.protocol

    @property
    def agent_names(self) -> Sequence[str]:
        """The agents in the order of arrays."""
        return self.protocol.agent_names

    @property
    def shared_model_groups(self) -> Mapping[str, SharedModelGroup]:
        """The groups of agents that share a model, frozen ones too, by model name."""
        return self._parts.groups

    @property
    def models(self) -> Models:
        """The models of the run."""
        return self._parts.models

    def _generator(self, *numbers: int) -> Any:
        """A NumPy generator that depends on the seed, the iteration and ``numbers`` alone."""
        import numpy as np

        return np.random.default_rng([self.hyper_params.seed, self._iteration, *numbers])

    def _get_verifier_guess_replacement_proportion(self, iteration: int) -> float:
        """The share of verifiers' last messages that are replaced in an iteration from 0 on."""
        return guess_replacement_proportion(self.hyper_params.text_rl, iteration)

    def _decision_text(self, label: int) -> str:
        """What a verifier writes to decide for a label."""
        return self._parts.worker.decision_text(label)

    # The loop

    def train(self) -> TrainingResult:
        """Run all stages; after a resume, the remaining ones."""
        self._set_up()
        self.run.places.add("models", self.models.places)
        total = self.hyper_params.text_rl.num_iterations
        with closing(self.models), closing(self.run.progress("Iterations", total)) as progress:
            progress.update(self._iteration)
            while self._stage != DONE:
                self._run_stage()
                progress.update(self._iteration)
        return TrainingResult(steps=self._step, metrics=dict(self._last_metrics))

    @property
    def complete(self) -> bool:
        """Whether the last stage has ended."""
        return self._stage == DONE

    def _set_up(self) -> None:
        context = self._bound("train")
        self._files = RunFiles(self.run.folder, self.run.phase_number)
        tests = self._tests != "none"
        keeps = self.run.hooks.listens("plugrl_rollouts_collected")
        self._parts = make_parts(context, self._files.jobs, tests=tests, keeps=keeps)
        self.models.load_weights(self._initial_weights)
        if self._pending_state is not None:
            self._apply(self._pending_state)
        self._stage = self._stage or self._first_stage()
        # Kept with the state, since a run folder may get another name.
        phase = f"-phase-{self.run.phase_number}" if self.run.phase_number else ""
        self._jobs_prefix = self._jobs_prefix or f"{self.run.id}{phase}"

    def _run_stage(self) -> None:
        stage = self._stage
        # Tests after the last iteration belong to it.
        last = self.hyper_params.text_rl.num_iterations
        iteration = min(self._iteration + 1, last)
        try:
            metrics = getattr(self, f"_run_{stage}")()
            self._stage = self._following(stage)
        except LimitReachedError as reached:
            logger.warning(
                "%s; the run ends in iteration %d; raise it in config.yaml and resume to go on",
                reached,
                iteration,
            )
            self.run.mark_resumable(str(reached))
            raise StopRun(str(reached)) from None
        except _StopAskedError:
            metrics = {}
        self._step += 1
        self._last_metrics |= metrics
        self.run.end_step(self._step, {"iteration": iteration, **metrics}, save=True)

    def _first_stage(self) -> str:
        return SAMPLE if self._iteration < self.hyper_params.text_rl.num_iterations else FINAL_TEST

    def _following(self, stage: str) -> str:
        """What comes after a stage; the iteration moves on after its last."""
        if stage == SAMPLE:
            return LOG
        if stage == LOG and self._test_due:
            return TEST
        if stage in (LOG, TEST):
            return CREATE
        if stage == CREATE:
            return AWAIT
        if stage == FINAL_TEST:
            return DONE
        self._iteration += 1
        return self._first_stage()

    @property
    def _test_due(self) -> bool:
        scheme = self._tests
        return scheme == "all" or (scheme == "first_and_last" and self._iteration == 0)

    @property
    def _tests(self) -> str:
        """When held-out episodes are played."""
        params = self.hyper_params
        return str(params.text_rl.test_scheme) if params.validate.enabled else "none"

    # The stages

    def _run_sample_rollouts(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        self._trajectories = []
        with self._timed("rollout", metrics):
            rollouts = self._sample_rollouts(self._iteration)
        self._keep(rollouts, is_test=False)
        return metrics | self._told_failures("rollout") | self._parts.meter.metrics()

    def _run_log_stats(self) -> dict[str, float]:
        rollouts = self._files.load(self._iteration)
        metrics = self._get_log_stats(rollouts)
        for number in range(min(len(rollouts), self.settings.rollout_samples)):
            self.run.sample("rollouts", transcript(rollouts, number, self.protocol))
        self.run.hooks.call(
            "plugrl_rollouts_collected",
            run=self.run,
            step=self._step + 1,
            trajectories=self._sampled_trajectories(),
            metrics=dict(metrics),
        )
        return metrics

    def _sampled_trajectories(self) -> list[Trajectory]:
        """The trajectories of this iteration; after a resume without those of failed attempts."""
        if self._trajectories is None:
            # Without a listener there are none in it.
            listens = self.run.hooks.listens("plugrl_rollouts_collected")
            return self._journal(self._iteration, is_test=False).trajectories() if listens else []
        found, self._trajectories = self._trajectories, None
        return found

    def _run_test_during_training(self) -> dict[str, float]:
        return self._test()

    def _run_test(self) -> dict[str, float]:
        return {} if self._tests == "none" else self._test()

    def _test(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        with self._timed("validate", metrics):
            rollouts = self._sample_rollouts(self._iteration, is_test=True)
        self._keep(rollouts, is_test=True)
        scores = self._get_log_stats(rollouts, train=False)
        report_score(self.run, self.hyper_params.validate, scores, default="test/accuracy")
        report_evaluation(self.run, self._step + 1, scores)
        return metrics | scores | self._told_failures("test") | self._parts.meter.metrics()

    def _run_create_fine_tune_jobs(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        rollouts = self._files.load(self._iteration)
        if self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts and self._iteration:
            before = [self._files.load(number) for number in range(self._iteration)]
            rollouts = NestedArrayDict.cat([*before, rollouts])
        for group in self.shared_model_groups.values():
            if not group.freeze:
                self._files.intend(self._get_fine_tune_job_name(group), self._iteration)
        with self._timed("create_jobs", metrics):
            self._stage_create_fine_tune_jobs(rollouts)
        return metrics

    def _run_await_fine_tune_jobs(self) -> dict[str, float]:
        groups = [g for g in self.shared_model_groups.values() if g.job_name is not None]
        metrics: dict[str, float] = {}
        started = time.perf_counter()
        wait_for_jobs(groups, sleep=self._sleep, told=lambda *_: self._heed_stop())
        for group in groups:
            metrics[f"fine_tuned/{group.name}"] = float(not group.skipped)
            with self._timed("sync", metrics):
                group.switch_to_next_model()
        versions = {group.model.name: group.version for group in groups}
        self.run.hooks.call(
            "plugrl_weights_synced", run=self.run, step=self._step + 1, versions=versions
        )
        return metrics | {"time/fine_tune": time.perf_counter() - started}

    def _sleep(self, seconds: float) -> None:
        """Wait, no longer than until a stop is asked for."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._heed_stop()
            time.sleep(min(left, 0.2))

    def _heed_stop(self) -> None:
        if self.run.stop_requested:
            raise _StopAskedError

    # Rollouts

    def _prompts(self, *, is_test: bool) -> Sequence[Prompt]:
        """The problems of this iteration, or the held-out ones."""
        if not is_test:
            return self._parts.loader.next_batch()
        held_out = self._parts.held_out
        if self.hyper_params.text_rl.test_on_whole_dataset:
            return held_out
        return held_out[: self.hyper_params.data.batch_size]

    def _play_prompts(
        self, prompts: Sequence[Prompt], iteration: int, *, is_test: bool
    ) -> NestedArrayDict:
        """The rollouts of prompts; those that are written down already are not played again.

        Raises:
            RunError: not one attempt is valid.
        """
        journal = self._journal(iteration, is_test=is_test)
        play = self._parts.play if is_test else self._rollouts_of
        sampled = self._parts.sample(prompts, iteration, play, journal, is_test=is_test)
        what = "the test" if is_test else f"iteration {iteration + 1}"
        rollouts = sampled.valid(f"{len(prompts)} problems of {what}")
        self._failed = len(sampled.failures), len(prompts)
        first = sampled.failures[0].failure if sampled.failures else ""
        self.run.guards.failures(self._step + 1, *self._failed, first)
        if not is_test and self._trajectories is not None:
            self._trajectories += [*sampled.trajectories, *sampled.failures]
        return rollouts

    def _journal(self, iteration: int, *, is_test: bool) -> RolloutJournal:
        """What is written down of an iteration, or of a test, with the models of now."""
        groups = self.shared_model_groups
        origin = {
            "models": {name: each.fine_tuned_model or "" for name, each in groups.items()},
            "weights": {name: each.version for name, each in groups.items()},
        }
        return self._files.journal(iteration, origin, is_test=is_test)

    def _told_failures(self, prefix: str) -> dict[str, float]:
        failed, total = self._failed
        return {f"{prefix}/invalid": failed / total} if total else {}

    def _keep(self, rollouts: NestedArrayDict, *, is_test: bool) -> None:
        """Save rollouts for the stages that follow, and for people."""
        path = self._files.save(rollouts, self._iteration, is_test=is_test)
        section = self.hyper_params.text_rl
        if section.save_transcripts:
            write_transcripts(path, rollouts, self.protocol, section.transcript_format)

    # What is saved

    def state_dict(self) -> dict[str, Any]:
        """The stage that comes next, the models that are sampled from, and the data position."""
        return {
            "step": self._step,
            "iteration": self._iteration,
            "stage": self._stage,
            "jobs": self._jobs_prefix,
            "phase": self.run.phase_number,
            "last_metrics": dict(self._last_metrics),
            "loader": self._parts.loader.state_dict(),
            "groups": {name: g.state_dict() for name, g in self.shared_model_groups.items()},
            "models": self.models.state_dict(),
            "usage": self._parts.meter.total.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; it is applied when training goes on."""
        self._pending_state = state
        self._step, self._iteration = state["step"], state["iteration"]
        self._stage, self._jobs_prefix = state["stage"], state["jobs"]
        self._last_metrics = dict(state["last_metrics"])

    def _apply(self, state: Mapping[str, Any]) -> None:
        self.models.load_state_dict(state["models"])
        self._parts.loader.load_state_dict(state["loader"])
        for name, group in self.shared_model_groups.items():
            group.load_state_dict(state["groups"][name])
        self._parts.meter.load(state["usage"])
        self._pending_state = None

    def loaded_models(self) -> Models:
        """The models with the weights of the loaded state; they are not trained further."""
        self._load_weights("loaded_models", tests=False)
        return self.models

    def _load_weights(self, doing: str, *, tests: bool) -> None:
        state = self._pending_state
        self._files = RunFiles(self.run.folder, (state or {}).get("phase", 0))
        self._parts = make_parts(self._bound(doing), self._files.jobs, tests=tests)
        self.models.load_weights(self._initial_weights)
        # The rest of the state is for training on, and may come from code that has changed since.
        if state is not None:
            self.models.load_state_dict(state["models"], weights_only=True)
            for name, group in self.shared_model_groups.items():
                group.load_weights(state["groups"][name])

    def export(self, model: Model, folder: Path, *, adapter: bool = False) -> None:
        """Write one of the loaded models to a new folder, in the form that others read.

        Raises:
            UsageError: its service has no weights to write.
            ConfigError: the model is frozen.
        """
        group = self.shared_model_groups.get(model.name)
        if group is None or model.fine_tune is None:
            raise ConfigError(
                f"model {model.name!r} is frozen, so it is what its source says; name another"
            )
        tokenizer = model.inference.tokenizer
        model.fine_tune.export(group.fine_tuned_model, folder, tokenizer, adapter=adapter)

    def evaluate(self) -> dict[str, float]:
        """Play the held-out episodes with the loaded state; every transcript is a sample.

        Raises:
            ConfigError: there are no problems.
        """
        self._load_weights("evaluate", tests=True)
        with closing(self.models):
            prompts = self._prompts(is_test=True)
            sampled = self._parts.sample(
                prompts, self._iteration, self._parts.play, None, is_test=True
            )
            rollouts = sampled.valid(f"{len(prompts)} held-out problems")
        for number in range(len(rollouts)):
            record = transcript(rollouts, number, self.protocol)
            self.run.sample("evaluation", {"step": self._step, **record})
        failed = {"test/invalid": len(sampled.failures) / len(prompts)}
        return self._get_log_stats(rollouts, train=False) | failed

    def export_weights(self) -> dict[str, Mapping[str, Any]]:
        """What a later phase begins with, by model name.

        Raises:
            ConfigError: a fine-tune service keeps the weights to itself.
        """
        tuned = {
            group.model.name: group.service.export_weights(group.fine_tuned_model)
            for group in self.shared_model_groups.values()
            if group.fine_tuned_model is not None
        }
        return {**self.models.weights(), **tuned}

    def import_weights(self, handed: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin with these weights, by model name, instead of those of the sources."""
        self._initial_weights = handed or {}
