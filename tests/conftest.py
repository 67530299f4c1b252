"""Settings of every test: one thread, because tiny networks are slower on several."""

import contextlib
import io
import locale
import logging
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, settings

pytest_plugins = [
    *("own_home", "processor_time", "forking_servers"),
    *("forked_workers", "full_collections", "root_logger"),
]

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Ray starts a process for each CPU beforehand, and few tests have an actor for each.
for variable in ("enable_worker_prestart", "prestart_worker_first_driver"):
    os.environ.setdefault(f"RAY_{variable}", "0")
# Hypothesis measures by the clock how long it takes to draw, which a busy machine fails.
settings.register_profile("any_load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_load")
# What the shell of the caller says to plugrl, to programs of rollout workers and of its terminal
# is nothing that tests expect.
for variable in (
    *("PLUGINS", "PLUGINS_BLOCKED", "IMPORTS", "SERVE_TOKEN"),
    *("SESSION", "MODEL", "PROBLEM", "VALIDATION"),
):
    os.environ.pop(f"PLUGRL_{variable}", None)
# Nor its terminal, nor what started it.
for variable in (
    *("COLUMNS", "LINES"),
    *("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"),
):
    os.environ.pop(variable, None)
# Tests write and read UTF-8 in every locale; processes that they start have that of the caller.
if locale.getencoding().upper() != "UTF-8":
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# Hundreds of processes import the package: without bytecode each of them would compile it again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells start jobs in the background, and `nohup` does, with Ctrl-C ignored, and processes inherit
# it: those that tests start would not end by the signals that tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: What takes longest begins first, so that no process is left with it at the end. It is one process
#: then that starts the clusters of Ray, not each of them.
FIRST = (
    *("test_style.py", "testing/test_scaffold.py", "plugins_tinker/test_runs.py"),
    *("plugins_ray", "plugins_distributed"),
)


def pytest_configure(config):
    """Hide GPUs from all tests but those of the tier ``gpu``: numbers are those of the CPU."""
    chosen = Expression.compile(config.option.markexpr or "not gpu")
    if not chosen.evaluate(lambda name, /, **_: name == "gpu"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_itemcollected(item):
    """What a parameter makes slow is of that tier alone, whichever its function is of."""
    if item.get_closest_marker("slow"):
        item.own_markers = [mark for mark in item.own_markers if mark.name != "integration"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the files of ``FIRST`` before the others; the order is as it was otherwise."""
    first = tuple(str(Path(__file__).parent / name) for name in FIRST)
    items.sort(key=lambda item: not str(item.path).startswith(first))


@pytest.fixture(autouse=True)
def _imports_stay_in_their_test(monkeypatch):
    """What ``-p`` and files of users import or block is known to this test alone, children too."""
    from plugrl.core.plugins import loading
    from plugrl.core.plugins.packages.installed import BLOCKED_VARIABLE, ONLY_VARIABLE

    monkeypatch.setattr(loading, "_imported", {})
    monkeypatch.setenv(loading.IMPORTS_VARIABLE, "")
    for variable in (BLOCKED_VARIABLE, ONLY_VARIABLE):
        # Set first, so that what a command exports is undone.
        monkeypatch.setenv(variable, "")
        del os.environ[variable]
    before, known = list(sys.path), set(sys.modules)
    yield
    added = tuple(folder + os.sep for folder in sys.path if folder and folder not in before)
    sys.path[:] = before
    # Tests lie in such folders too, and were there before.
    for name in set(sys.modules) - known if added else ():
        if str(getattr(sys.modules[name], "__file__", None)).startswith(added):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _log_handlers_stay_in_their_test():
    """What a command or a library adds would write to a stream that is closed by then."""
    before = [(logger, list(logger.handlers)) for logger in map(logging.getLogger, ("", "plugrl"))]
    yield
    for logger, handlers in before:
        for handler in set(logger.handlers).difference(handlers):
            logger.removeHandler(handler)


@pytest.fixture
def own_processes(monkeypatch):
    """The processes that this test has started and that still run: command lines by number.

    Whatever it starts inherits a variable that no other test has: a process whose parent has ended
    is found, and those of tests that run at the same time are not.
    """
    monkeypatch.setenv("STARTED_BY_TEST", str(uuid.uuid4()))
    mark = f"STARTED_BY_TEST={os.environ['STARTED_BY_TEST']}".encode()

    def running():
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
            except OSError:  # it has ended, or is of another user
                continue
        return found

    return running


@pytest.fixture
def registry():
    """The process's registry; what a test registers is gone after it."""
    from plugrl.core.plugins.registry import default_registry

    registry = default_registry()
    before = registry.snapshot()
    yield registry
    registry.restore(before)


@pytest.fixture
def call():
    """Runs a command in this process: its exit code, and what it wrote out and as errors."""

    from plugrl.cli import main

    def run(*words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(list(map(str, words)))
                code = 0
            except SystemExit as end:
                code = end.code or 0
        return code, out.getvalue(), err.getvalue()

    return run
