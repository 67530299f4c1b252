"""Pictures with their classes: digits that ship with the package, and sets of torchvision."""

from __future__ import annotations

import gzip
import importlib.util
import os
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.tensordict.seeding import generator_of

#: Part of each class of the digits that is kept for tests.
_TEST_SHARE = 0.2


class Images(NamedTuple):
    """M pictures ``[M, channels, height, width]`` from 0 to 1, and their classes ``[M]``."""

    pictures: np.ndarray
    classes: np.ndarray


def load_images(dataset: str, *, train: bool, folder: str, download: bool) -> Images:
    """The pictures of a split of a data set.

    Args:
        dataset: a key of :data:`DATASETS`.
        train: those to train on, else those for tests.
        folder: where torchvision keeps its sets.
        download: whether torchvision may fetch a set that is not there.

    Raises:
        ConfigError: torchvision or its set is missing.
        RunError: the set cannot be read or fetched.
    """
    if dataset == "digits":
        return _digits(train)
    check_present(dataset)
    root = os.path.expanduser(folder)
    try:
        read = DATASETS[dataset](root, train, download)
    except Exception as error:
        if not download and "not found" in str(error):
            raise ConfigError(
                f"scenario.data_folder: {folder} has no {dataset}; set scenario.download: true, or "
                "name the folder that has it"
            ) from error
        raise RunError(f"torchvision could not read {dataset} in {folder}: {error}") from error
    pictures = np.asarray(read[0])
    # Grey pictures have no channels there, and coloured ones have them first or last.
    if pictures.ndim == 3:
        pictures = pictures[:, None]
    elif pictures.shape[-1] == 3:
        pictures = pictures.transpose(0, 3, 1, 2)
    return Images(pictures.astype(np.float32) / 255, np.asarray(read[1], np.int64))


def check_present(dataset: str) -> None:
    """Refuse a set of torchvision where that is not installed.

    Raises:
        ConfigError: it is not.
    """
    if dataset != "digits" and importlib.util.find_spec("torchvision") is None:
        raise ConfigError(
            f"scenario.dataset: {dataset} needs torchvision, which is not installed; run: "
            'pip install "plugrl[images]", or set it to digits'
        )


def _digits(train: bool) -> Images:
    """1,797 digits of 8 x 8 pixels, by E. Alpaydin and C. Kaynak (1998).

    The tests are the same for every seed: a body that was trained with another one has not seen
    them either.
    """
    file = resources.files("plugrl.scenarios.image_classification").joinpath("digits.csv.gz")
    with file.open("rb") as packed, gzip.open(packed, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
    classes = table[:, -1]
    drawn = generator_of("digits", "split").permutation(len(table))
    places = np.sort(np.concatenate([_share(drawn[classes[drawn] == c], train) for c in range(10)]))
    pictures = (table[places, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Images(pictures, classes[places])


def _share(members: np.ndarray, train: bool) -> np.ndarray:
    kept = round(len(members) * _TEST_SHARE)
    return members[kept:] if train else members[:kept]


def _of_torchvision(name: str) -> Callable[[str, bool, bool], tuple[Any, Any]]:
    def read(root: str, train: bool, download: bool) -> tuple[Any, Any]:
        from torchvision import datasets

        if name == "SVHN":
            svhn = datasets.SVHN(root, split="train" if train else "test", download=download)
            return svhn.data, svhn.labels
        found = getattr(datasets, name)(root, train=train, download=download)
        return found.data, found.targets

    return read


#: How the pictures and classes of a set are read: ``(folder, train, download)`` to both.
DATASETS: dict[str, Callable[[str, bool, bool], tuple[Any, Any]]] = {
    "mnist": _of_torchvision("MNIST"),
    "fashion_mnist": _of_torchvision("FashionMNIST"),
    "kmnist": _of_torchvision("KMNIST"),
    "cifar10": _of_torchvision("CIFAR10"),
    "cifar100": _of_torchvision("CIFAR100"),
    "svhn": _of_torchvision("SVHN"),
}
