"""``Repository``: the files of a repository of the hub, at one commit, in the client's cache."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import Snapshot
from plugrl.plugins.huggingface.faults import hub_error

#: What messages call the kinds of repositories.
KINDS = {"model": "model", "dataset": "data set"}


@dataclass(eq=False)
class Repository:
    """A repository, of which files are downloaded when they are needed.

    The list of files at a commit is kept in the client's cache: what is there needs no network.

    Attributes:
        kind: of the repository.
        name: ``owner/name``.
        revision: a branch, tag or commit; None: the main branch.
        opening: patterns of the files that are always fetched.
        ignored: patterns of those that are not, of ``opening``.
    """

    kind: Literal["model", "dataset"]
    name: str
    revision: str | None = None
    opening: Sequence[str] = ("README.md",)
    ignored: Sequence[str] = field(default=())

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.name}"

    @cached_property
    def snapshot(self) -> Snapshot:
        """The folder of the commit that the revision means now, with the first files in it.

        Raises:
            ConfigError: it cannot be had.
        """
        folder = self._download(self.revision, self.opening, self.ignored)
        return Snapshot(folder, folder.name)

    @property
    def commit(self) -> str:
        """The commit that the revision means now; the errors are those of :attr:`snapshot`."""
        return self.snapshot.commit

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """All files of the commit with their bytes; the errors are those of :attr:`snapshot`."""
        from huggingface_hub import get_cached_repo_tree

        try:
            listed = get_cached_repo_tree(self.name, repo_type=self.kind, revision=self.commit)
        except Exception as error:
            raise hub_error(error, str(self), self.revision) from error
        return {file.path: file.size for file in sorted(listed, key=lambda file: file.path)}

    def download(self, files: Iterable[str]) -> Path:
        """The folder of the commit with these files in it; a bar shows what is downloaded.

        Raises:
            ConfigError: they cannot be had.
        """
        files = list(files)
        if self.has(files):
            return self.snapshot.folder
        return self._download(self.commit, [glob.escape(f) for f in files], (), bars=True)

    def has(self, files: Iterable[str]) -> bool:
        """Whether these files are in the cache."""
        return all((self.snapshot.folder / file).exists() for file in files)

    def _download(
        self,
        revision: str | None,
        allow: Sequence[str],
        ignore: Sequence[str],
        *,
        bars: bool = False,
    ) -> Path:
        require_client(str(self))
        from huggingface_hub import snapshot_download

        try:
            with progress_bars(shown=bars):
                folder = snapshot_download(
                    self.name,
                    repo_type=self.kind,
                    revision=revision,
                    allow_patterns=list(allow),
                    ignore_patterns=list(ignore) or None,
                )
            return Path(folder)
        except Exception as error:
            # What is asked for with a bar comes after the first files.
            raise hub_error(error, str(self), self.revision, partly=bars) from error


def require_client(what: str) -> None:
    """Check that the client of the hub is installed.

    Raises:
        ConfigError: it is not.
    """
    if find_spec("huggingface_hub") is None:
        raise ConfigError(
            f"{what}: the hub needs huggingface_hub, which is not installed; run: "
            'pip install "plugrl[hub]"'
        )


@contextmanager
def progress_bars(*, shown: bool = True) -> Iterator[None]:
    """Let the client show its bars, on a terminal alone."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if (shown and sys.stderr.isatty()) or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
