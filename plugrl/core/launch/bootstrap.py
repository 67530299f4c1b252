"""The first program of a job on another machine; it runs before plugrl is known to be there.

It lies beside ``launch.json``, which says what to do, and ``files.tar.gz``, the files that
travelled. It checks the versions and variables, unpacks the files once beside the runs, so that a
resume finds them where the run had them, and becomes the command. It needs Python alone, also an
older one: that has to be able to say that it is too old.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tarfile
from typing import Any


def fault(job: dict[str, Any]) -> str | None:
    """Why this machine cannot run the job, in one line; None: it can."""
    from importlib import metadata

    host = socket.gethostname()
    here, wanted = f"{sys.version_info[0]}.{sys.version_info[1]}", job["python"]
    if here != wanted:
        return (
            f"{host} has Python {here} ({sys.executable}) and the job was launched with {wanted}; "
            f"use an image or environment with Python {wanted}, first on its PATH"
        )
    for name, version in sorted(job["packages"].items()):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = None
        if found != version:
            has = f"{name} {found}" if found else f"no {name}"
            return (
                f"{host} has {has} for {sys.executable} and the job was launched with {name} "
                f"{version}; pip install '{name}=={version}' there"
            )
    missing = [name for name in job["secrets"] if not os.environ.get(name)]
    if missing:
        names = " and ".join(missing)
        return f"{host} has no value for {names}; set it where the cluster is started"
    return None


def unpack(here: str, job: dict[str, Any]) -> str:
    """The folder with the files of the job; made once, also if two jobs begin together."""
    above = os.path.join(str(job["runs_folder"]), ".launched")
    folder = os.path.join(above, str(job["digest"]))
    if os.path.isdir(folder):
        return folder
    os.makedirs(above, exist_ok=True)
    partial = f"{folder}.{socket.gethostname()}.{os.getpid()}"
    with tarfile.open(os.path.join(here, "files.tar.gz")) as archive:
        archive.extractall(partial)
    os.makedirs(os.path.join(partial, job["folder"]), exist_ok=True)
    try:
        os.rename(partial, folder)
    except OSError:
        # Another job with the same files was faster.
        if not os.path.isdir(folder):
            raise
    return folder


def main() -> None:
    """Become the command of the job, or exit with 2 after one line."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "launch.json"), encoding="utf-8") as file:
        job = json.load(file)
    said = fault(job)
    if said is None:
        try:
            os.chdir(os.path.join(unpack(here, job), job["folder"]))
        except OSError as error:
            why = f"{error.strerror or error} on {socket.gethostname()}"
            said = f"{job['runs_folder']}: {why}; name a folder there with settings.runs_folder"
    if said is not None:
        print("error: " + said, file=sys.stderr)
        sys.exit(2)
    os.environ.update(job["variables"])
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "plugrl", *job["words"]])


if __name__ == "__main__":
    main()
