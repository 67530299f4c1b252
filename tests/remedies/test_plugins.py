"""Every remedy that messages of the built-in plugins recommend is tried, and helps."""

from __future__ import annotations

import pytest
from remedies import Row, tiered, tried, untried

ROWS: list[Row] = []


@pytest.mark.parametrize("each", tiered(ROWS), ids=str)
def test_a_remedy_helps(each):
    tried(each)


#: Texts that name no key, value or command.
REASONS = {
    "plugins/": "not looked at yet",
}


def test_every_remedy_is_tried_or_names_nothing():
    says = {each.says for each in ROWS}
    assert untried("plugins", says, REASONS) == []
