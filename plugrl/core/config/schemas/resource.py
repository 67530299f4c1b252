"""The section ``resource``: the machines that ``plugrl launch`` asks a cluster for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError

_VARIABLE = re.compile(r"[A-Za-z_]\w*")
#: The name of a Secret and of a key in it, as Kubernetes takes them.
_SECRET = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[-.\w]{1,253}")
#: What the configuration file of a scheduler or its command line takes as one word.
_WORD = re.compile(r"[A-Za-z0-9][\w.:/@+-]*")
_MINUTES = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
#: A volume of Kubernetes, by the word that begins its source.
VOLUMES = {"claim": "a PersistentVolumeClaim", "host": "a folder of the node"}


@dataclass
class MachineConfig:
    """One machine, or pod, of a launched job."""

    cpu_count: int = described(2, "CPU cores", at_least=1, at_most=10**4)
    gpu_count: int = described(0, "GPUs", at_least=0, at_most=10**4)
    memory_gb: float = described(8.0, "gigabytes of memory (GiB)", above=0, at_most=1e6)


@dataclass
class WorkersConfig(MachineConfig):
    """Further machines of one sort."""

    replicas: int = described(1, "how many of them", at_least=0, at_most=10**4)


@dataclass
class InferenceMachinesConfig(WorkersConfig):
    """Machines for inference engines."""

    served_model_name: str | None = described(
        None, "name of the model at the server of --inference-url; null: models.NAME.source"
    )


@dataclass
class VolumeConfig:
    """Storage that all pods mount."""

    source: str = described("", "claim/NAME, a PersistentVolumeClaim, or host/PATH, of the node")
    path: str = described("", "where it is mounted")
    read_only: bool = described(False, "whether nothing may be written there")

    def __post_init__(self) -> None:
        kind, slash, rest = self.source.partition("/")
        if kind not in VOLUMES or not slash or not rest:
            raise ConfigError(f"source must be claim/NAME or host/PATH, not {self.source!r}")
        if kind == "claim" and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", rest):
            raise ConfigError(
                f"source names the claim {rest!r}; Kubernetes takes small letters, digits, - and ."
            )
        if not re.fullmatch(r"/[^\0\n:]+", self.path):
            raise ConfigError(f"path must be an absolute path below /, not {self.path!r}")


@dataclass
class ResourceConfig:
    """What ``plugrl launch`` asks a cluster for; ``plugrl train`` uses the machine it is on."""

    training: MachineConfig = described(
        MachineConfig, "the machine of the driver, which trains there"
    )
    inference: InferenceMachinesConfig | None = described(
        None, "machines for inference engines; null: none besides that of the driver"
    )
    rollout: WorkersConfig | None = described(
        None, "machines for rollout workers; null: none besides that of the driver"
    )
    image: str | None = described(None, "container image with plugrl, its plugins and Ray")
    namespace: str = described("default", "namespace of Kubernetes")
    queue: str = described("default", "queue of Volcano")
    service_account: str | None = described(None, "service account of the pods")
    volumes: list[VolumeConfig] = described([], "storage that all pods mount")
    secrets: dict[str, str] = described(
        {}, "by environment variable, where Kubernetes keeps its value: SECRET/KEY"
    )
    secret_name: str = described(
        "plugrl", "the Secret with the variables of credentials that `secrets` does not name"
    )
    partition: str | None = described(None, "partition of SLURM")
    account: str | None = described(None, "account of SLURM")
    time_limit: str | None = described(None, "time limit of SLURM, such as 4:00:00 or 2-0")

    def __post_init__(self) -> None:
        for key in ("image", "service_account", "partition", "account"):
            value = getattr(self, key)
            if value is not None and not _WORD.fullmatch(value):
                raise ConfigError(f"{key} must be one word, not {value!r}")
        for key in ("namespace", "queue", "secret_name"):
            value = getattr(self, key)
            if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
                raise ConfigError(
                    f"{key} must have small letters, digits and - alone, 63 at most, not {value!r}"
                )
        if self.time_limit is not None and not _MINUTES.fullmatch(self.time_limit):
            raise ConfigError(
                f"time_limit must be minutes, H:MM:SS or DAYS-HOURS, not {self.time_limit!r}"
            )
        for name, reference in self.secrets.items():
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(f"secrets has {name!r}, which is no environment variable")
            if not _SECRET.fullmatch(reference):
                # What stands there may be the credential itself.
                raise ConfigError(
                    f"secrets.{name} must say where the value is kept, SECRET/KEY, not the value"
                )

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> ResourceConfig:
        """The section of a resolved configuration, which holds plain mappings."""
        inference, rollout = tree.get("inference"), tree.get("rollout")
        made = {
            "training": MachineConfig(**tree.get("training", {})),
            "inference": None if inference is None else InferenceMachinesConfig(**inference),
            "rollout": None if rollout is None else WorkersConfig(**rollout),
            "volumes": [VolumeConfig(**volume) for volume in tree.get("volumes", ())],
        }
        return cls(**{**tree, **made})
