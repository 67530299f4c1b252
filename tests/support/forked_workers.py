"""Worker processes for rollouts that are forked from one that has imported what they import.

Each starts in milliseconds of processor time, not in a third of a second.
That one starts, with which arguments and environment, is for tests without this fixture.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import forking
import pytest

LIBRARIES = """plugrl plugrl.core.text.rollout.processes.process plugrl.core.config.check
    plugrl.plugins.transformers.tokenizer"""


def _started(
    words: Sequence[str],
    *,
    pass_fds: Sequence[int],
    stdin: int,
    env: Mapping[str, str],
    process_group: int,
) -> forking.Process:
    assert (words[0], stdin, process_group) == (sys.executable, subprocess.DEVNULL, 0)
    return forking.Process(
        words[1:], env=env, pass_fds=pass_fds, start_new_session=True, libraries=LIBRARIES
    )


@pytest.fixture(scope="module")
def forked_workers():
    """Let the worker processes of this file be forked; ``own_processes`` does not find them."""
    stand_in = SimpleNamespace(**{**vars(subprocess), "Popen": _started})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("plugrl.core.text.rollout.processes.handle.subprocess", stand_in)
        yield
