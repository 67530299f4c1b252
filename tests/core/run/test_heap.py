"""Freed memory is there for the next step, and full collections pass over what a run has set up."""

import gc
import os
import platform
import subprocess
import sys
import weakref

import pytest

from plugrl.core.config.view import ConfigView
from plugrl.core.errors import ConfigError
from plugrl.core.experiment import prepare
from plugrl.core.run.process.heap import WARM_UP, GarbageCollection, rare_collections
from plugrl.core.text.models import Models


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


@pytest.fixture
def collections():
    """How many collections each generation had, as Python's own numbers have them."""
    before, counts = gc.get_threshold(), [0, 0, 0]

    def count(phase, info):
        counts[info["generation"]] += phase == "start"

    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(count)
    yield counts
    gc.callbacks.remove(count)
    gc.set_threshold(*before)


def test_what_is_made_during_start_up_is_hardly_looked_at(collections):
    with rare_collections():
        kept = [[] for _ in range(100_000)]
        assert collections == [0, 0, 0]
        kept += [[] for _ in range(200_000)]
    assert 1 <= collections[0] <= 3
    assert collections[1:] == [0, 0]
    del collections[:]
    collections += [0, 0, 0]
    kept += [[] for _ in range(100_000)]
    assert collections[0] > 100
    assert collections[1] > 10


def test_numbers_of_before_come_back_whichever_thread_ends_last(collections):
    def failing():
        with rare_collections():
            raise ValueError

    one, other = rare_collections(), rare_collections()
    one.__enter__()
    other.__enter__()
    with pytest.raises(ValueError):
        failing()
    one.__exit__(None, None, None)
    assert gc.get_threshold()[0] > 700
    other.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (10**6, 20, 2000)])
def test_who_wants_none_or_fewer_keeps_that(collections, own):
    gc.set_threshold(*own)
    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_configurations_and_models_are_made_so(collections, monkeypatch):
    seen = []

    def note(*_, **__):
        seen.append(gc.get_threshold()[0] > 700)
        raise ConfigError("as far as that")

    monkeypatch.setattr("plugrl.core.experiment.compose", note)
    with pytest.raises(ConfigError):
        prepare({})

    class Asked:
        build = staticmethod(note)

    tree = {"policy": {"source": {"seed": 1}, "inference": {"type": "any"}, "train": None}}
    with pytest.raises(ConfigError):
        Models.load(ConfigView(tree, "models"), Asked(), seed=0, device="cpu")
    assert seen == [True, True]
    assert gc.get_threshold() == (700, 10, 10)
