"""Every remedy that messages of trainers recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import Row, row, tiered, tried, untried

ROWS: list[Row] = [
    row(
        "trainer.type=solo_agent rl=null",
        "take a scenario whose agents do",
        "scenario= scenario={type: image_classification}",
        base="nets",
    ),
    row("trainer.type=reinforce rl.clip_value=true", "leave it out", "-rl.clip_value", base="nets"),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Texts that name no key, value or command.
REASONS = {
    "trainers/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS}
    assert untried("trainers", says, REASONS) == []
