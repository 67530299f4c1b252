"""Memory that a step frees is there for the next one."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
{imports}
from plugrl.core.run.process.allocation import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [{block} for _ in range(8)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("imports", "block"),
    [
        ("", "b'x' * 2**18"),
        pytest.param("import torch", "torch.ones(2**16)", marks=pytest.mark.integration),
    ],
)
def test_freed_blocks_are_used_again_without_page_faults(imports, block):
    # Fixed, because otherwise it depends on what was freed before whether glibc keeps a block.
    fixed = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}
    program = FAULTS.format(imports=imports, block=block)
    faults = {
        how: int(subprocess.check_output([sys.executable, "-c", program, how], env=fixed))
        for how in ("keep", "default")
    }
    # 20 steps take 8 blocks, and a new block is at least one fault.
    assert faults["keep"] < 100
    assert faults["default"] >= 20 * 8
