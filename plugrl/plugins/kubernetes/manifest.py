"""A launched job as manifests: a ConfigMap with its files and a KubeRay ``RayJob`` for Volcano."""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from plugrl.core.config.schemas.resource import MachineConfig, ResourceConfig, WorkersConfig
from plugrl.core.errors import ConfigError
from plugrl.core.launch.launcher import LaunchJob
from plugrl.core.launch.payload import ARCHIVE, PROGRAM, payload

#: KubeRay takes names of RayJobs that are DNS-1035 labels of so many characters; those of the
#: cluster and its pods are made of them.
MOST_CHARACTERS = 47
#: A ConfigMap holds 1 MiB, and travels in base64 in a request of 1.5 MiB.
MOST_BYTES = 900_000
#: Where the files of the job are mounted.
MOUNTED = "/etc/plugrl/job"
LABEL = "app.kubernetes.io/instance"
_MANAGED = {"app.kubernetes.io/managed-by": "plugrl"}
_LABEL_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_JOB_VOLUME = "plugrl-job"
#: Seconds after the end in which the logs of the pods can still be read.
_KEPT_SECONDS = 3600


def object_name(name: str) -> str:
    """The name of a job as one of Kubernetes: small letters, digits and ``-``.

    Raises:
        ConfigError: it begins with a digit, or is too long.
    """
    small = name.lower()
    if not _LABEL_NAME.fullmatch(small):
        raise ConfigError(
            f"the job {name!r} has no name for Kubernetes, which begins with a letter and has "
            "small letters, digits and - (DNS-1035); change experiment_name, or -t"
        )
    if len(small) > MOST_CHARACTERS:
        raise ConfigError(
            f"the job {name!r} has {len(small)} characters, and KubeRay takes {MOST_CHARACTERS}; "
            "write a shorter experiment_name, or a tag with -t"
        )
    return small


def manifests(job: LaunchJob) -> list[dict[str, Any]]:
    """The ConfigMap and the RayJob of a job.

    Raises:
        ConfigError: the section ``resource`` lacks what a cluster needs, or the name or the files
            do not fit.
    """
    name, resource = object_name(job.name), job.resource
    if not resource.image:
        raise ConfigError(
            "resource.image is not set, and pods need one with plugrl, its plugins and Ray: write "
            "resource.image=REGISTRY/NAME:TAG"
        )
    files = payload(job, runs_folder(job), MOST_BYTES)
    labels = {**_MANAGED, LABEL: name}
    meta = {"namespace": resource.namespace, "labels": labels}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{name}-files", **meta},
        "data": {name: text.decode() for name, text in files.items() if name != ARCHIVE},
        "binaryData": {ARCHIVE: base64.b64encode(files[ARCHIVE]).decode()},
    }
    scheduled = {
        "ray.io/scheduler-name": "volcano",
        "volcano.sh/queue-name": resource.queue,
    }
    ray_job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, **meta, "labels": {**labels, **scheduled}},
        "spec": {
            "entrypoint": f"python {MOUNTED}/{PROGRAM}",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            # A run that failed is resumed, not begun again.
            "backoffLimit": 0,
            "rayClusterSpec": {
                "headGroupSpec": {
                    "rayStartParams": {},
                    "template": _pod("ray-head", job, name, resource.training),
                },
                "workerGroupSpecs": [
                    _workers(group, job, name, machines) for group, machines in _groups(job)
                ],
            },
        },
    }
    return [config_map, ray_job]


def runs_folder(job: LaunchJob) -> str:
    """Where the pods write the runs: on a volume, so that they outlive the pods.

    Raises:
        ConfigError: no volume is writable, or the folder lies on none.
    """
    paths = [volume.path for volume in job.resource.volumes if not volume.read_only]
    if not paths:
        raise ConfigError(
            "resource.volumes has none that may be written, and the runs would be gone with the "
            "pods: write resource.volumes=[{source: claim/NAME, path: /data}]"
        )
    folder = posixpath.normpath(posixpath.join(paths[0], job.runs_folder))
    if not any(posixpath.commonpath([folder, path]) == posixpath.normpath(path) for path in paths):
        raise ConfigError(
            f"settings.runs_folder {folder} is on no volume that may be written "
            f"({', '.join(paths)}), and the runs would be gone with the pods; name a folder on one"
        )
    return folder


def _groups(job: LaunchJob) -> list[tuple[str, WorkersConfig]]:
    """The groups of worker pods that the job needs."""
    resource = job.resource
    named = {"inference": resource.inference if job.engines else None, "rollout": resource.rollout}
    return [(name, each) for name, each in named.items() if each is not None and each.replicas]


def _workers(group: str, job: LaunchJob, name: str, machines: WorkersConfig) -> dict[str, Any]:
    return {
        "groupName": group,
        "replicas": machines.replicas,
        "minReplicas": machines.replicas,
        "maxReplicas": machines.replicas,
        "rayStartParams": {},
        "template": _pod(f"ray-{group}", job, name, machines),
    }


def _pod(container: str, job: LaunchJob, name: str, machine: MachineConfig) -> dict[str, Any]:
    resource = job.resource
    wanted: dict[str, str] = {
        "cpu": str(machine.cpu_count),
        "memory": f"{round(machine.memory_gb * 1024)}Mi",
    }
    if machine.gpu_count:
        wanted["nvidia.com/gpu"] = str(machine.gpu_count)
    mounts: list[dict[str, Any]] = [
        {"name": _JOB_VOLUME, "mountPath": MOUNTED, "readOnly": True},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": _JOB_VOLUME, "configMap": {"name": f"{name}-files"}},
    ]
    for number, volume in enumerate(resource.volumes):
        kind, _, source = volume.source.partition("/")
        mounts.append(
            {"name": f"volume-{number}", "mountPath": volume.path, "readOnly": volume.read_only}
        )
        claim = {"persistentVolumeClaim": {"claimName": source, "readOnly": volume.read_only}}
        host = {"hostPath": {"path": f"/{source.lstrip('/')}"}}
        volumes.append({"name": f"volume-{number}", **(claim if kind == "claim" else host)})
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": container,
                "image": resource.image,
                # Requests that equal the limits: the pods are the last to be evicted.
                "resources": {"limits": wanted, "requests": dict(wanted)},
                "env": _environment(job.variables, job.secrets, resource),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if resource.service_account:
        spec["serviceAccountName"] = resource.service_account
    return {"metadata": {"labels": {**_MANAGED, LABEL: name}}, "spec": spec}


def _environment(
    variables: Mapping[str, str], secrets: tuple[str, ...], resource: ResourceConfig
) -> list[dict[str, Any]]:
    """The environment of a container; of a credential only where the cluster keeps it."""
    entries: list[dict[str, Any]] = [
        {"name": name, "value": value}
        for name, value in sorted(variables.items())
        if name not in resource.secrets
    ]
    for name in sorted({*secrets, *resource.secrets}):
        secret, _, key = resource.secrets.get(name, f"{resource.secret_name}/{name}").partition("/")
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        entries.append({"name": name, "valueFrom": reference})
    return entries
