"""What travels to a place that does not see this machine's files: three files, whatever the job."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.core.launch.launcher import LaunchJob

#: The program that the place runs, with Python, in the folder of the three.
PROGRAM = "launch.py"
ARCHIVE = "files.tar.gz"
_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")


def payload(job: LaunchJob, runs_folder: str, most_bytes: int) -> dict[str, bytes]:
    """The three files by their names; equal jobs give equal bytes.

    Args:
        job: the job.
        runs_folder: absolute, as the place sees it.
        most_bytes: that all of them may have, the archive compressed.

    Raises:
        ConfigError: a file cannot be read, or they are larger.
    """
    root = Path(os.path.commonpath([job.folder, *(file.parent for file in job.files)]))
    archive, digest = _archive(root, job.files, most_bytes)
    about = {
        "name": job.name,
        "words": job.words_for(runs_folder),
        "folder": os.path.relpath(job.folder, root),
        "runs_folder": runs_folder,
        "digest": digest,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "packages": dict(job.packages),
        "variables": dict(job.variables),
        "secrets": list(job.secrets),
    }
    made = {
        PROGRAM: _BOOTSTRAP.read_bytes(),
        "launch.json": (json.dumps(about, indent=1, sort_keys=True) + "\n").encode(),
        ARCHIVE: archive,
    }
    if sum(map(len, made.values())) > most_bytes:
        raise ConfigError(_too_large(job.files, most_bytes))
    return made


def _archive(root: Path, files: Sequence[Path], most_bytes: int) -> tuple[bytes, str]:
    """The files as a compressed archive, and a digest of their names and contents."""
    digest, buffer = hashlib.sha256(), io.BytesIO()
    # Before they are read: memory is not asked for what is refused anyway.
    if sum(_size(file) for file in files) > 4 * most_bytes:
        raise ConfigError(_too_large(files, most_bytes))
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file in sorted(files):
            try:
                content = file.read_bytes()
            except OSError as error:
                raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from None
            entry = tarfile.TarInfo(str(file.relative_to(root)))
            entry.size = len(content)
            entry.mode = 0o755 if os.access(file, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
            digest.update(json.dumps([entry.name, entry.mode, len(content)]).encode() + content)
    return buffer.getvalue(), digest.hexdigest()[:16]


def _too_large(files: Sequence[Path], most_bytes: int) -> str:
    largest = max(files, key=_size)
    total = sum(map(_size, files))
    return (
        f"the files of the job are larger than the {most_bytes / 1e6:g} MB that may travel "
        f"({len(files)} files, {total / 1e6:.1f} MB; the largest: {largest}, "
        f"{_size(largest) / 1e6:.1f} MB); put it on storage of the cluster and write its absolute "
        "path"
    )


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
