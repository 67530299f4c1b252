"""The place ``kubernetes``: a ``RayJob`` of KubeRay in a queue of Volcano, through kubectl."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, UsageError
from plugrl.core.launch.launcher import JobState, Launcher, LaunchJob, LaunchStatus
from plugrl.plugins.kubernetes.manifest import LABEL, MOST_BYTES, manifests, object_name

#: KubeRay's published schema of the RayJob, as far as :mod:`~.manifest` writes one.
SCHEMA = Path(__file__).with_name("rayjob-v1.json")
#: A line of a program's log, as ``E1130 02:38:24.419626``.
_LOGGED = re.compile(r"[EFIW]\d{4} \d\d:\d\d:\d\d")
_STATES: dict[str, JobState] = {
    "": "pending",
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_KINDS = "rayjob,configmap"


class KubernetesLauncher(Launcher):
    """Applies a run as a RayJob: the driver in the head pod, further pods as ``resource`` says.

    The files that the configuration names travel in a ConfigMap. Runs are written to a volume, and
    credentials are read from Secrets that the cluster has.
    """

    most_bytes: ClassVar[int] = MOST_BYTES
    conformance: ClassVar[Mapping[str, Any]] = {
        "resource": {
            "image": "registry.example/plugrl:1",
            "volumes": [{"source": "claim/runs", "path": "/runs"}],
        }
    }

    @dataclass
    class Config:
        """Which cluster."""

        address: str | None = described(
            None, "context of kubectl's configuration; null: the current one"
        )

    def preview(self, job: LaunchJob) -> str:
        """The manifests as YAML, checked against KubeRay's schema.

        Raises:
            ConfigError: the section ``resource`` lacks what a cluster needs, or something does not
                fit.
        """
        import yaml

        made = manifests(job)
        for each in made:
            check_manifest(each)
        return yaml.safe_dump_all(made, sort_keys=False, allow_unicode=True, width=10**6)

    def start(self, job: LaunchJob) -> str:
        """Apply the manifests and return the name of the RayJob.

        Raises:
            ConfigError: as :meth:`preview`.
            UsageError: there is no kubectl, or the cluster refuses them.
        """
        text = self.preview(job)
        name = object_name(job.name)
        # On the server's side: an annotation with a whole ConfigMap would be too large.
        self._kubectl("apply", "--server-side", "-f", "-", given=text)
        return name

    def jobs(self) -> Sequence[LaunchStatus]:
        """The RayJobs of plugrl in the current namespace, the newest first.

        Raises:
            UsageError: there is no kubectl, or no cluster answers.
        """
        labelled = ("-l", "app.kubernetes.io/managed-by=plugrl", "-o", "json")
        listed = json.loads(self._kubectl("get", "rayjob", "--all-namespaces", *labelled))["items"]
        listed.sort(key=lambda item: item["metadata"].get("creationTimestamp", ""), reverse=True)
        return [_status(item) for item in listed]

    def logs(self, name: str, *, follow: bool) -> Iterator[str]:
        """What the driver has printed, as the pod that submitted it repeats it.

        Raises:
            UsageError: there is no kubectl, no cluster answers, or it has no such job.
        """
        words = ["logs", f"job/{name}", "-n", self._namespace(name), *(["-f"] if follow else [])]
        with subprocess.Popen(
            self._command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            yield from running.stdout
            said = running.stderr.read()
        if running.returncode:
            raise UsageError(_refusal(words, said))

    def stop(self, name: str) -> None:
        """Delete the job with its pods; what was learned since the last checkpoint is lost.

        Raises:
            UsageError: there is no kubectl, no cluster answers, or it has no such job.
        """
        namespace = self._namespace(name)
        self._kubectl("delete", _KINDS, "-n", namespace, "-l", f"{LABEL}={name}", "--wait=false")

    def _namespace(self, name: str) -> str:
        labelled = ("-l", f"{LABEL}={name}", "-o", "json")
        listed = json.loads(self._kubectl("get", "rayjob", "--all-namespaces", *labelled))["items"]
        if not listed:
            raise UsageError(
                f"the cluster has no job {name!r}; see plugrl jobs list --on kubernetes"
            )
        return str(listed[0]["metadata"]["namespace"])

    def _command(self, words: Sequence[str]) -> list[str]:
        found = shutil.which("kubectl")
        if found is None:
            raise UsageError(
                "there is no kubectl on the PATH; install it, or send what "
                "--dry-run prints from where there is one"
            )
        context = [] if self.config.address is None else ["--context", str(self.config.address)]
        return [found, *context, *words]

    def _kubectl(self, *words: str, given: str = "") -> str:
        ran = subprocess.run(
            self._command(words), input=given, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise UsageError(_refusal(words, ran.stderr))
        return ran.stdout


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Check a RayJob against KubeRay's schema, and pass over what is none.

    Raises:
        ConfigError: it does not conform.
        UsageError: the package jsonschema is not installed.
    """
    if manifest["kind"] != "RayJob":
        return
    try:
        from jsonschema import Draft202012Validator
    except ImportError as error:
        raise UsageError(
            "manifests are checked with jsonschema: pip install 'plugrl[kubernetes]'"
        ) from error
    faults = sorted(Draft202012Validator(_schema()).iter_errors(manifest), key=str)
    if faults:
        where = ".".join(map(str, faults[0].absolute_path))
        raise ConfigError(
            f"the RayJob does not fit KubeRay's schema: {where}: {faults[0].message[:200]}; change "
            "the section resource"
        )


@functools.cache
def _schema() -> Any:
    return json.loads(SCHEMA.read_text(encoding="utf-8"))


def _status(item: Mapping[str, Any]) -> LaunchStatus:
    status = item.get("status") or {}
    state = _STATES.get(str(status.get("jobStatus", "")), "unknown")
    if status.get("jobDeploymentStatus") == "Failed":
        state = "failed"
    message = " ".join(str(status.get("message") or status.get("reason") or "").split())
    return LaunchStatus(str(item["metadata"]["name"]), state, message[:200])


def _refusal(words: Sequence[str], said: str) -> str:
    lines = said.splitlines()
    # Before what it says, kubectl prints its log where it reaches no cluster.
    spoken = [line for line in lines if not _LOGGED.match(line)] or lines
    text = " ".join(" ".join(spoken).split())[:300]
    return f"kubectl {words[0]} failed: {text or 'it says nothing'}"
