"""Trials of remedies that code recommends: what a message says is done, and the message is gone."""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from remedies import has

from plugrl.core.config.check import configure
from plugrl.core.experiment import TrainedRun, prepare, start
from plugrl.testing import tiny


class Refusal(Exception):
    """What code says of a fault without raising it: a text that it gives or logs."""


@dataclass(frozen=True)
class Read:
    """A remedy that is read from the message.

    Attributes:
        pattern: a regular expression; its group is the remedy.
        make: makes the value to be tried of it.
    """

    pattern: str
    make: Callable[[str], Any] = str

    def of(self, message: str) -> Any:
        found = re.search(self.pattern, message)
        assert found, f"no {self.pattern} in: {message}"
        return self.make(found[1])


@dataclass(frozen=True)
class Trial:
    """One remedy.

    Attributes:
        says: a part of the message, as the source writes it; ``{}`` is any text.
        attempt: does what is recommended, or what is wrong, with a value.
        wrong: the value that provokes the message.
        right: the value that the message recommends.
    """

    says: str
    attempt: Callable[[Any], object]
    wrong: Any
    right: Any

    def __str__(self) -> str:
        return self.says

    def run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(Exception) as caught:
                self.attempt(self.wrong)
        message = str(caught.value)
        assert has(message, self.says), message
        self.attempt(self.right.of(message) if isinstance(self.right, Read) else self.right)


def refused(fault: str | None) -> None:
    """Raise what is said of a fault; None: there is none."""
    if fault:
        raise Refusal(fault)


@contextmanager
def warned(logger: str = "plugrl") -> Iterator[None]:
    """Raise the first warning that is logged meanwhile."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(logger).removeHandler(handler)
    refused(said[0] if said else None)


def section(cls: Any, **fixed: Any) -> Callable[[Any], object]:
    """An attempt that configures a component with keys, beside fixed ones."""
    return lambda keys: configure(cls, {**fixed, **keys})


def trained(trainer: str, sections: Mapping[str, Any]) -> TrainedRun:
    """A run of a trainer on a model so small that its step takes milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        tree = tiny.config(trainer, Path(folder), sections)
        tree["trainer"]["total_train_steps"] = 1
        return start(prepare(tree))


def tiered_trials(trials: Iterable[Trial]) -> list[Any]:
    """Trials for the tier integration, and a sample of them, drawn by their names, for the fast."""
    named = [(f"{number}-{each.says:.50}", each) for number, each in enumerate(trials)]
    return [
        pytest.param(each, id=name, marks=pytest.mark.integration if slower(name) else ())
        for name, each in named
    ]


def slower(name: str) -> bool:
    """Whether the fast tier leaves a trial of this name out: it tries one in so many."""
    return zlib.crc32(name.encode()) % 36 > 0
