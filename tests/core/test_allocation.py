"""Memory that a step frees is there for the next one."""

import os
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
    blocks = [torch.ones(2**18) for _ in range(16)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_freed_blocks_are_used_again_without_page_faults():
    # Fixed, because otherwise it depends on what was freed before whether glibc keeps a block.
    fixed = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", FAULTS, how], env=fixed))
        for how in ("keep", "default")
    }
    # 50 steps take 16 blocks, and a new block is at least one fault.
    assert faults["keep"] < 100
    assert faults["default"] >= 50 * 16
