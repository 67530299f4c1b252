"""Memory that a step frees is there for the next one."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from plugrl.core.allocation import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for step in range(60):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.ones(2**20) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_blocks_are_used_again_without_page_faults():
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how]))
        for how in ("keep", "default")
    }
    # 16 MiB are 4,096 pages, and 50 steps use them.
    assert faults["keep"] < 1_000 < faults["default"]
