"""What tests of the kit share."""

import pytest

from plugrl.core.run.process import heap


@pytest.fixture(autouse=True, scope="module")
def _no_full_collections():
    """Two of them, over all that pytest has imported, cost more than a tiny run of ten steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heap, "WARM_UP", 1000)
        yield
