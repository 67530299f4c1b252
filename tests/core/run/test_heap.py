"""Freed memory is there for the next step, and full collections pass over what a run has set up."""

import gc
import os
import platform
import subprocess
import sys
import weakref

import pytest

from plugrl.core.run.process.heap import WARM_UP, GarbageCollection


@pytest.fixture(autouse=True)
def as_before():
    # What tests before this one left makes full collections slow.
    gc.freeze()
    yield
    gc.unfreeze()


class Circle:
    """Lives until a collection finds it, as models do."""

    def __init__(self):
        self.itself = self


def warm(garbage):
    for _ in range(WARM_UP):
        garbage.end_step()


@pytest.mark.integration
def test_what_was_there_before_is_passed_over_until_it_is_thawed():
    garbage, early = GarbageCollection(), Circle()
    seen_early = weakref.ref(early)
    warm(garbage)
    late = Circle()
    seen_late = weakref.ref(late)
    del early, late
    gc.collect()
    assert seen_early() is not None
    assert seen_late() is None
    garbage.thaw()
    gc.collect()
    assert seen_early() is None


def test_garbage_of_the_set_up_is_collected_first():
    lost = Circle()
    seen = weakref.ref(lost)
    del lost
    warm(GarbageCollection())
    assert seen() is None


def test_a_run_freezes_after_its_first_steps_and_thaws_at_its_end(make_run):
    run = make_run()
    with run:
        for step in range(WARM_UP - 1):
            run.end_step(step, {})
        before = gc.get_freeze_count()
        run.end_step(WARM_UP - 1, {})
        frozen = gc.get_freeze_count()
        assert frozen > before
        kept = [Circle() for _ in range(1000)]
        run.end_step(WARM_UP, {})
        assert gc.get_freeze_count() <= frozen
    assert gc.get_freeze_count() == 0
    assert len(kept) == 1000


FAULTS = """
import resource, sys
{imports}
from plugrl.core.run.process.heap import keep_freed_memory
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
