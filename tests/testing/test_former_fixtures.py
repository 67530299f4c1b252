"""Fixtures of the conformance kit by the names that they had before."""

import pytest

from plugrl.core.errors import PlugrlDeprecationWarning


@pytest.fixture(scope="session")
def plugrl_new_process():
    return "a process"


@pytest.fixture(scope="class")
def plugrl_run():
    return "a run"


@pytest.fixture(scope="class")
def plugrl_component():
    return "a name"


@pytest.mark.parametrize(
    ("former", "name", "value"),
    [
        ("plugrl_elsewhere", "plugrl_new_process", "a process"),
        ("plugrl_trained", "plugrl_run", "a run"),
        ("plugrl_trainer", "plugrl_component", "a name"),
        ("plugrl_evaluator", "plugrl_component", "a name"),
        ("plugrl_scorer", "plugrl_component", "a name"),
        ("plugrl_sandbox", "plugrl_component", "a name"),
    ],
)
def test_a_former_name_gives_the_fixture_and_warns(request, former, name, value):
    with pytest.warns(PlugrlDeprecationWarning, match=f"{former} is now called {name}"):
        assert request.getfixturevalue(former) == value
