"""Every remedy that messages of a run and its folder recommend is tried."""

from __future__ import annotations

from remedies import untried

#: Texts that name no key, value or command.
REASONS = {"core/run/": "not looked at yet"}


def test_every_remedy_is_tried_or_names_nothing():
    assert untried("core/run", [], REASONS) == []
