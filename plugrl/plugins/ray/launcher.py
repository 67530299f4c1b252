"""The place ``ray``: Ray Jobs on a cluster that is up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.launcher import JobState, Launcher, LaunchJob, LaunchStatus
from plugrl.core.launch.payload import PROGRAM, payload

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

#: Ray's names of the states of a job.
_STATES: dict[str, JobState] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
#: Seconds in which the head node has to answer.
_PATIENCE = 10.0
#: Seconds from SIGTERM to SIGKILL at a stop: a step may end and its checkpoint be written. Ray's
#: own are 3.
_STOP_SECONDS = 600
#: Which cluster is meant.
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_MARK = "plugrl"
#: Modules of Ray that say at every call what they do.
_TALKATIVE = (
    "ray.dashboard.modules.job.sdk",
    "ray.dashboard.modules.dashboard_sdk",
    "ray._private.runtime_env.packaging",
)
_START = "start one with ray start --head, or give --address http://HOST:8265"


class RayLauncher(Launcher):
    """Sends a run to a Ray cluster as a job, with the files that its configuration names.

    The driver runs on the head node, or on a node with as many GPUs as ``resource.training`` asks
    for, and has the cluster as the one that it joins. A relative ``settings.runs_folder`` is that
    of the working directory here, which has to be on storage that the cluster shares, or the
    cluster on this machine.
    """

    follows: ClassVar[bool] = True
    #: No cluster: what is asked of one is refused.
    conformance: ClassVar[Mapping[str, Any]] = {"config": {"address": "http://127.0.0.1:1"}}

    @dataclass
    class Config:
        """Which cluster."""

        address: str | None = described(
            None,
            "http://HOST:8265, the dashboard of the head node; null: RAY_API_SERVER_ADDRESS, "
            "RAY_ADDRESS, or the cluster of this machine",
        )

    def preview(self, job: LaunchJob) -> str:
        """The arguments of the submission, and what travels.

        Raises:
            ConfigError: the files are too large.
        """
        import yaml

        runs = _runs_folder(job)
        sent = payload(job, runs, self.most_bytes)
        shown = {
            "address": self.config.address or "that of the environment, or of this machine",
            **_arguments(job),
            "command": shlex.join(["plugrl", *job.words_for(runs)]),
            "folder": os.path.join(runs, ".launched", json.loads(sent["launch.json"])["digest"]),
            "files": [os.path.relpath(file, job.folder) for file in job.files],
            "bytes": sum(map(len, sent.values())),
        }
        return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=10**6)

    def start(self, job: LaunchJob) -> str:
        """Submit the job and return its submission id.

        Raises:
            ConfigError: the files are too large.
            UsageError: no cluster answers, or it has a job of this name.
        """
        sent = payload(job, _runs_folder(job), self.most_bytes)
        client = self._client()
        arguments = _arguments(job)
        with tempfile.TemporaryDirectory(prefix="plugrl-launch-") as folder:
            for name, content in sent.items():
                Path(folder, name).write_bytes(content)
            arguments["runtime_env"] = {**arguments["runtime_env"], "working_dir": folder}
            with _one_line(job.name):
                return str(client.submit_job(**arguments))

    def jobs(self) -> Sequence[LaunchStatus]:
        """The jobs of plugrl on the cluster, the newest first.

        Raises:
            UsageError: no cluster answers.
        """
        with _one_line(""):
            listed = self._client().list_jobs()
        own = [job for job in listed if _MARK in (job.metadata or {}) and job.submission_id]
        return [_status(job) for job in sorted(own, key=lambda j: -(j.start_time or 0))]

    def status(self, name: str) -> LaunchStatus:
        """Where a job stands.

        Raises:
            UsageError: no cluster answers, or it has no such job.
        """
        client = self._client()
        with _one_line(name):
            return _status(client.get_job_info(name))

    def logs(self, name: str, *, follow: bool) -> Iterator[str]:
        """What a job has printed; with ``follow`` until it ends.

        Raises:
            UsageError: no cluster answers, or it has no such job.
        """
        client = self._client()
        with _one_line(name):
            client.get_job_info(name)
        if not follow:
            with _one_line(name):
                yield client.get_job_logs(name)
            return
        loop = asyncio.new_event_loop()
        pieces = client.tail_job_logs(name)
        try:
            while True:
                with _one_line(name):
                    try:
                        piece = loop.run_until_complete(anext(pieces))
                    except StopAsyncIteration:
                        return
                yield piece
        finally:
            with contextlib.suppress(Exception):
                loop.run_until_complete(pieces.aclose())  # type: ignore[attr-defined]
            loop.close()

    def stop(self, name: str) -> None:
        """Send SIGTERM to a job.

        Raises:
            UsageError: no cluster answers, or it has no such job.
        """
        client = self._client()
        with _one_line(name):
            client.stop_job(name)

    def _client(self) -> JobSubmissionClient:
        """A client of the cluster, which answers.

        Raises:
            UsageError: none does, or Ray Jobs are not installed.
        """
        given = self.config.address
        # Ray lets them count more than an argument.
        held = {name: os.environ.pop(name) for name in _ADDRESSES if given and name in os.environ}
        try:
            address = given or next((os.environ[n] for n in _ADDRESSES if n in os.environ), None)
            if address is not None and "://" not in address and address != "auto":
                # Of a host and a port, the dashboard's are as common as the cluster's own.
                dashboard = f"http://{address}"
                address = dashboard if _fault(dashboard) is None else address
            elif address is not None and address.startswith("http"):
                fault = _fault(address)
                if fault is not None:
                    raise UsageError(f"no Ray cluster answers at {address}: {fault}; {_START}")
            client_of = _load()
            with _one_line(""):
                return client_of(address)
        finally:
            os.environ.update(held)


def _load() -> type[JobSubmissionClient]:
    """The client of Ray Jobs, which says no more than is asked.

    Raises:
        UsageError: it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without aiohttp the client can be imported and nothing else.
    missing = [name for name in ("ray", "aiohttp") if find_spec(name) is None]
    if missing:
        raise UsageError(f"Ray Jobs need the package {missing[0]}: pip install 'plugrl[ray]'")
    from ray.job_submission import JobSubmissionClient

    for module in _TALKATIVE:
        logging.getLogger(module).setLevel(logging.WARNING)
    return JobSubmissionClient


def _arguments(job: LaunchJob) -> dict[str, Any]:
    """What is submitted, without the files; no text of a user is part of a command line."""
    made: dict[str, Any] = {
        "submission_id": job.name,
        "entrypoint": f"python {PROGRAM}",
        "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)}},
        "metadata": {_MARK: job.packages.get("plugrl", "")},
    }
    if job.resource.training.gpu_count:
        made["entrypoint_num_gpus"] = job.resource.training.gpu_count
    return made


def _runs_folder(job: LaunchJob) -> str:
    return str(job.folder / Path(os.path.expanduser(job.runs_folder)))


def _status(job: Any) -> LaunchStatus:
    state = _STATES.get(str(getattr(job.status, "value", job.status)), "unknown")
    text = " ".join(str(job.message or "").split())
    return LaunchStatus(str(job.submission_id), state, text[:200])


def _fault(address: str) -> str | None:
    """Why the dashboard at an address does not answer; None: it does."""
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/api/version", timeout=_PATIENCE):
            return None
    except urllib.error.HTTPError as error:
        # Whoever asks for credentials is there.
        return None if error.code in (401, 403) else f"it answers {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return " ".join(str(getattr(reason, "strerror", None) or reason).split())


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn what Ray raises into one line that says what to do."""
    try:
        yield
    except (ConfigError, UsageError, GeneratorExit):
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        if "already exists" in text:
            message = f"the cluster has a job {name!r} already; give another tag with -t"
        elif "404" in text or "does not exist" in text:
            message = f"the cluster has no job {name!r}; see plugrl jobs list --on ray"
        elif type(error).__name__ == "AuthenticationError":
            message = (
                "the Ray cluster wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "unless ~/.ray/auth_token has it"
            )
        elif isinstance(error, ConnectionError):
            message = f"no Ray cluster is reached ({text[:200]}); {_START}"
        else:
            message = f"Ray answers: {text[:300]}"
        raise UsageError(message) from error
