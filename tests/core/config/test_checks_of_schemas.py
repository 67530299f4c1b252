"""Checks that a dataclass of options inherits are made, however many bases it has."""

import pytest

from plugrl.core.errors import PlugrlError
from plugrl.core.plugins.kinds import KINDS
from plugrl.core.plugins.registry import default_registry


def schemas():
    registry = default_registry()
    for kind in KINDS:
        for record in registry.records(kind):
            config = getattr(registry.load(record), "Config", None)
            checks = [base for base in getattr(config, "__mro__", ()) if has_checks(base)]
            if len(checks) > 1:
                yield pytest.param(config, checks, id=f"{kind}-{record.name}")


def has_checks(base):
    return "__post_init__" in vars(base)


@pytest.mark.parametrize(("config", "checks"), [*schemas()])
def test_the_checks_of_every_base_are_made(config, checks, monkeypatch):
    made = []
    for base in checks:

        def check(self, base=base, own=base.__post_init__):
            made.append(base)
            own(self)

        monkeypatch.setattr(base, "__post_init__", check)
    try:
        config()
    except PlugrlError:
        # A check of a base has refused the defaults; those that it was reached through were made.
        checks = checks[: len(made)]
    assert made == checks
