"""Data files that are pipes, devices or circles of links: each is refused at once, in one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.data.files import first_problem, read_files


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device", "circle"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"problems{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path)
    for read in (first_problem, lambda each: read_files([each])):
        with pytest.raises(ConfigError, match=r"^data file .*(not a regular|symbolic)") as caught:
            read(path)
        assert "\n" not in str(caught.value)
