"""Runs that are killed: how they start, when they die, and in which tier of the tests."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import forking
import pytest
from waiting import DEADLINE

#: The command line and what it imports to train: a kill is not to cost the start of a process.
LIBRARIES = f"""{forking.LIBRARIES} plugrl.cli plugrl.commands.train plugrl.commands.resume
    plugrl.core.experiment plugrl.core.protocol.protocol plugrl.core.null_run plugrl.core.loaded_run
    plugrl.core.text.trajectory_trainer plugrl.plugins.transformers.inference_service
    plugrl.plugins.transformers.train_service plugrl.core.tensordict.off_policy gymnasium
    plugrl.core.tensordict.rl_trainer plugrl.scenarios.gymnasium plugrl.testing.tiny mujoco"""
#: The most lines of metrics that a process writes before one of :func:`moments`.
MOST_LINES = 10
_DRIVER = Path(__file__).with_name("dying_driver.py")
_MOMENTS = Path(__file__).with_name("moments_driver.py")


def sampled(rows: Sequence[Any], number: int, seed: int = 0) -> list[Any]:
    """Rows of a test: ``number`` that a seed draws in ``integration``, all of them in ``slow``."""
    drawn = set(random.Random(seed).sample(range(len(rows)), number))
    return tiers([row for i, row in enumerate(rows) if i in drawn], rows)


def sampled_of_each(kinds: Iterable[Sequence[Any]], seed: int = 0, number: int = 1) -> list[Any]:
    """Likewise, with ``number`` rows of each kind in ``integration``."""
    draw, kinds = random.Random(seed), [list(rows) for rows in kinds]
    few = [row for rows in kinds for row in draw.sample(rows, number)]
    return tiers(few, [row for rows in kinds for row in rows])


def tiers(few: Iterable[Any], all_rows: Iterable[Any]) -> list[Any]:
    """Rows of ``integration`` and rows of ``slow``; tuples are several arguments."""

    def marked(rows: Iterable[Any], mark: pytest.MarkDecorator) -> list[Any]:
        values = [row if isinstance(row, tuple) else (row,) for row in rows]
        names = [
            [" and ".join(v) if isinstance(v, list) else str(v) for v in row] for row in values
        ]
        return [
            pytest.param(*row, marks=mark, id="-".join([*name, mark.name]))
            for row, name in zip(values, names, strict=True)
        ]

    return [
        *marked(few, pytest.mark.integration),
        *marked(all_rows, pytest.mark.slow),
    ]


def _named(value: Any) -> str:
    return " and ".join(value) if isinstance(value, list) else str(value)


def start(*words: object, **options: Any) -> forking.Process:
    """``plugrl *words`` as a process."""
    return forking.Process(["-m", "plugrl", *words], libraries=LIBRARIES, **options)


def finish(*words: object, **options: Any) -> str:
    """``plugrl *words`` to its end without a fault; what it wrote to the error output."""
    process = start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    return errors


def moments(seed: object, number: int, seconds: float) -> list[tuple[int, float]]:
    """Lines and seconds for :func:`kill`, drawn by a seed.

    The first is after a few steps, so that there is a checkpoint to go on with. A run of ``number *
    MOST_LINES`` steps that saves at every second one is not over before the last.
    """
    draw = random.Random(str(seed))
    firsts = [4, *[1] * (number - 1)]
    return [(draw.randrange(first, MOST_LINES - 2), draw.uniform(0, seconds)) for first in firsts]


def dying(line: int, seconds: float, *words: object, **options: Any) -> forking.Process:
    """``plugrl *words`` as a process that dies within ``seconds`` after a line of its metrics.

    They are seconds of processor time, so that the moment does not depend on how busy the machine
    is. A run that writes three more lines in them dies with the last of those.
    """
    return forking.Process(
        [_DRIVER, line, seconds, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        libraries=LIBRARIES,
        **options,
    )


def has_died(process: forking.Process) -> None:
    """Wait for the end of such a process."""
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode in (-signal.SIGKILL, -signal.SIGPROF), errors


def kill(line: int, seconds: float, *words: object, **options: Any) -> None:
    """Run ``plugrl *words`` until it dies within ``seconds`` after a line of its metrics."""
    has_died(dying(line, seconds, *words, **options))


def at_moments(recipe: Path, folder: Path, *moments: str) -> dict[str, Path]:
    """Runs that died at moments of ``moments_driver``, were resumed and came to their end."""
    done = forking.run([_MOMENTS, recipe, folder, *moments], check=True, libraries=LIBRARIES)
    found = json.loads(done.stdout)
    assert list(found) == list(moments)
    for name, ended in found.items():
        log = Path(ended["log"]).read_text("utf-8")
        code = 1 if "disk full" in name else -signal.SIGKILL
        assert (ended["code"], ended["resumed"]) == (code, 0), f"{name}: {log}"
        assert ("resuming with other plugins" in log) == ("plugin" in name)
    return {name: Path(ended["run"]) for name, ended in found.items()}
