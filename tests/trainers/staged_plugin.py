"""Ends this process at a moment that the environment names, and notes what is paid.

``PLUGRL_TEST_KILL=job:2`` kills it at the second time of ``job``, with SIGKILL; with
``PLUGRL_TEST_FULL=1`` no file can be written from then on. Every moment before is a line of the
file ``PLUGRL_TEST_LOG``; the functions that are watched do what they always do.
"""

import functools
import json
import os
import resource
import signal
from collections import Counter

from plugrl.core.run.run import Run
from plugrl.core.text.jobs.service import TrainedJobs
from plugrl.core.text.staged.files import RunFiles
from plugrl.core.text.staged.journal import RolloutJournal
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

POINT, _, NUMBER = os.environ.get("PLUGRL_TEST_KILL", "").partition(":")
COUNTS: Counter[str] = Counter()


FULL = "PLUGRL_TEST_FULL" in os.environ


def fill_the_disk():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))


def reached(point, note=None):
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 0:
        return
    with open(os.environ["PLUGRL_TEST_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps([point, note]) + "\n")
    COUNTS[point] += 1
    if point == POINT and COUNTS[point] == int(NUMBER):
        if FULL:
            fill_the_disk()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def watch(owner, name, point, note=lambda *_, **__: None):
    """Reach ``before POINT`` and ``POINT`` around a method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def watched(*arguments, **options):
        reached(f"before {point}")
        result = method(*arguments, **options)
        reached(point, note(*arguments, **options))
        return result

    setattr(owner, name, watched)


watch(RolloutJournal, "add", "rollout", lambda journal, key, record: [journal.path.name, *key])
watch(RunFiles, "save", "kept")
watch(RunFiles, "intend", "intent", lambda files, job, iteration: job)
watch(TrainedJobs, "create", "job", lambda service, name, examples, base: name)
watch(TrainedJobs, "status", "status")
watch(TrainedJobs, "use", "used")
watch(Run, "save", "saved")
watch(TransformersInferenceService, "generate", "round", lambda service, asked: len(asked))
