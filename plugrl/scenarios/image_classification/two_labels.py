"""From pictures of several classes to a question with the answers 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.seeding import generator_of
from plugrl.scenarios.image_classification.images import Images

Method = Literal["merge", "select_two", "random"]


def chosen_classes(
    known: int, method: Method, selected: Sequence[int] | None, seed: int
) -> list[int]:
    """The classes that decide the labels: those named, or those that the seed draws.

    Args:
        known: how many classes there are.
        method: see :func:`two_labels`.
        selected: the classes that are named; None: the seed draws.
        seed: of the draw.

    Returns:
        For ``merge`` the classes whose label is 1, for ``select_two`` those of 0 and 1, in this
        order, and none for ``random``.

    Raises:
        ConfigError: classes are named that do not exist, twice, or in the wrong number.
    """
    if method == "random":
        return []
    if selected is None:
        count = 2 if method == "select_two" else known // 2
        return [int(c) for c in generator_of(seed, method).permutation(known)[:count]]
    if len(set(selected)) != len(selected) or not set(selected) <= set(range(known)):
        raise ConfigError(f"scenario.selected_classes must be different ones of 0 to {known - 1}")
    if method == "merge" and not 0 < len(selected) < known:
        raise ConfigError("scenario.selected_classes must be some of the classes, and not all")
    return list(selected)


def two_labels(
    images: Images, method: Method, classes: Sequence[int], seed: int, *, train: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Which pictures are asked about, and their labels.

    Args:
        images: of one split.
        method: ``merge``: whether a picture's class is one of ``classes``; ``select_two``: which
            of two classes it has, pictures of others being left out; ``random``: a coin that the
            seed tosses, so that nothing helps but to remember.
        classes: see :func:`chosen_classes`.
        seed: of the coins.
        train: the split, whose coins are its own.

    Returns:
        Places in ``images`` and labels, both ``[M]``.
    """
    places = np.arange(len(images.classes))
    if method == "random":
        coins = generator_of(seed, "coins", train)
        return places, coins.integers(0, 2, len(places))
    if method == "select_two":
        places = places[np.isin(images.classes, classes)]
        return places, (images.classes[places] == classes[1]).astype(np.int64)
    return places, np.isin(images.classes, classes).astype(np.int64)


def kept_items(
    labels: np.ndarray, seed: int, *, train: bool, balance: bool, most: int | None
) -> np.ndarray:
    """Places, in order, of the items that stay; which ones, the seed decides.

    Args:
        labels: of all items.
        seed: of the draw.
        train: the split, whose draw is its own.
        balance: keep as many of label 0 as of label 1.
        most: how many stay at most; None: any number.
    """
    drawn = generator_of(seed, "kept", train).permutation(len(labels))
    if not balance:
        return np.sort(drawn[:most])
    each = [drawn[labels[drawn] == label] for label in (0, 1)]
    count = min(map(len, each))
    if most is not None:
        count = min(count, most // 2)
    return np.sort(np.concatenate([members[:count] for members in each]))
