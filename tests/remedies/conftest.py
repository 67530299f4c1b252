"""A folder in which commands are tried."""

from __future__ import annotations

import pytest
from remedies import TEXT

import plugrl
from plugrl.core.config.sources.writer import dump_yaml


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A folder with a configuration, ``own.yaml``, and a run of it of one step, ``latest``."""
    folder = tmp_path_factory.mktemp("shelf")
    own = {"experiment_name": "own", "validate": {"enabled": False}, **TEXT}
    (folder / "own.yaml").write_text(dump_yaml(own), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plugrl.train("own.yaml")
    return folder
