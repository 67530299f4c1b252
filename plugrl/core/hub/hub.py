"""``Hub``: where models and data sets are published, and fetched from by name and revision."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugrl.core.component import Component
from plugrl.core.errors import ConfigError
from plugrl.core.factory import make_component
from plugrl.core.scenario import DataItem

#: The hub that names mean, unless the variable :data:`VARIABLE` names another one.
DEFAULT_HUB = "huggingface"
VARIABLE = "PLUGRL_HUB"
#: Addresses of single files on it begin so.
SCHEME = "hf://"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True)
class Snapshot:
    """Files of a repository at one commit.

    Attributes:
        folder: where they lie on this machine.
        commit: the revision that they belong to; it never means other files.
    """

    folder: Path
    commit: str


@dataclass(frozen=True)
class DataSetName:
    """A data set on a hub.

    Attributes:
        name: ``owner/name``.
        subset: one of its configurations; None: the only one, or the default.
        revision: a branch, tag or commit; None: the main branch.
    """

    name: str
    subset: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.subset})" if self.subset else self.name

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> DataSetName:
        """The data set that a section with a ``name`` asks for."""
        return cls(section["name"], section.get("subset"), section.get("revision"))


class Hub(Component, ABC):
    """Fetches models and data sets by name, keeps them in a cache, and takes models.

    What is in the cache is not asked for again when the revision is a commit. Every error is a
    ``ConfigError`` of one line that says what, where and the remedy; code of a repository is never
    run.
    """

    @abstractmethod
    def model(self, name: str, revision: str | None, *, weights: bool) -> Snapshot:
        """The files of a model; without ``weights`` only its configuration and tokenizer.

        Raises:
            ConfigError: it cannot be had.
        """

    @abstractmethod
    def model_fault(self, name: str, revision: str | None) -> str | None:
        """What of a model is missing or refused, by its list of files; None: nothing is.

        Raises:
            ConfigError: it cannot be had.
        """

    @abstractmethod
    def commit(self, data: DataSetName) -> str:
        """The commit that the revision of a data set means now.

        Raises:
            ConfigError: it cannot be had, or it has no such subset.
        """

    @abstractmethod
    def first_problem(self, data: DataSetName, split: str) -> DataItem | None:
        """The first row of a split; None: to know it, much would have to be downloaded.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """

    @abstractmethod
    def fetch(self, data: DataSetName, split: str) -> None:
        """Download the files of a split into the cache.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """

    @abstractmethod
    def problems(self, data: DataSetName, split: str) -> Sequence[DataItem]:
        """All rows of a split, downloaded if they are not in the cache.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """

    @abstractmethod
    def pinned(self, address: str) -> str:
        """The address of files with the commit that its revision means now.

        Raises:
            ConfigError: the repository cannot be had.
        """

    @abstractmethod
    def files(self, address: str) -> Sequence[Path]:
        """The files at an address such as ``hf://datasets/owner/name@revision/data/*.jsonl``.

        Raises:
            ConfigError: there are none, or they cannot be had.
        """

    @abstractmethod
    def first_in(self, address: str) -> DataItem | None:
        """The first row of the files at an address; None: much would have to be downloaded.

        Raises:
            ConfigError: there are no such files, or they cannot be had.
        """

    @abstractmethod
    def check_push(self, name: str, *, token: bool = True) -> None:
        """Check what can be known before files are prepared for :meth:`push`.

        Args:
            name: ``owner/name``.
            token: whether there must be one.

        Raises:
            ConfigError: the name has another form, or there is no token.
        """

    @abstractmethod
    def push(
        self, folder: Path, name: str, *, private: bool, revision: str | None, message: str
    ) -> str:
        """Publish the files of a folder as a model, and return its address.

        Args:
            folder: what is published.
            name: ``owner/name``; the repository is made if it is not there.
            private: whether others cannot see a repository that is made.
            revision: the branch that is written; None: main. It is made if it is not there.
            message: of the commit.

        Raises:
            ConfigError: it cannot be written, or there is no token.
        """


def has_hub_form(text: str) -> bool:
    """Whether ``text`` has the form ``owner/name``."""
    return _NAME.fullmatch(text) is not None


def is_hub_name(text: str) -> bool:
    """Whether ``text`` has the form ``owner/name`` and is no folder or file here."""
    return has_hub_form(text) and not Path(text).exists()


def find_hub() -> Hub:
    """The hub that names mean.

    Raises:
        PlugrlError: there is no such hub, it is disabled or cannot be loaded.
    """
    named = os.environ.get(VARIABLE)
    try:
        hub: Hub = make_component("hub", named or DEFAULT_HUB)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}: {error}" if named else str(error)) from error
    return hub


def model_folder(source: Any, *, weights: bool) -> Path:
    """The folder of the model that a ``source`` with a ``path`` names, fetched if it is on the hub.

    Args:
        source: the section.
        weights: whether the weights are needed; else configuration and tokenizer are there alone.

    Raises:
        ConfigError: there is no such folder, and the hub does not give the model.
    """
    path, revision = str(source["path"]), source.get("revision")
    folder = Path(os.path.expanduser(path))
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(
                f"{path} is a folder, and revision {revision!r} belongs to a model of the hub; "
                "leave revision out, or write a name that is no folder here"
            )
        return folder
    if not is_hub_name(path):
        raise ConfigError(
            f"{path}: there is no such folder; a model of the hub is written owner/name"
        )
    try:
        return find_hub().model(path, revision, weights=weights).folder
    except ConfigError as error:
        raise ConfigError(f"{path}: there is no such folder here, and {error}") from error
