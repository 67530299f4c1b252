"""The options of the conformance kit.

pytest imports this module in every environment that has plugrl, so it imports pytest alone.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import pytest

#: All kinds; their suites are ``plugrl.testing.suite.test_KIND``.
KINDS = (
    "trainer",
    "evaluator",
    "scorer",
    "sandbox",
    "rollout_worker",
    "scenario",
    "advantage",
    "loss",
    "body",
    "protocol",
    "parser",
    "inference_service",
    "executor",
    "train_service",
    "fine_tune_service",
    "hub",
    "data_map",
    "launcher",
    "searcher",
    "tracker",
    "dialogue_environment",
    "harness_algorithm",
)

pytest.register_assert_rewrite(
    "plugrl.testing.suite", "plugrl.testing.contract", "plugrl.testing.comparison"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one repeatable option for each kind of component."""
    group = parser.getgroup("plugrl", "plugrl conformance kit")
    for kind in KINDS:
        group.addoption(
            option(kind),
            action="append",
            default=[],
            metavar="NAME",
            help=f"{kind} that the conformance kit checks, as a configuration names it",
        )


def option(kind: str) -> str:
    """The option that names components of a kind."""
    return f"--plugrl-{kind.replace('_', '-')}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a suite for every component named on the command line."""
    if "plugrl_component" not in metafunc.fixturenames:
        return
    kind = _kind_of(metafunc.cls)
    named = getattr(metafunc.cls, f"plugrl_{kind}", None)
    names = [named] if named else metafunc.config.getoption(option(kind))
    skip = pytest.mark.skip(reason=f"no {option(kind)} NAME was given")
    values = names or [pytest.param("", marks=skip)]
    metafunc.parametrize("plugrl_component", values, scope="class", indirect=True)


def _kind_of(cls: type | None) -> str:
    """The kind that a class of tests is about; the run of a trainer needs no such class."""
    return str(getattr(cls, "kind", "trainer"))


@pytest.fixture(scope="class")
def plugrl_component(request: pytest.FixtureRequest) -> str:
    """The name of the component that the suite checks."""
    return str(request.param)


@pytest.fixture(scope="session")
def plugrl_new_process(request: pytest.FixtureRequest) -> Any:
    """Resolves components in a new process; one process serves all components of the session."""
    from plugrl.core.errors import PlugrlError
    from plugrl.core.plugins.registry import default_registry
    from plugrl.testing.processes import NewProcess

    records = []
    for item in request.session.items:
        if "plugrl_new_process" not in getattr(item, "fixturenames", ()):
            continue
        name = item.callspec.params.get("plugrl_component") if hasattr(item, "callspec") else None
        kind = _kind_of(getattr(item, "cls", None))
        if name:
            with contextlib.suppress(PlugrlError):  # Reported by its own tests.
                records.append(default_registry().resolve(kind, name))
    return NewProcess(records)


@pytest.fixture(scope="session")
def plugrl_elsewhere(plugrl_new_process: Any) -> Any:
    """The former name of ``plugrl_new_process``."""
    _warn_of_former_name("plugrl_elsewhere", "plugrl_new_process")
    return plugrl_new_process


@pytest.fixture(scope="class")
def plugrl_trainer_config(
    plugrl_component: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """A configuration that trains the trainer for two steps in a folder of its own."""
    from plugrl.core.plugins.registry import default_registry
    from plugrl.testing import tiny

    cls = default_registry().get("trainer", plugrl_component)
    folder = tmp_path_factory.mktemp("task")
    return tiny.config(plugrl_component, folder, getattr(cls, "conformance", None))


@pytest.fixture(scope="class")
def plugrl_recorder(plugrl_trainer_config: dict[str, Any]) -> Any:
    """The hook plugin that watches the run of that configuration; one for each trainer."""
    from plugrl.testing.recorder import Recorder

    return Recorder()


@pytest.fixture(scope="class")
def plugrl_run(plugrl_trainer_config: dict[str, Any], plugrl_recorder: Any) -> Any:
    """The run of that configuration, in an empty working directory beside its runs."""
    from plugrl.testing import tiny

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tiny.working_directory(plugrl_trainer_config))
        return tiny.train(plugrl_trainer_config, plugrl_recorder)


@pytest.fixture(scope="class")
def plugrl_trained(plugrl_run: Any) -> Any:
    """The former name of ``plugrl_run``."""
    _warn_of_former_name("plugrl_trained", "plugrl_run")
    return plugrl_run


def _former_name(name: str) -> Any:
    """The fixture ``name``, which gives ``plugrl_component`` with a warning."""

    def component(plugrl_component: str) -> str:
        _warn_of_former_name(name, "plugrl_component")
        return plugrl_component

    return pytest.fixture(scope="class", name=name)(component)


for _kind in ("trainer", "evaluator", "scorer", "sandbox"):
    globals()[f"plugrl_{_kind}"] = _former_name(f"plugrl_{_kind}")


def _warn_of_former_name(former: str, name: str) -> None:
    from plugrl.core.errors import PlugrlDeprecationWarning

    message = f"the fixture {former} is now called {name}; write {name}"
    warnings.warn(message, PlugrlDeprecationWarning, stacklevel=2)
