"""New weights for a server: written to a folder that it reads, and loaded between two requests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import RunError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Call:
    """One request to a server's control interface: where, and the JSON that is sent."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Control:
    """How a server takes weights, by its public documents.

    Attributes:
        pause: stops its sampling.
        load: makes it read a folder; there may be several calls.
        resume: lets it sample again.
        remedy: what to do where the server has no such interface.
    """

    pause: Call
    load: tuple[Call, ...]
    resume: Call
    remedy: str


def vllm(folder: Path, version: int) -> Control:
    """The calls of vLLM's development mode: pause, ``reload_weights`` on every worker, resume.

    Nothing of this process is open by then, so that ``wait`` waits for others' requests alone.
    """
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
    return Control(
        pause=Call("/pause?mode=wait", {}),
        load=(Call("/collective_rpc", reload), Call("/reset_prefix_cache", {})),
        resume=Call("/resume", {}),
        remedy="start vLLM with the environment variable VLLM_SERVER_DEV_MODE=1",
    )


def sglang(folder: Path, version: int) -> Control:
    """The calls of SGLang: pause, ``update_weights_from_disk``, continue."""
    update = {
        "model_path": str(folder),
        "flush_cache": True,
        "abort_all_requests": False,
        "weight_version": label(version),
    }
    return Control(
        # Requests of others wait and begin again; their cache belongs to the old weights.
        pause=Call("/pause_generation", {"mode": "retract"}),
        load=(Call("/update_weights_from_disk", update),),
        resume=Call("/continue_generation", {}),
        remedy="use an SGLang that has it, or write freeze_for_weight_sync: false if it has all "
        "but the pause",
    )


def label(version: int) -> str:
    """The name of a version of the weights, for servers that give it back with their answers."""
    return f"plugrl-{version}"


def check_loaded(answer: Any) -> None:
    """Refuse an answer that says that the weights were not loaded.

    Raises:
        RunError: it says so.
    """
    if isinstance(answer, Mapping) and answer.get("success") is False:
        said = " ".join(str(answer.get("message", "")).split())[:300]
        raise RunError(
            f"the server did not load the new weights: {said or 'it does not say why'}; they must "
            "be of the model that it was started with"
        )


class WeightFolder:
    """Folders of weights, the newest of which is kept; all go with this process.

    Args:
        parent: holds them; None: the folder of temporary files.
    """

    def __init__(self, parent: str | None) -> None:
        self._parent = None if parent is None else Path(os.path.expanduser(parent)).resolve()
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._number = 0
        self.newest: Path | None = None

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> Path:
        """Write ``weights`` to a new folder; it has its name when it is complete.

        Raises:
            RunError: it cannot be written.
        """
        from safetensors.torch import save_file

        self._number += 1
        try:
            target = self._folder() / f"weights-{version}-{self._number}"
            begun = target.with_name(f"{target.name}.tmp")
            begun.mkdir()
            save_file(_untie(weights), begun / "model.safetensors", metadata={"format": "pt"})
            begun.rename(target)
        except OSError as error:
            raise RunError(
                f"weights cannot be written to {self._parent or tempfile.gettempdir()} "
                f"({error.strerror or error}); name a folder in "
                "models.NAME.inference.weights_folder that can be written and that the server can "
                "read"
            ) from error
        return target

    def _folder(self) -> Path:
        """A folder that no other run or model has."""
        if self._own is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._own = tempfile.TemporaryDirectory(prefix="plugrl-weights-", dir=self._parent)
            # The server may run as somebody else.
            Path(self._own.name).chmod(0o755)
        return Path(self._own.name)

    def keep(self, folder: Path) -> None:
        """Make ``folder`` the newest, and drop the one before it."""
        before, self.newest = self.newest, folder
        if before is not None and before != folder:
            shutil.rmtree(before, ignore_errors=True)


def _untie(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU; of those that are one, which tied weights are, the first."""
    seen: set[tuple[Any, ...]] = set()
    apart = {}
    for name, tensor in weights.items():
        place = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        apart[name] = tensor.detach().cpu().contiguous()
    return apart
