"""Every remedy that messages about environments and networks recommend is tried."""

from __future__ import annotations

import pytest
from remedies import Row, row, tiered, tried, untried

ROWS: list[Row] = [
    row("rl.frames_per_batch=65", "take", "rl.frames_per_batch=66", base="nets"),
    row("scenario=null", "needs one", "scenario={type: gymnasium, id: CartPole-v1}", base="nets"),
]


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Texts that name no key, value or command.
REASONS = {
    "core/tensordict/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS}
    assert untried("core/tensordict", says, REASONS) == []
