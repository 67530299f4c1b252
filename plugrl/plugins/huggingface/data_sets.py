"""Which files of a repository are a split of a subset, and their rows.

The card of a data set (``README.md``) lists its subsets with the files of each split. Parquet,
JSONL, JSON, CSV and Arrow are read as files of ``data.data_files`` are. The rest, and repositories
whose card names no files, are read by the library ``datasets``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import DataSetName
from plugrl.core.plugins.user_code.error_location import first_line
from plugrl.core.scenario import DataItem
from plugrl.core.text.data.files import PLAIN_SUFFIXES, FileItem, first_problem, read_files
from plugrl.core.wording import did_you_mean
from plugrl.plugins.huggingface.repository import Repository

#: Files up to this many bytes are downloaded to look at a first row.
SMALL = 10_000_000
_DEFAULT = "default"
#: Keys of a subset that say nothing about how its files are read.
_KNOWN = {"config_name", "data_files", "default", "description", "version"}
_MISSING = 'it is read by the package datasets; run: pip install "plugrl[hub]"'


@dataclass(eq=False)
class DataSet:
    """A data set at one commit.

    Args:
        asked: its name, subset and revision.
    """

    asked: DataSetName

    @cached_property
    def repository(self) -> Repository:
        """The repository that holds it."""
        return Repository("dataset", self.asked.name, self.asked.revision)

    def check(self) -> str:
        """The commit of the data set.

        Raises:
            ConfigError: it cannot be had, has no such subset, or is a program.
        """
        _ = self._splits
        return self.repository.commit

    @cached_property
    def _configs(self) -> Mapping[str, Mapping[str, Any]]:
        """The subsets of the card by name; empty: it names none."""
        from huggingface_hub.repocard import metadata_load

        card = self.repository.snapshot.folder / "README.md"
        try:
            written = metadata_load(card) if card.is_file() else None
        except Exception as error:
            raise ConfigError(
                f"{self.repository}: its README.md cannot be read ({first_line(error)}); name its "
                f"files in data_files, such as hf://datasets/{self.asked.name}/data/*.parquet"
            ) from error
        listed = (written or {}).get("configs")
        return {
            str(config["config_name"]): config
            for config in (listed if isinstance(listed, list) else ())
            if isinstance(config, Mapping) and "config_name" in config
        }

    @cached_property
    def _config(self) -> Mapping[str, Any] | None:
        """The subset that is meant; None: the card names none.

        Raises:
            ConfigError: there is no such subset, or one must be chosen.
        """
        configs, asked = self._configs, self.asked.subset
        if not configs:
            script = f"{self.asked.name.rpartition('/')[2]}.py"
            if script in self.repository.sizes:
                raise ConfigError(
                    f"{self.repository} is made by a program of its own ({script}), and code of "
                    "the hub is never run; take a copy with data files"
                )
            return None
        names = ", ".join(configs)
        if asked is None:
            defaults = [
                name
                for name, config in configs.items()
                if len(configs) == 1 or name == _DEFAULT or config.get("default")
            ]
            if len(defaults) != 1:
                raise ConfigError(f"{self.repository} has several subsets; choose one of: {names}")
            return configs[defaults[0]]
        if asked not in configs:
            close = did_you_mean(asked, configs, 1)
            raise ConfigError(f"{self.repository} has no subset {asked!r}; it has: {names}{close}")
        return configs[asked]

    @cached_property
    def _splits(self) -> Mapping[str, Sequence[str]] | None:
        """The patterns of files by split; None: the card does not say."""
        given = None if self._config is None else self._config.get("data_files")
        if not given:
            return None
        if isinstance(given, str):
            given = [given]
        if not any(isinstance(item, Mapping) for item in given):
            return {"train": [str(item) for item in given]}
        return {
            str(item["split"]): [
                str(path)
                for path in (item["path"] if isinstance(item["path"], list) else [item["path"]])
            ]
            for item in given
        }

    def _files(self, split: str) -> Sequence[str]:
        """The files of a split; all of the repository, where the card does not say.

        Raises:
            ConfigError: there is no such split, or there are no files.
        """
        splits = self._splits
        if splits is None:
            return list(self.repository.sizes)
        if split not in splits:
            close = did_you_mean(split, splits, 1)
            raise ConfigError(
                f"data set {self.asked} has no split {split!r}; it has: {', '.join(splits)}{close}"
            )
        found = matching(self.repository.sizes, splits[split])
        if not found:
            raise ConfigError(
                f"data set {self.asked}: its card names {', '.join(splits[split])} for split "
                f"{split!r}, and there are no such files; name others in data_files"
            )
        return found

    def first(self, split: str) -> DataItem | None:
        """The first row of a split; None: more than :data:`SMALL` bytes would be downloaded.

        Raises:
            ConfigError: the split cannot be had.
        """
        files = self._files(split)
        if not self._is_plain(files):
            total = sum(self.repository.sizes[file] for file in files)
            if total > SMALL and not self.repository.has(files):
                return None
            return next(iter(self.rows(split)), None)
        return first_row(self.repository, files)

    def fetch(self, split: str) -> Path:
        """The folder with the files of a split, downloaded if they are not in the cache.

        Raises:
            ConfigError: the split cannot be had.
        """
        return self.repository.download(self._files(split))

    def rows(self, split: str) -> Sequence[DataItem]:
        """All rows of a split.

        Raises:
            ConfigError: the split cannot be had.
        """
        files, folder = self._files(split), self.fetch(split)
        if self._is_plain(files):
            items: list[DataItem] = []
            for file in files:
                for item in read_files([folder / file]):
                    place = str(getattr(item, "place", "")).removeprefix(f"{folder}/")
                    items.append(FileItem(item, f"{self.asked.name}/{place}"))
            return items
        return self._loaded(folder, files, split)

    def _is_plain(self, files: Sequence[str]) -> bool:
        extra = set(self._config or ()) - _KNOWN
        return (
            self._splits is not None
            and not extra
            and all(Path(file).suffix.lower() in PLAIN_SUFFIXES for file in files)
        )

    def _loaded(self, folder: Path, files: Sequence[str], split: str) -> Sequence[DataItem]:
        try:
            import datasets
        except ImportError:
            raise ConfigError(f"{self.repository}: {_MISSING}") from None
        options: dict[str, Any] = {"name": self.asked.subset}
        if self._splits is not None:
            options = {"data_files": {split: [str(folder / file) for file in files]}}
            options |= {k: v for k, v in (self._config or {}).items() if k not in _KNOWN}
        try:
            table = datasets.load_dataset(str(folder), split=split, **options)
            rows = [dict(row) for row in table]
        except Exception as error:
            raise ConfigError(f"data set {self.asked}: {first_line(error)}") from error
        return [
            FileItem(row, f"{self.asked.name} {split}, row {number}")
            for number, row in enumerate(rows)
        ]


def first_row(repository: Repository, files: Sequence[str]) -> DataItem | None:
    """The first row of files; None: there is none, or they are larger than :data:`SMALL`."""
    for file in files:
        if repository.sizes[file] > SMALL and not repository.has([file]):
            return None
        item = first_problem(repository.download([file]) / file)
        if item is not None:
            return item
    return None


def matching(files: Mapping[str, int], patterns: Sequence[str]) -> list[str]:
    """The files of a repository that patterns such as ``data/*.jsonl`` mean, sorted."""
    from fsspec.utils import glob_translate

    forms = [re.compile(glob_translate(pattern)) for pattern in patterns]
    return sorted(file for file in files if any(form.match(file) for form in forms))
