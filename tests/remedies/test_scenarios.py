"""Every remedy that messages of scenarios recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import Row, row, tiered, tried, untried

ROWS: list[Row] = [
    row("scenario.id=''", "name an environment", "scenario.id=CartPole-v1", base="nets"),
    row(
        "scenario.vectorization=native scenario.wrappers=[gymnasium.wrappers:FlattenObservation]",
        "write scenario.vectorization: sync",
        base="nets",
    ),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Texts that name no key, value or command.
REASONS = {
    "scenarios/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS}
    assert untried("scenarios", says, REASONS) == []
