"""A tiny run of a trainer, as a mapping."""

import pytest

from plugrl.testing import tiny


@pytest.fixture
def config(tmp_path):
    def make(name="self_hosted_grpo", /, **sections):
        return tiny.config(name, tmp_path, sections)

    return make
