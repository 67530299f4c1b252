"""Folders in which commands are tried."""

from __future__ import annotations

import json

import pytest
from remedies import NETS, TEXT

import plugrl
from plugrl.core.config.sources.writer import dump_yaml

_QUIET = {"experiment_name": "own", "settings": {"device": "cpu", "progress": "none"}}


def _shelf(folder, given):
    """Write a configuration, ``own.yaml``, and train one step of it."""
    (folder / "own.yaml").write_text(dump_yaml(given | _QUIET), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plugrl.train("own.yaml")
    return folder


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """A folder with a configuration, ``own.yaml``, and a run of it of one step, ``latest``."""
    return _shelf(tmp_path_factory.mktemp("shelf"), TEXT | {"validate": {"enabled": False}})


@pytest.fixture(scope="session")
def shelf_of_networks(tmp_path_factory):
    """The same of a small network."""
    return _shelf(tmp_path_factory.mktemp("networks"), NETS)


@pytest.fixture(scope="session")
def shelf_of_files(tmp_path_factory):
    """The same of problems in a file, ``train.jsonl``, and no scenario."""
    folder = tmp_path_factory.mktemp("files")
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(4)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train.jsonl").write_text(text, encoding="utf-8")
    data = TEXT["data"] | {"data_files": ["train.jsonl"]}
    own = {"scenario": None, "data": data, "validate": {"enabled": False}}
    return _shelf(folder, TEXT | own)
