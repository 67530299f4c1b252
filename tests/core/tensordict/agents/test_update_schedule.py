"""In which iterations agents learn."""

from __future__ import annotations

from typing import Any

import pytest

from plugrl.core.config.check import Checker
from plugrl.core.tensordict.agents.config import UpdateScheduleConfig, is_update_iteration


def _section(**values: Any) -> dict[str, Any]:
    checker = Checker()
    section = checker.value(values, UpdateScheduleConfig, ("agents", "a", "update_schedule"), {})
    if checker.faults:
        raise AssertionError(" / ".join(map(str, checker.faults)))
    assert isinstance(section, dict)
    return section


@pytest.mark.parametrize(
    ("values", "learns"),
    [
        ({}, "111111111"),
        ({"type": "constant"}, "111111111"),
        ({"type": "contiguous_periodic", "period": 4, "start": 1, "stop": 3}, "011001100"),
        ({"type": "contiguous_periodic", "period": 1, "start": 0, "stop": 1}, "111111111"),
        (
            {"type": "alternating_periodic", "period": 3, "first_agent_num_iterations": 2},
            "110110110",
        ),
        (
            {
                "type": "alternating_periodic",
                "period": 3,
                "first_agent_num_iterations": 2,
                "first_agent": False,
            },
            "001001001",
        ),
    ],
)
def test_iterations_with_updates(values: dict[str, Any], learns: str) -> None:
    section = _section(**values)
    found = "".join(str(int(is_update_iteration(section, i))) for i in range(1, 10))
    assert found == learns


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"type": "contigous_periodic"}, "type: must be one of constant, contiguous_periodic"),
        ({"type": "contiguous_periodic", "period": 3, "start": 0}, "stop: is missing"),
        ({"period": 3}, "period: is not read by constant, which takes nothing else"),
        (
            {"type": "contiguous_periodic", "period": 0, "start": 0, "stop": 1},
            "period: must be at least 1",
        ),
        (
            {"type": "contiguous_periodic", "period": 3, "start": 2, "stop": 2},
            "start: must be below stop",
        ),
        (
            {"type": "contiguous_periodic", "period": 3, "start": 2, "stop": 4},
            "both within 0 and period",
        ),
        (
            {
                "type": "alternating_periodic",
                "period": 3,
                "first_agent_num_iterations": 3,
                "first_agent": False,
            },
            "first_agent_num_iterations: must be",
        ),
        (
            {
                "type": "alternating_periodic",
                "period": 3,
                "first_agent_num_iterations": 1,
                "stop": 2,
            },
            "stop: is not read by alternating_periodic",
        ),
    ],
)
def test_schedules_that_mean_nothing(values: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError) as error:
        _section(**values)
    assert said in str(error.value)
    assert " / " not in str(error.value), "one fault is one line"
    assert "BAD" not in str(error.value)
