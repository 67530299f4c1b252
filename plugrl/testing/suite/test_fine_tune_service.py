"""The contract of fine-tuning services.

Run it with ``--plugrl-fine-tune-service NAME``, or subclass :class:`FineTuneServiceContract` with
an attribute ``plugrl_fine_tune_service``. A service gives as ``conformance``: ``config``, its
section; ``source``, the model that jobs begin with, by default one of a few hundred weights; and
``inference``, the section of the service that samples from the models of jobs, ``transformers`` by
default.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from plugrl.core.errors import RunError
from plugrl.core.factory import Factory, make_component
from plugrl.core.plugins.registry import default_registry
from plugrl.core.text.inference.services import InferenceService
from plugrl.core.text.jobs.fine_tuning import (
    FineTuneService,
    JobContext,
    JobStatus,
    PreferenceExample,
    SupervisedExample,
)
from plugrl.testing.contract import ComponentContract
from plugrl.testing.models import SOURCE, spec_of

SUPERVISED = tuple(
    SupervisedExample(
        [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]
    )
    for text in ("ab", "bc", "cd", "de")
)
PREFERENCES = tuple(
    PreferenceExample([{"role": "user", "content": text}], text[::-1], text)
    for text in ("ab", "bc", "cd", "de")
)
#: Questions about a job until it has to have ended, and processor time in which it has to.
QUESTIONS, SECONDS = 200, 60.0
Load = Callable[..., FineTuneService]


class FineTuneServiceContract(ComponentContract):
    """The tests; they need the attribute ``plugrl_fine_tune_service``."""

    kind = "fine_tune_service"
    defaults: ClassVar[Mapping[str, Any]] = {
        "source": SOURCE,
        "inference": {"type": "transformers"},
    }

    @pytest.fixture
    def inference(self, example: Mapping[str, Any]) -> Iterator[InferenceService]:
        service: InferenceService = make_component("inference_service", example["inference"])
        service.load(spec_of(example["source"]))
        yield service
        service.close()

    @pytest.fixture
    def load(
        self,
        make: Callable[[], FineTuneService],
        example: Mapping[str, Any],
        inference: InferenceService,
        tmp_path: Path,
    ) -> Iterator[Load]:
        """Makes a service of the same run: in its folder are the jobs of those made before."""
        folder = tmp_path / "jobs"
        folder.mkdir()
        made: list[FineTuneService] = []

        def loaded() -> FineTuneService:
            made.append(make())
            context = JobContext(folder, Factory(default_registry()), inference)
            made[-1].load(spec_of(example["source"], trained=True), context)
            return made[-1]

        yield loaded
        for service in made:
            service.close()

    def end(self, service: FineTuneService, job: str) -> JobStatus:
        """Ask about a job until it has ended."""
        started = time.process_time()
        for _ in range(QUESTIONS):
            status = service.status(job)
            assert isinstance(status, JobStatus)
            if not status.is_open:
                return status
            assert time.process_time() - started < SECONDS
            time.sleep(min(status.wait or 0.0, 0.05))
        raise AssertionError(f"the job is still {status.state} after {QUESTIONS} questions")

    def test_a_job_that_nobody_made_is_not_found(self, load: Load) -> None:
        assert load().find("nobody-made-it") is None

    def test_a_job_trains_a_model_that_can_be_asked(
        self, load: Load, inference: InferenceService
    ) -> None:
        service = load()
        status = self.end(service, service.create("step-1", SUPERVISED, None))
        assert status.state == "succeeded", status.message
        if status.fine_tuned_model is not None:
            service.use(inference, status.fine_tuned_model, 7)
            assert inference.version == 7

    def test_jobs_learn_from_preferences_too(self, load: Load) -> None:
        service = load()
        status = self.end(service, service.create("step-1", PREFERENCES, None))
        assert status.state == "succeeded", status.message

    def test_a_job_is_found_by_its_name_after_a_restart(self, load: Load) -> None:
        job = load().create("step-1", SUPERVISED, None)
        other = load()
        assert other.find("step-1") == job, "a killed process would make the job twice"
        assert other.find("step-2") is None
        assert self.end(other, job).state == "succeeded"

    def test_a_job_goes_on_from_the_model_of_another(self, load: Load) -> None:
        service = load()
        base = self.end(service, service.create("step-1", SUPERVISED, None)).fine_tuned_model
        status = self.end(service, service.create("step-2", SUPERVISED, base))
        assert status.state == "succeeded", status.message
        assert base is None or status.fine_tuned_model != base

    def test_a_status_that_is_final_stays(self, load: Load) -> None:
        service = load()
        job = service.create("step-1", SUPERVISED, None)
        ended = self.end(service, job)
        again = service.status(job)
        assert (again.state, again.fine_tuned_model) == (ended.state, ended.fine_tuned_model)
        assert load().status(job).state == ended.state

    def test_a_cancelled_job_ends(self, load: Load) -> None:
        service = load()
        job = service.create("step-1", SUPERVISED, None)
        service.cancel(job)
        assert self.end(service, job).state == "cancelled"
        assert service.find("step-1") == job

    def test_an_unknown_job_is_refused(self, load: Load) -> None:
        with pytest.raises(RunError):
            load().status("no-such-job")

    def test_it_leaves_examples_as_they_were(self, load: Load) -> None:
        examples = copy.deepcopy(SUPERVISED)
        load().create("step-1", examples, None)
        assert examples == SUPERVISED


class TestFineTuneService(FineTuneServiceContract):
    """The contract for every ``--plugrl-fine-tune-service``."""

    __test__ = True
