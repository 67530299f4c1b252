"""The Hugging Face hub, or a server that speaks its protocol (``HF_ENDPOINT``)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from plugrl.core.errors import ConfigError
from plugrl.core.hub.hub import SCHEME, DataSetName, Hub, Snapshot
from plugrl.core.scenario import DataItem
from plugrl.plugins.huggingface.data_sets import DataSet, first_row, matching
from plugrl.plugins.huggingface.repository import Repository
from plugrl.plugins.huggingface.upload import check_upload, upload

logger = logging.getLogger(__name__)
#: Configuration and tokenizer: small files, at the top of a repository.
_SMALL = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")
_INDEX = "model.safetensors.index.json"
_DATA_SETS = f"{SCHEME}datasets/"
#: Repositories of this process by what was asked for, so that a run asks the hub once.
_models: dict[tuple[str, str | None], Repository] = {}
_data_sets: dict[DataSetName, DataSet] = {}


class HuggingFaceHub(Hub):
    """Models and data sets of the hub, through the client ``huggingface_hub`` and its cache.

    Repositories are read at the commit that a revision means when it is first asked for. Of a model
    the weights in safetensors are taken, or else those of PyTorch; of a data set the files of the
    splits that are read.
    """

    def model(self, name: str, revision: str | None, *, weights: bool) -> Snapshot:
        """The files of a model; without ``weights`` only its configuration and tokenizer.

        Raises:
            ConfigError: it cannot be had, or needs code of its own.
        """
        repository = _model(name, revision)
        _refuse_code(repository)
        if weights:
            files = _weight_files(repository)
            if not files:
                raise ConfigError(f"{repository} {_no_weights(repository)}")
            if not repository.has(files):
                total = sum(repository.sizes[file] for file in files)
                logger.info(
                    "downloading %s at %s, %.1f MB", repository, repository.commit, total / 1e6
                )
            repository.download(files)
        return repository.snapshot

    def model_fault(self, name: str, revision: str | None) -> str | None:
        """What of a model is missing, by its list of files; None: nothing is.

        Raises:
            ConfigError: it cannot be had, or needs code of its own.
        """
        repository = _model(name, revision)
        _refuse_code(repository)
        return None if _weight_files(repository) else _no_weights(repository)

    def commit(self, data: DataSetName) -> str:
        """The commit that the revision of a data set means now.

        Raises:
            ConfigError: it cannot be had, or it has no such subset.
        """
        return _data_set(data).check()

    def first_problem(self, data: DataSetName, split: str) -> DataItem | None:
        """The first row of a split; None: more than 10 MB would have to be downloaded.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """
        return _data_set(data).first(split)

    def fetch(self, data: DataSetName, split: str) -> None:
        """Download the files of a split into the cache.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """
        _data_set(data).fetch(split)

    def problems(self, data: DataSetName, split: str) -> Sequence[DataItem]:
        """All rows of a split, downloaded if they are not in the cache.

        Raises:
            ConfigError: the data set, its subset or the split cannot be had.
        """
        return _data_set(data).rows(split)

    def pinned(self, address: str) -> str:
        """The address with the commit that its revision means now.

        Raises:
            ConfigError: the repository cannot be had.
        """
        repository, pattern = _parse(address)
        return f"{_DATA_SETS}{repository.name}@{repository.commit}/{pattern}"

    def files(self, address: str) -> Sequence[Path]:
        """The files at an address, downloaded if they are not in the cache.

        Raises:
            ConfigError: there are none, or they cannot be had.
        """
        repository, found = _found(address)
        folder = repository.download(found)
        return [folder / file for file in found]

    def first_in(self, address: str) -> DataItem | None:
        """The first row of the files at an address; None: they are larger than 10 MB.

        Raises:
            ConfigError: there are no such files, or they cannot be had.
        """
        repository, found = _found(address)
        return first_row(repository, found)

    def check_push(self, name: str, *, token: bool = True) -> None:
        """Check name, token and HF_HUB_OFFLINE.

        Raises:
            ConfigError: the name has another form, there is no token, or the hub is not asked.
        """
        check_upload(name, token=token)

    def push(
        self, folder: Path, name: str, *, private: bool, revision: str | None, message: str
    ) -> str:
        """Publish the files of a folder as a model, and return its address.

        Raises:
            ConfigError: it cannot be written, or there is no token.
        """
        return upload(folder, name, private=private, revision=revision, message=message)


def _model(name: str, revision: str | None) -> Repository:
    key = (name, revision)
    if key not in _models:
        # What lies deeper is for other software, or a second copy.
        found = Repository("model", name, revision, opening=_SMALL, ignored=("*/*",))
        _ = found.snapshot
        _models[key] = _models[name, found.commit] = found
    return _models[key]


def _data_set(asked: DataSetName) -> DataSet:
    if asked not in _data_sets:
        found = DataSet(asked)
        commit = found.check()
        _data_sets[asked] = found
        _data_sets[DataSetName(asked.name, asked.subset, commit)] = found
    return _data_sets[asked]


def _weight_files(repository: Repository) -> list[str]:
    """The files that hold the weights, in one format; empty: there are none."""
    sizes = repository.sizes
    if _INDEX in sizes:
        try:
            index = json.loads((repository.snapshot.folder / _INDEX).read_text(encoding="utf-8"))
            return sorted(set(index["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{repository}: {_INDEX} cannot be read ({type(error).__name__}: {error}); name "
                "another revision"
            ) from error
    if "model.safetensors" in sizes:
        return ["model.safetensors"]
    top = [PurePosixPath(file) for file in sizes if "/" not in file]
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        found = sorted(str(file) for file in top if file.match(pattern))
        if found:
            return found
    return []


def _no_weights(repository: Repository) -> str:
    others = sorted({PurePosixPath(file).suffix for file in repository.sizes} & {".gguf", ".onnx"})
    has = f", only {' and '.join(others)}" if others else ""
    return f"holds no weights (*.safetensors){has}; name a repository that has them"


def _refuse_code(repository: Repository) -> None:
    """Refuse a model that needs the Python files of its repository.

    Raises:
        ConfigError: it does.
    """
    file = repository.snapshot.folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # A tokenizer alone, or a fault that is said where the model is loaded.
        return
    if not isinstance(config, dict) or not config.get("auto_map"):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING_NAMES:
        raise ConfigError(
            f"{repository} needs code of its own (auto_map in config.json), and code of the hub is "
            f"never run; take a model whose model_type transformers has, which is not {kind!r}"
        )


def _parse(address: str) -> tuple[Repository, str]:
    """The repository of ``hf://datasets/owner/name@revision/pattern``, and the pattern."""
    parts = address.removeprefix(_DATA_SETS).split("/", 2)
    if not address.startswith(_DATA_SETS) or len(parts) < 3 or not all(parts):
        raise ConfigError(
            f"{address}: an address of files is written hf://datasets/owner/name/file, with "
            "@revision behind the name if one is meant"
        )
    owner, named, pattern = parts
    name, _, revision = named.partition("@")
    # A branch may have slashes, which addresses write so.
    asked = revision.replace("%2F", "/") or None
    found = _data_set_files(f"{owner}/{name}", asked)
    return found, pattern


def _found(address: str) -> tuple[Repository, list[str]]:
    """The repository of an address, and its files there."""
    repository, pattern = _parse(address)
    found = matching(repository.sizes, [pattern])
    if not found:
        some = ", ".join(list(repository.sizes)[:5])
        raise ConfigError(f"{repository} has no file {pattern}; it has, among others: {some}")
    return repository, found


def _data_set_files(name: str, revision: str | None) -> Repository:
    key = DataSetName(name, None, revision)
    if key not in _addresses:
        found = Repository("dataset", name, revision)
        _ = found.snapshot
        _addresses[key] = _addresses[DataSetName(name, None, found.commit)] = found
    return _addresses[key]


_addresses: dict[DataSetName, Repository] = {}
