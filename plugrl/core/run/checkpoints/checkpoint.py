"""Checkpoints: folders that appear atomically, are verified when read, and hold no pickle.

``checkpoints/step-00000012/`` holds ``state.json`` (the tree), ``tensors.safetensors``, with
``tensors-2.safetensors`` and so on where they are many, a folder ``shards-N`` for each model
whose tensors other processes save, and ``manifest.json`` (format, step, score, configuration, size
and SHA-256 of the others). It is written under a hidden name, synced and renamed, so that a crash
at any point leaves the earlier checkpoints intact.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import PlugrlError, RunError
from plugrl.core.plugins.user_code.working_folder import display_path
from plugrl.core.run.atomic_writes import UNFINISHED, disk_error, sync_folder, temporary_name
from plugrl.core.run.checkpoints.state import Encoder, decode

if TYPE_CHECKING:
    import torch

#: Of checkpoints whose tensors are in several files; those with one file have format 1.
FORMAT = 2
#: Bytes of tensors from which on others go to another file: files are hashed side by side.
_FILE_BYTES = 2**28
_TREE, _TENSORS, _MANIFEST = "state.json", "tensors.safetensors", "manifest.json"
_PREFIX, _BROKEN = "step-", "broken-"
log = logging.getLogger("plugrl.run")


class BrokenCheckpointError(RunError):
    """A checkpoint is incomplete or damaged; an older one may be intact."""


def save(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    *,
    score: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write ``state`` as the checkpoint of ``step`` below ``folder`` and return its path.

    ``about`` is added to the manifest, which can be read without loading the state.

    Raises:
        RunError: the disk is full, or the state holds something that cannot be saved.
            Nothing half-written stays behind.
    """
    path = _free_name(folder, step)
    write_state(path, state, {"step": step, "score": score, **(about or {})})
    return path


def write_state(
    path: Path, state: Mapping[str, Any], about: Mapping[str, Any], *, lenient: bool = False
) -> None:
    """Write one state folder: under a hidden name, synced, then renamed to ``path``."""
    encoder = Encoder(lenient=lenient)
    tree = encoder.encode(state)
    temporary = temporary_name(path)
    try:
        # Without parents=True: a deleted run folder must not reappear with only this in it.
        path.parent.mkdir(exist_ok=True)
        temporary.mkdir()
        _write_synced(temporary / _TREE, json.dumps(tree, allow_nan=False).encode("utf-8"))
        names = chain(
            [_TREE], _write_tensors(temporary, encoder), _write_shards(temporary, encoder)
        )
        files = _fingerprints(temporary, names)
        form = FORMAT if len(_tensor_files(files)) > 1 else 1
        manifest = {"format": form, **about, "files": files}
        # Last: a folder with a manifest has everything that the manifest names.
        _write_synced(temporary / _MANIFEST, json.dumps(manifest, indent=2).encode("utf-8"))
        # First the contents, then the rename: after a power cut, a checkpoint that is there is
        # complete.
        sync_folder(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(error, "save the checkpoint", path) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_shards(checkpoint: Path, encoder: Encoder) -> Iterator[str]:
    """Let other processes write their parts; gives the files of each folder.

    Raises:
        RunError: there are none, since the others write to another disk.
    """
    for name, sharded in encoder.shards.items():
        folder = checkpoint / name
        sharded.write(folder)
        files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        if not files:
            raise RunError(
                f"cannot save the checkpoint: other processes wrote their parts of it, and "
                f"{display_path(checkpoint.parent)} does not hold them; put the run folder on a "
                "disk that all machines share (settings.runs_folder)"
            )
        sync_folder(folder)
        yield from (f"{name}/{file}" for file in files)


def _free_name(folder: Path, step: int) -> Path:
    # Never overwrite a checkpoint of this step, even a damaged one: a crash could lose both.
    path = folder / f"{_PREFIX}{step:08d}"
    attempt = 1
    while path.exists():
        attempt += 1
        path = folder / f"{_PREFIX}{step:08d}-r{attempt}"
    return path


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(folder: Path, encoder: Encoder) -> Iterator[str]:
    """Write the tensors; gives the name of each file when it is there."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    needed = sum(tensor.nbytes for tensor in encoder.tensors.values())
    for number, tensors in enumerate(_by_file(encoder.tensors), 1):
        name = _TENSORS if number == 1 else f"tensors-{number}.safetensors"
        path = folder / name
        try:
            save_file(tensors, path)
        except SafetensorError as error:
            free = shutil.disk_usage(folder).free
            raise RunError(
                f"cannot save the checkpoint: {display_path(folder)} needs {needed:,} bytes and "
                f"the disk has {free:,} ({error}); free some space and resume"
            ) from error
        # safetensors creates the file with mode 0600; give it the mode that the umask allows.
        os.chmod(path, (folder / _TREE).stat().st_mode & 0o777)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        yield name


def _by_file(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    found: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if found and size + tensor.nbytes > _FILE_BYTES:
            yield found
            found, size = {}, 0
        found[name] = tensor
        size += tensor.nbytes
    yield found


def _tensor_files(names: Iterable[str]) -> list[str]:
    """Of the files of a checkpoint, those that :func:`_write_tensors` wrote."""
    return [name for name in names if "/" not in name and name.endswith(".safetensors")]


def _fingerprints(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Sizes and hashes of files, which are hashed while further names come."""
    with ThreadPoolExecutor() as pool:
        found = {name: pool.submit(_fingerprint, folder / name) for name in names}
        return {name: each.result() for name, each in found.items()}


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def candidates(folder: Path) -> list[Path]:
    """Return the checkpoints below ``folder``, newest first, without opening them."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.startswith(_PREFIX)), key=_sort_key)[::-1]


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint; -1 if the name has none."""
    return _sort_key(path)[0]


def _sort_key(path: Path) -> tuple[int, int]:
    step, _, attempt = path.name.removeprefix(_PREFIX).partition("-r")
    return (int(step) if step.isdigit() else -1, int(attempt) if attempt.isdigit() else 1)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a checkpoint.

    Raises:
        BrokenCheckpointError: it is missing or damaged.
        RunError: a newer plugrl wrote it.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        version = int(manifest["format"])
        if not isinstance(manifest["files"], dict):
            raise ValueError("files")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BrokenCheckpointError(
            f"{display_path(path)}: its manifest cannot be read ({error})"
        ) from error
    if version > FORMAT:
        raise RunError(
            f"{display_path(path)} has format {version} and this plugrl reads {FORMAT}: upgrade it"
        )
    return manifest


def verify(path: Path) -> dict[str, Any]:
    """Check sizes and hashes of a checkpoint and return its manifest.

    Raises:
        BrokenCheckpointError: a file is missing, cut short or changed.
    """
    manifest = read_manifest(path)
    expected = manifest["files"]
    # The sizes first: they reveal most damage without reading gigabytes.
    for name in dict.fromkeys((_TREE, _TENSORS, *expected)):
        try:
            whole = name in expected and (path / name).stat().st_size == expected[name]["size"]
        except (OSError, TypeError, KeyError) as error:
            raise BrokenCheckpointError(
                f"{display_path(path)}: {name} cannot be read ({error})"
            ) from error
        if not whole:
            raise BrokenCheckpointError(f"{display_path(path)}: {name} is missing or cut short")
    try:
        found = _fingerprints(path, expected)
    except OSError as error:
        raise BrokenCheckpointError(f"{display_path(path)} cannot be read ({error})") from error
    for name, fingerprint in found.items():
        if fingerprint != expected[name]:
            raise BrokenCheckpointError(
                f"{display_path(path)}: {name} is damaged (its hash differs)"
            )
    return manifest


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint that is complete and undamaged, if there is one."""
    for path in candidates(folder):
        try:
            verify(path)
        except BrokenCheckpointError as error:
            log.warning("%s; trying the one before", error)
            continue
        return path
    return None


def load(path: Path) -> dict[str, Any]:
    """Verify a checkpoint and return its state, tensors on the CPU.

    Raises:
        BrokenCheckpointError: it is incomplete or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = _tensor_files(verify(path)["files"])
    try:
        tree = json.loads((path / _TREE).read_text(encoding="utf-8"))
        tensors = dict(chain.from_iterable(load_file(path / name).items() for name in files))
        state: dict[str, Any] = decode(tree, tensors, path)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BrokenCheckpointError(
            f"{display_path(path)}: its state cannot be read ({error})"
        ) from error
    return state


def load_newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Load the newest intact checkpoint; newer damaged ones are renamed, with a warning.

    Raises:
        RunError: there are checkpoints, but not one can be read.
    """
    found = candidates(folder)
    for path in found:
        try:
            state = load(path)
        except BrokenCheckpointError as error:
            log.warning("%s; trying the one before", error)
            continue
        # Only now: if none can be read, all keep their names, for whoever repairs them.
        for broken in found[: found.index(path)]:
            _set_aside(broken)
        return path, state
    if found:
        raise RunError(
            f"none of the {len(found)} checkpoints in {display_path(folder)} can be read; "
            "move them away to start this run from its beginning"
        )
    return None


def _set_aside(path: Path) -> None:
    target = path.with_name(_BROKEN + path.name)
    shutil.rmtree(target, ignore_errors=True)
    try:
        os.rename(path, target)
    except OSError as error:
        log.warning("cannot rename the damaged checkpoint %s (%s)", display_path(path), error)


def prune(folder: Path, keep: int | None) -> None:
    """Delete all checkpoints but the ``keep`` newest and the best one; None deletes nothing."""
    if keep is None:
        return
    scored: list[tuple[float, tuple[int, int], Path]] = []
    found = candidates(folder)
    for path in found:
        try:
            score = read_manifest(path).get("score")
        except PlugrlError:
            continue
        if isinstance(score, (int, float)):
            scored.append((float(score), _sort_key(path), path))
    best = max(scored)[2] if scored else None
    for path in found[keep:]:
        if path != best:
            # Renamed first, so that a half-deleted one is never taken for a checkpoint.
            hidden = path.with_name(UNFINISHED + path.name)
            os.rename(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)
