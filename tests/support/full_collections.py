"""Full garbage collections that do not walk torch and transformers again and again.

One that walks all modules takes a fifth of a second, and one in ten tests caused one. Whatever is
there between two tests, after a collection that took long, is left out of later ones. Tests of
what is freed make it themselves, so that it is never left out.
"""

import gc
import time

import pytest

#: Seconds of processor time.
LONG = 0.05


class Watch:
    """Whether a full collection took long since this was last asked."""

    def __init__(self):
        self._begun, self.long = 0.0, False

    def __call__(self, phase, info):
        if phase == "start":
            self._begun = time.thread_time()
        elif info["generation"] == 2 and time.thread_time() - self._begun > LONG:
            self.long = True


_watch = Watch()
gc.callbacks.append(_watch)
# What is imported and collected before the first test stays.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if _watch.long:
        _watch.long = False
        gc.freeze()
