"""The fine-tuning service ``openai``: jobs at a server of OpenAI's files and fine-tuning API."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote, urlencode

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, PlugrlError, RunError
from plugrl.core.text.jobs.fine_tuning import (
    Examples,
    FineTuneConfig,
    FineTuneService,
    JobStatus,
    PreferenceExample,
)
from plugrl.core.text.remote.settings import check_address, missing
from plugrl.core.wording import did_you_mean_variable
from plugrl.plugins.openai import job_wire as wire
from plugrl.plugins.openai.inference_service import MODEL
from plugrl.plugins.openai.settings import DEFAULT_KEY
from plugrl.plugins.openai.transport import Address, Refused, Transport

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.text.inference.services import InferenceService, ModelSpec
    from plugrl.core.text.jobs.fine_tuning import JobContext

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
_JOBS, _FILES = "/fine_tuning/jobs", "/files"
#: Entries of a page, and pages that are read when a job is looked for by a server's whole list.
_PAGE, _PAGES = 100, 50


@dataclass
class OpenAiJobsConfig(FineTuneConfig):
    """Options of the fine-tuning service ``openai``."""

    base_url: str | None = described(
        None, "address of the API, which ends in /v1; null: that of the model's inference service"
    )
    api_key: str | None = described(
        None,
        "environment variable that holds the key; null: as the inference service, or "
        "OPENAI_API_KEY",
    )
    base_model: str | None = described(
        None, "name of the model to fine-tune; null: that of the inference service"
    )
    suffix: str | None = described(None, "part of the names of the fine-tuned models")
    min_examples: int = described(
        10, "jobs with fewer examples are not made; the API needs 10", at_least=1, at_most=10**9
    )
    epochs: int | str = described(
        "auto", "passes over the examples; auto: as the service says", at_least=1, at_most=10**5
    )
    batch_size: int | str = described(
        "auto", "examples of a step; auto: as the service says", at_least=1, at_most=10**6
    )
    learning_rate_multiplier: float | str = described(
        "auto",
        "scales the service's learning rate; auto: as the service says",
        above=0,
        at_most=1000,
    )
    beta: float | str = described(
        "auto", "of preferences: how strongly the model is held", above=0, at_most=1000
    )
    poll_interval: float = described(
        5.0, "seconds before a job is asked about again; they double", above=0, at_most=1e8
    )
    request_timeout: float = described(
        600.0, "seconds that one try of a request may take", above=0, at_most=1e8
    )
    patience: float = described(
        120.0,
        "seconds after a request's first failure, or its first rate limit, that end the run",
        above=0,
        at_most=1e8,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.base_url, self.api_key, DEFAULT_KEY)
        for name in ("epochs", "batch_size", "learning_rate_multiplier", "beta"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ConfigError(f"{name} must be auto or a number")


class OpenAiFineTuneService(FineTuneService):
    """Uploads examples, makes jobs, and asks about them.

    A job's name is in its metadata, by which it is found again. A request to make a job that broke
    off may have made it: it is looked for before another try.
    """

    Config: ClassVar[type] = OpenAiJobsConfig
    _begin: str | None = None

    @classmethod
    def preflight(cls, check: Preflight) -> Iterator[Finding]:
        """Packages, an address or a key that is missing; the server is not contacted."""
        config, path = check.section, check.path
        for module in ("httpx", "tenacity"):
            if importlib.util.find_spec(module) is None:
                yield path, missing(module, "openai")
        inference = check.models[path.split(".")[1]].inference
        for name in ("base_url", "base_model"):
            if not config[name] and not inference.get({"base_model": "model"}.get(name, name)):
                yield f"{path}.{name}", "is needed: the model's inference service has none"
        environment = check.root.environment
        key = config.api_key
        given = environment.setup_script or key in environment.variables
        if key and not given and not os.environ.get(key):
            yield (
                f"{path}.api_key",
                f"the environment variable {key} is not set{did_you_mean_variable(key)}; set it, "
                "or name another",
            )

    def load(self, spec: ModelSpec, context: JobContext) -> None:
        """Take address, key and model; nothing is asked.

        Raises:
            ConfigError: one of them is missing.
        """
        self._spec = spec
        path, inference = f"models.{spec.name}.fine_tune", context.inference.config
        base = self.config.base_url or inference.get("base_url")
        model = self.config.base_model or inference.get("model")
        for name, value in (("base_url", base), ("base_model", model)):
            if not value:
                raise ConfigError(f"{path}.{name} is needed")
        self._model = str(model)
        name = self.config.api_key or inference.get("api_key") or DEFAULT_KEY
        key = os.environ.get(name, "").strip()
        if not key and (self.config.api_key or inference.get("api_key")):
            raise ConfigError(
                f"{path}: the environment variable {name}, which holds the key of {base}, is not "
                "set; set it, or name another in api_key"
            )
        config = self.config
        self._address = Address(
            str(base).rstrip("/"), key, name, config.request_timeout, config.patience, 4
        )
        self._transport = Transport(self._address)

    # -- jobs ---------------------------------------------------------------------------------

    def find(self, name: str) -> str | None:
        """The id of the newest job whose metadata has ``name``."""
        return self._wait(lambda: self._find(name))

    def create(self, name: str, examples: Examples, base: str | None) -> str:
        """Upload the examples and make the job.

        Raises:
            RunError: the server refuses, fails, or limits the rate for longer than ``patience``.
            ConfigError: it refuses the key.
        """
        prefers = any(isinstance(example, PreferenceExample) for example in examples)
        lines, file = wire.as_lines(examples), f"{name}.jsonl"
        how = wire.method(prefers, self._numbers())

        async def make() -> str:
            uploaded = await self._find_upload(file, len(lines))
            if uploaded is None:
                answer = await self._ask(f"take the file {file}", _FILES, wire.upload(file, lines))
                uploaded = wire.identity(answer, "a file")
            return await self._create_job(name, base, uploaded, how)

        return self._wait(make)

    def retry(self, name: str, job: str, base: str | None) -> str:
        """Make the job ``name`` with the file of ``job``.

        Raises:
            RunError: as :meth:`create`, or the file is no longer there.
        """

        async def make() -> str:
            before = await self._job(job)
            kind = (before.get("method") or {}).get("type")
            how = wire.method(kind == "dpo", self._numbers())
            return await self._create_job(name, base, str(before.get("training_file")), how)

        return self._wait(make)

    def status(self, job: str) -> JobStatus:
        """What the server says of a job, with its newest event.

        Raises:
            RunError: it knows no such job, or fails.
        """

        async def look() -> JobStatus:
            found = await self._job(job)
            return wire.status(found, await self._event(job))

        return self._wait(look)

    def cancel(self, job: str) -> None:
        """Cancel a job."""
        self._wait(lambda: self._ask(f"cancel job {job}", f"{_JOBS}/{quote(job)}/cancel", {}))

    def use(self, inference: InferenceService, model: str, version: int) -> None:
        """Let ``inference`` sample from a fine-tuned model, if the server still has it.

        Raises:
            RunError: it has not.
        """
        try:
            self._wait(lambda: self._ask("describe a model", f"/models/{quote(model, safe='')}"))
        except Refused as error:
            if error.status != 404:
                raise
            raise RunError(
                f"the server at {self._address.base} no longer has the fine-tuned model {model}; "
                "resume from a checkpoint before it, or start a new run"
            ) from error
        inference.use_saved_weights(model, version)

    def import_weights(self, handed: Mapping[str, Any]) -> None:
        """Begin with a model that jobs of an earlier phase made.

        Raises:
            ConfigError: another service trained it.
        """
        if MODEL not in handed:
            super().import_weights(handed)
        self._begin = str(handed[MODEL])

    def export_weights(self, model: str) -> Mapping[str, Any]:
        """The name of a fine-tuned model."""
        return {MODEL: model}

    def close(self) -> None:
        """End open requests and the thread; a later request starts another."""
        if hasattr(self, "_transport"):
            self._transport.close()

    # -- requests -----------------------------------------------------------------------------

    def _numbers(self) -> wire.Numbers:
        config = self.config
        return wire.Numbers(
            config.epochs, config.batch_size, config.learning_rate_multiplier, config.beta
        )

    def _wait(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        return self._transport.submit(work).result()

    async def _ask(self, what: str, path: str, body: Any = None, **options: Any) -> Any:
        url = f"{self._address.base}{path}"
        return await self._transport.ask(what, url, body, read=lambda said: said, **options)

    async def _job(self, job: str) -> Mapping[str, Any]:
        try:
            found = await self._ask(f"describe job {job}", f"{_JOBS}/{quote(job)}")
        except Refused as error:
            if error.status != 404:
                raise
            raise RunError(
                f"the server at {self._address.base} knows no job {job}; was it made with another "
                "key? start a new run"
            ) from error
        return found if isinstance(found, Mapping) else {}

    async def _event(self, job: str) -> Mapping[str, Any] | None:
        """The newest event of a job, for the log; a run goes on without it."""
        path = f"{_JOBS}/{quote(job)}/events?limit=1"
        try:
            found = await self._ask(f"name events of job {job}", path, patience=0.0)
            return next(iter(wire.read_list(found, "events")), None)
        except PlugrlError as error:
            logger.debug("job %s: no event: %s", job, error)
            return None

    async def _find(self, name: str) -> str | None:
        after: dict[str, str] = {}
        for _ in range(_PAGES):
            query = urlencode({f"metadata[{wire.NAME}]": name, "limit": _PAGE, **after})
            page = await self._ask("name its fine-tuning jobs", f"{_JOBS}?{query}")
            jobs = wire.read_list(page, "fine-tuning jobs")
            # A server that does not know the filter names all jobs.
            for job in jobs:
                if wire.has_name(job, name):
                    return wire.identity(job, "a job")
            if not page.get("has_more") or not jobs:
                return None
            after = {"after": wire.identity(jobs[-1], "a job")}
        return None

    async def _find_upload(self, file: str, size: int) -> str | None:
        """The file that a process which was killed before it made the job has uploaded."""
        query = urlencode({"purpose": wire.PURPOSE, "limit": _PAGE, "order": "desc"})
        found = wire.read_list(await self._ask("name its files", f"{_FILES}?{query}"), "files")
        for entry in found:
            whole = entry.get("bytes") == size and entry.get("status") != "error"
            if entry.get("filename") == file and whole:
                return wire.identity(entry, "a file")
        return None

    async def _create_job(
        self, name: str, base: str | None, file: str, how: Mapping[str, Any]
    ) -> str:
        model = base or self._begin or self._model
        body = wire.request(name, model, file, how, self._spec.seed, self.config.suffix)
        tries = iter(range(1_000_000))

        async def look() -> None:
            if next(tries) and (found := await self._find(name)) is not None:
                raise _JobRequest(found)

        try:
            answer = await self._ask(f"make job {name}", _JOBS, body, before=look)
        except _JobRequest as made:
            return made.job
        return wire.identity(answer, "a job")


class _JobRequest(Exception):
    """An earlier try has made the job."""

    def __init__(self, job: str) -> None:
        super().__init__(job)
        self.job = job
