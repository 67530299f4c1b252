"""Counts the processor time of each test, that of the processes which it starts included.

Processor time says what a test costs on a busy machine as on a quiet one. The summary names the
tests of the fast tier that cost more than a second; ``--processor-times FILE`` writes all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from pathlib import Path

import forking
import pytest

LIMIT = 1.0
HEAVIER_TIERS = {"integration", "slow", "timing", "server", "browser", "gpu"}


def spent() -> float:
    """Processor seconds of this process and of those that it has waited for, forked or not."""
    return sum(os.times()[:4]) + forking.processor_time()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-times", metavar="FILE", help="write each test's processor seconds"
    )


def pytest_collection_finish(session) -> None:
    """Import what many tests use, so that its time is not that of whichever test comes first."""
    if len(session.items) > forking.MANY:
        for name in (*forking.LIBRARIES.split(), "torchrl.objectives", "gymnasium", "wandb"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        from plugrl.core.plugins.registry import default_registry

        registry = default_registry()
        for record in registry.records():
            if record.distribution == "plugrl":
                registry.load(record)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    item.stash[_BEGUN] = spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        fast = not any(mark.name in HEAVIER_TIERS for mark in item.iter_markers())
        seconds = spent() - item.stash[_BEGUN]
        report.processor_time = {"seconds": seconds, "fast": fast}
    return report


_BEGUN = pytest.StashKey[float]()


class Reporter:
    """Gathers the times where the results are shown."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.fast: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        if time := getattr(report, "processor_time", None):
            self.seconds[report.nodeid] = time["seconds"]
            if time["fast"]:
                self.fast.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter, config) -> None:
        if file := config.getoption("--processor-times"):
            Path(file).write_text(json.dumps(self.seconds, indent=0), encoding="utf-8")
        terminalreporter.write_line(
            f"processor time of {len(self.seconds)} tests: {sum(self.seconds.values()):.0f} s"
        )
        above = sorted(
            (s, name) for name, s in self.seconds.items() if s > LIMIT and name in self.fast
        )
        for seconds, name in above[:-11:-1]:
            terminalreporter.write_line(
                f"{seconds:.1f} s of processor time, more than {LIMIT:.0f}: {name}"
            )


def pytest_configure(config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Reporter(), "processor-time-reporter")
