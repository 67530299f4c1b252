"""Installs the packages beside this file once, and runs programs that can import them.

What tests of plugins need of a new process is that nothing was imported or registered before, and
that its ``sys.path`` and environment are those of the test. ``python`` and ``plugrl`` give all of
that inside this process, where torch has been imported already. ``process`` starts one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import distributions
import forking
import pytest

from plugrl.cli import main
from plugrl.core.plugins.packages.installed import clear_cache
from plugrl.core.plugins.registry import Registry, default_registry

PACKAGES = Path(__file__).parent / "packages"
Completed = subprocess.CompletedProcess[str]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all the packages are installed, to be put on PYTHONPATH."""
    target = tmp_path_factory.mktemp("installed")
    for folder in sorted(PACKAGES.iterdir()):
        distributions.install(folder, target)
    return target


def variables(
    site: Path, only: str | None, environment: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """The environment of a process that may use the plugins ``only``, and where it finds them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PLUGRL_")}
    kept |= {"PYTHONPATH": str(site), "COLUMNS": "200", **environment}
    if only is not None:
        kept["PLUGRL_PLUGINS"] = only
    return kept, kept["PYTHONPATH"]


@pytest.fixture
def process(installed: Path, tmp_path: Path) -> Callable[..., Completed]:
    """Runs Python in a process with an empty folder; ``only`` names the plugins it may use.

    With ``forked`` it need not import torch; such a process cannot spawn others.
    """

    def run(
        *words: str, only: str | None = None, forked: bool = False, **environment: str
    ) -> Completed:
        kept, _ = variables(installed, only, environment)
        if forked:
            return forking.run(words, cwd=tmp_path, env=kept)
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=kept,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Callable[..., Completed]:
    """Runs programs, ``-c PROGRAM``, as ``process`` does, but inside this process."""

    def run(first: str, program: str, *rest: str, only=None, **environment: str) -> Completed:
        assert first == "-c"

        def execute() -> None:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})

        kept, site = variables(installed, only, environment)
        with as_if_new(tmp_path, site, kept):
            return completed(execute, ["-c", *rest])

    return run


@pytest.fixture
def plugrl(installed: Path, tmp_path: Path) -> Callable[..., Completed]:
    """Runs the command line as ``process`` does, but inside this process."""

    def run(*arguments: str, only: str | None = None, **environment: str) -> Completed:
        kept, site = variables(installed, only, environment)
        with as_if_new(tmp_path, site, kept):
            return completed(lambda: main(list(arguments)), ["plugrl", *arguments])

    return run


@contextlib.contextmanager
def as_if_new(folder: Path, site: str, environment: Mapping[str, str]) -> Iterator[None]:
    """A working folder, ``sys.path`` and environment, with no plugin imported or registered."""
    registry = default_registry()
    registrations, failed = registry.snapshot(), list(registry.failed)
    registry.restore(Registry().snapshot())
    registry.failed.clear()
    modules, before = set(sys.modules), dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [site, *sys.path])
        for logger in (logging.getLogger(), logging.getLogger("plugrl")):
            patch.setattr(logger, "handlers", [])
        os.environ.clear()
        os.environ.update(environment)
        importlib.invalidate_caches()
        clear_cache()
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            registry.restore(registrations)
            registry.failed[:] = failed
            for name in set(sys.modules) - modules:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(site):
                    del sys.modules[name]
    clear_cache()


def completed(call: Callable[[], object], argv: list[str]) -> Completed:
    """What a process that does ``call`` and has nothing to read would end with."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"argv": argv, "stdin": io.StringIO()}.items():
            patch.setattr(sys, name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                call()
            except SystemExit as end:
                code = end.code
            except Exception:
                traceback.print_exc()
                code = 1
    return Completed(argv, code or 0, out.getvalue(), err.getvalue())
