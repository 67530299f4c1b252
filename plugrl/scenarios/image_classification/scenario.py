"""The scenario ``image_classification``: agents point at places of a picture to one another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError, PlugrlError
from plugrl.scenarios.protocol_task import ProtocolTask, ProtocolTaskConfig

if TYPE_CHECKING:
    from plugrl.core.config.preflight import Finding, Preflight
    from plugrl.core.tensordict.environment.labelled_dataset import Labelled
    from plugrl.core.tensordict.environment.message_space import MessageSpace
    from plugrl.core.tensordict.environment.vector_environment import Split

_CLASSES = {"cifar100": 100}


@dataclass
class ImageClassificationConfig(ProtocolTaskConfig):
    """Which pictures, what is asked about them, and how finely agents can point."""

    dataset: Literal[
        "digits", "mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "svhn"
    ] = described("digits", "the pictures; digits ship with the package, others need torchvision")
    data_folder: str = described("data", "where torchvision keeps its sets", file="optional")
    download: bool = described(False, "let torchvision fetch a set that is not there")
    num_block_groups: int = described(
        1,
        "how often the sides are halved before agents point at a place; each is a message",
        at_least=0,
        at_most=100,
    )
    binarification_method: Literal["merge", "select_two", "random"] = described(
        "merge",
        "label 1: the class is one of half of them (merge), or the second of two, other classes "
        "being left out (select_two); random: labels by coin, which only memory tells",
    )
    selected_classes: list[int] | None = described(
        None,
        "merge: those of label 1; select_two: those of 0 and 1; null: the seed draws them",
        at_least=0,
        at_most=10**6,
    )
    binarification_seed: int | None = described(
        None,
        "decides labels and what is left out; null: the seed of the run",
        at_least=0,
    )
    make_balanced: bool = described(True, "leave out items until both labels are as frequent")
    max_train_size: int | None = described(
        None, "items to train on at most; null: all", at_least=2, at_most=10**9
    )

    def __post_init__(self) -> None:
        selected, method = self.selected_classes, self.binarification_method
        if method == "random" and selected is not None:
            raise ConfigError("selected_classes has no effect on random labels; leave it out")
        if method == "select_two" and selected is not None and len(selected) != 2:
            raise ConfigError("selected_classes must be two for select_two")


class ImageClassificationScenario(ProtocolTask):
    """Pictures with two labels; a message is a place in a picture made smaller.

    The part ``image`` ``[channels, height, width]`` of an observation has mean 0 and variance 1
    over the pictures to train on. Message ``r * width' + c`` is the place in row r and column c.
    """

    Config: ClassVar[type] = ImageClassificationConfig
    name = "image_classification"

    @classmethod
    def preflight(cls, check: Preflight) -> Iterable[Finding]:
        """Whether the data set can be read, and has the classes that are selected."""
        yield from super().preflight(check)
        from plugrl.scenarios.image_classification.images import check_present

        try:
            check_present(check.section.dataset)
            scenario = cls(check.section)
            scenario.messages(scenario.data("test", int(check.root.seed)))
        except PlugrlError as error:
            where, _, what = str(error).partition(": ")
            yield (where, what) if where.startswith("scenario.") else (check.path, str(error))

    def data(self, split: Split, seed: int) -> Labelled:
        """The pictures of a split with their labels."""
        from plugrl.core.tensordict.environment.labelled_dataset import Labelled
        from plugrl.scenarios.image_classification import two_labels
        from plugrl.scenarios.image_classification.images import load_images

        config, train = self.config, split == "train"
        source = {"folder": config.data_folder, "download": config.download}
        images = load_images(config.dataset, train=train, **source)
        fixed = config.binarification_seed
        drawn, method = seed if fixed is None else int(fixed), config.binarification_method
        classes = two_labels.chosen_classes(
            _CLASSES.get(config.dataset, 10), method, config.selected_classes, drawn
        )
        places, labels = two_labels.two_labels(images, method, classes, drawn, train=train)
        kept = two_labels.kept_items(
            labels,
            drawn,
            train=train,
            balance=config.make_balanced,
            most=config.max_train_size if train else None,
        )
        pictures = images.pictures[places[kept]]
        whole = images if train else load_images(config.dataset, train=True, **source)
        mean = whole.pictures.mean((0, 2, 3), keepdims=True)
        deviation = whole.pictures.std((0, 2, 3), keepdims=True)
        return Labelled({"image": ((pictures - mean) / deviation).astype(np.float32)}, labels[kept])

    def messages(self, data: Labelled) -> MessageSpace:
        """One for each place."""
        from plugrl.core.tensordict.environment.message_space import MessageSpace

        sides = data.arrays["image"].shape[2:]
        height, width = (side >> int(self.config.num_block_groups) for side in sides)
        if height * width < 2:
            raise ConfigError(
                f"scenario.num_block_groups: pictures of {sides[0]} x {sides[1]} cannot be halved "
                f"{self.config.num_block_groups} times; take fewer"
            )
        return MessageSpace(height * width)
