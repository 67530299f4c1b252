"""Which servers the tests of a module run against."""

import pytest

INSTALLED = pytest.param(
    # The first test may have to install it.
    "installed",
    marks=[pytest.mark.server, pytest.mark.timeout(1800)],
)


def against(name: str, *tier: pytest.MarkDecorator, model: str = "beginner"):
    """Run a test against the server of the wire format, in a tier, and against an installed one.

    Args:
        name: the fixture of the server.
        tier: the marks of the former; none: a fast test.
        model: the fixture of the folder of its model.
    """
    kinds = [pytest.param(model, marks=tier), INSTALLED]
    scope = "session" if name == "server" else "function"
    return pytest.mark.parametrize(name, kinds, indirect=True, scope=scope)
