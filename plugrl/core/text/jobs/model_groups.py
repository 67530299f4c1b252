"""``SharedModelGroup``: agents that share one model, which fine-tuning jobs train for all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.text.jobs.fine_tuning import JobStatus, PreferenceExample, SupervisedExample

if TYPE_CHECKING:
    from plugrl.core.text.jobs.fine_tuning import Examples, FineTuneService
    from plugrl.core.text.models import Model

logger = logging.getLogger(__name__)


class SharedModelGroup:
    """Agents of one model, and the job that trains it next.

    A job has a name, is looked for under it and made only when there is none: after a resume, the
    one that a killed process made is taken up. One that failed is repeated once for each resume,
    with the same examples, as ``NAME-r2``, ``NAME-r3`` and so on.

    Args:
        name: of the group.
        agents: that share the model.
        model: theirs; without a fine-tuning service it is frozen.
        freeze: leave the model as it is.

    Raises:
        ConfigError: there is no agent.
    """

    def __init__(
        self, name: str, agents: Sequence[str], model: Model, *, freeze: bool = False
    ) -> None:
        if not agents:
            raise ConfigError(f"the model group {name!r} has no agents")
        self.name, self.agents, self.model = name, tuple(agents), model
        self.freeze = freeze or model.fine_tune is None
        self.job_name: str | None = None
        self.skipped = ""
        self.fine_tuned_model: str | None = None
        self.version = 0
        self._job: str | None = None
        self._base: str | None = None
        self._resumed = False

    @property
    def service(self) -> FineTuneService:
        """The service that trains the model.

        Raises:
            ConfigError: the model is frozen.
        """
        if self.model.fine_tune is None:
            raise ConfigError(
                f"model {self.model.name!r} is frozen; give models.{self.model.name}.fine_tune to "
                "train it"
            )
        return self.model.fine_tune

    @property
    def fine_tune_from_scratch(self) -> bool:
        """Whether each job begins with the model's first weights."""
        return not self.freeze and bool(self.service.config.from_scratch)

    def create_supervised_fine_tune_job(
        self, examples_by_agent: Mapping[str, Sequence[SupervisedExample]], job_name: str
    ) -> None:
        """Make, or take up, the job that learns the replies of the agents' examples.

        Raises:
            RunError: the service refuses it.
            ConfigError: an agent is not of this group.
        """
        self._begin(job_name, self._group_examples(examples_by_agent))

    def create_dpo_fine_tune_job(
        self, examples_by_agent: Mapping[str, Sequence[PreferenceExample]], job_name: str
    ) -> None:
        """Make, or take up, the job that learns the preferences of the agents' examples.

        Raises:
            RunError: the service refuses it.
            ConfigError: an agent is not of this group.
        """
        self._begin(job_name, self._group_examples(examples_by_agent))

    def _group_examples(self, by_agent: Mapping[str, Sequence[Any]]) -> list[Any]:
        foreign = sorted(set(by_agent) - set(self.agents))
        if foreign:
            raise ConfigError(
                f"agent {foreign[0]!r} is not of the model group {self.name!r}, which has: "
                f"{', '.join(self.agents)}"
            )
        return [example for agent in self.agents for example in by_agent.get(agent, ())]

    def _begin(self, name: str, examples: Examples) -> None:
        self.job_name, self.skipped, self._job = name, "", None
        if self.freeze:
            self.skipped = f"model {self.model.name!r} is frozen"
            return
        service = self.service
        least = service.config.min_examples
        self._base = None if self.fine_tune_from_scratch else self.fine_tuned_model
        self._job = self._newest()
        if self._job is not None:
            logger.info("job %s of model %r is there already", name, self.model.name)
        elif len(examples) < least:
            self.skipped = (
                f"{len(examples)} examples, and models.{self.model.name}.fine_tune.min_examples is "
                f"{least}"
            )
            logger.warning("no job %s is made: %s", name, self.skipped)
        else:
            self._job = service.create(name, examples, self._base)

    def get_fine_tune_job_status(self) -> JobStatus:
        """What the service says of the job; without a job, that it succeeded and changes nothing.

        Raises:
            RunError: no job was begun, or the service does not know it.
        """
        if self.job_name is None:
            raise RunError(f"the model group {self.name!r} has no job to ask about")
        if self.skipped:
            return JobStatus("succeeded", self.skipped)
        self._job = self._job or self._found()
        status = self.service.status(self._job)
        if self._resumed and not status.is_open and status.state != "succeeded":
            status = self._retry(self._job, status)
        self._resumed = False
        return status

    def _found(self) -> str:
        """The id of the job that the state names."""
        found = self._newest()
        if found is None:
            raise RunError(
                f"job {self.job_name} of model {self.model.name!r} is no longer at its service; "
                "start a new run"
            )
        return found

    def _newest(self) -> str | None:
        """The id of the job, or of the last one that repeats it."""
        found = None
        for name in self._names():
            job = self.service.find(name)
            if job is None:
                break
            found = job
        return found

    def _names(self) -> Iterable[str]:
        yield str(self.job_name)
        number = 2
        while True:
            yield f"{self.job_name}-r{number}"
            number += 1

    def _retry(self, job: str, status: JobStatus) -> JobStatus:
        name = next(name for name in self._names() if self.service.find(name) is None)
        logger.warning(
            "job %s %s (%s); it is made again as %s", job, status.state, status.message, name
        )
        self._job = self.service.retry(name, job, self._base)
        return self.service.status(self._job)

    def switch_to_next_model(self) -> None:
        """Sample from the model of the job, which has succeeded.

        Raises:
            RunError: the job has not succeeded, or its model is not there.
        """
        status = self.get_fine_tune_job_status()
        if status.state != "succeeded":
            raise RunError(f"job {self.job_name} is {status.state}, so it has no model yet")
        self.job_name = self._job = None
        if status.fine_tuned_model is not None:
            self.fine_tuned_model = status.fine_tuned_model
            self.version += 1
            self._use()

    def _use(self) -> None:
        if self.fine_tuned_model is not None:
            self.service.use(self.model.inference, self.fine_tuned_model, self.version)

    def state_dict(self) -> dict[str, Any]:
        """The model that is sampled from, and the job that is open."""
        return {
            "job_name": self.job_name,
            "skipped": self.skipped,
            "fine_tuned_model": self.fine_tuned_model,
            "version": self.version,
            "base": self._base,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave, and sample from its model."""
        self.job_name, self.skipped = state["job_name"], state["skipped"]
        self._base, self._job, self._resumed = state["base"], None, True
        self.load_weights(state)

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Sample from the model of a saved state, and leave the job that was open then."""
        self.fine_tuned_model, self.version = state["fine_tuned_model"], int(state["version"])
        self._use()


def wait_for_jobs(
    groups: Sequence[SharedModelGroup],
    *,
    sleep: Callable[[float], None] = time.sleep,
    told: Callable[[SharedModelGroup, JobStatus], None] | None = None,
) -> dict[str, JobStatus]:
    """Ask about the job of each group until all have succeeded.

    Args:
        groups: whose jobs were begun.
        sleep: called with the seconds between two questions.
        told: called with every answer.

    Raises:
        RunError: a job failed, was cancelled, or did not end in time.
    """
    started, done = time.monotonic(), dict[str, JobStatus]()
    pauses = {group.name: _first_pause(group) for group in groups}
    while True:
        waits = []
        for group in groups:
            if group.name in done:
                continue
            status = group.get_fine_tune_job_status()
            if told is not None:
                told(group, status)
            if status.state == "succeeded":
                done[group.name] = status
                continue
            _check_open(group, status, time.monotonic() - started)
            waits.append(pauses[group.name] if status.wait is None else status.wait)
            longest = group.service.config.longest_interval
            pauses[group.name] = min(2 * pauses[group.name], longest)
        if not waits:
            return done
        sleep(min(waits))


def _first_pause(group: SharedModelGroup) -> float:
    if group.model.fine_tune is None:
        return 0.0
    config = group.model.fine_tune.config
    return min(float(config.poll_interval), float(config.longest_interval))


def _check_open(group: SharedModelGroup, status: JobStatus, seconds: float) -> None:
    """Refuse a job that ended without a model, or that takes too long."""
    what = f"job {group.job_name} of model {group.model.name!r}"
    if not status.is_open:
        said = f" ({status.message})" if status.message else ""
        raise RunError(
            f"{what} {'failed' if status.state == 'failed' else 'was cancelled'}{said}; resume to "
            "make it again from the same examples, when what it says is mended"
        )
    timeout = group.service.config.timeout
    if seconds > timeout:
        raise RunError(
            f"{what} is still {status.state} after models.{group.model.name}.fine_tune.timeout="
            f"{timeout:g} seconds; resume to wait further, or raise the timeout"
        )
