"""Train, die at a named moment, resume; each in a fork of one process that imported everything.

usage: moments_driver.py RECIPE FOLDER MOMENT ...: prints a JSON object, from moment to run folder.
"""

import json
import os
import re
import resource
import signal
import sys
import traceback
from pathlib import Path

import torch

from plugrl.core.experiment import resume, train
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.run.records import records
from plugrl.core.text.evaluate import validation
from plugrl.core.text.learn import losses
from plugrl.core.text.schedule import weight_sync
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.plugins.transformers.inference_service import TransformersInferenceService

RUNS = Path()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk(*_):
    """From now on no file may grow beyond 100 bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))


def newest_checkpoint():
    return max(RUNS.glob("*/*/checkpoints/step-*"))


def cut_newest_and_die():
    """As after a crash of the machine: the name is there, the content is not."""
    path = newest_checkpoint() / "tensors.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    die()


def change_plugin_and_die():
    """The run goes on with another version of the trainer's package than it began with."""
    (path,) = RUNS.glob("*/*/plugins.lock.json")
    text = path.read_text()
    changed = re.sub(r'"version": "[^"]*"', '"version": "0.0.1"', text)
    assert changed != text
    path.write_text(changed)
    die()


def before(owner, name, count, act):
    """Replace ``owner.name``: its ``count``-th call acts first."""
    plain, calls = getattr(owner, name), []

    def patched(*args, **kwargs):
        calls.append(1)
        if len(calls) == count:
            act()
        return plain(*args, **kwargs)

    setattr(owner, name, patched)


def after(owner, name, count, act):
    """Replace ``owner.name``: its ``count``-th call acts when it is done."""
    plain, calls = getattr(owner, name), []

    def patched(*args, **kwargs):
        result = plain(*args, **kwargs)
        calls.append(1)
        if len(calls) == count:
            act()
        return result

    setattr(owner, name, patched)


#: By kind: what is patched, and which of its calls acts.
KINDS = {
    "start": {
        "in the first rollout": (before, TransformersInferenceService, "generate", 1, die),
        "before the first loss": (before, losses.WeightedLoss, "__call__", 1, die),
        "before the first sync": (before, weight_sync.WeightSync, "__call__", 1, die),
        "in the first validation": (before, validation.Validation, "__call__", 1, die),
        "before the first checkpoint": (before, checkpoint, "write_state", 1, die),
    },
    "rollout": {
        "in a later rollout": (after, TransformersInferenceService, "generate", 9, die),
    },
    "learning": {
        "after a loss": (after, losses.WeightedLoss, "__call__", 7, die),
        "before an optimizer step": (before, torch.optim.AdamW, "step", 3, die),
        "after an optimizer step": (after, torch.optim.AdamW, "step", 8, die),
    },
    "sync": {
        "in a sync": (before, TransformersInferenceService, "update_weights", 4, die),
        "after a sync": (after, weight_sync.WeightSync, "__call__", 10, die),
    },
    "validation": {
        "after a validation": (after, validation.Validation, "__call__", 5, die),
    },
    "checkpoint": {
        "with half of a checkpoint": (after, checkpoint, "_write_tensors", 3, die),
        "before the name of a checkpoint": (before, checkpoint, "sync_folder", 3, die),
        "after a checkpoint": (after, checkpoint, "write_state", 4, die),
    },
    "end of a step": {
        "before old checkpoints go": (before, checkpoint, "prune", 4, die),
        "with a line of metrics": (after, records.RunRecords, "metrics", 6, die),
        "at the end of a phase": (after, TrajectoryTrainer, "export_weights", 1, die),
    },
    "damage": {
        "with the newest checkpoint cut short": (after, checkpoint, "prune", 4, cut_newest_and_die),
        "before a plugin changes": (after, checkpoint, "prune", 3, change_plugin_and_die),
    },
    "disk full": {
        "with the disk full at a checkpoint": (before, checkpoint, "write_state", 5, fill_disk),
        "with the disk full at the metrics": (before, records.RunRecords, "metrics", 5, fill_disk),
    },
}
MOMENTS = {name: patch for kind in KINDS.values() for name, patch in kind.items()}


def forked(log, act):
    """Run ``act`` in a fork and give how it ended: a signal as a negative number."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        act()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main():
    recipe, folder = sys.argv[1], Path(sys.argv[2])
    ended = {}
    for number, name in enumerate(sys.argv[3:]):
        patch, owner, attribute, count, act = MOMENTS[name]
        runs, log = folder / str(number), folder / f"{number}.log"

        def broken(runs=runs, patch=patch, owner=owner, attribute=attribute, count=count, act=act):
            global RUNS
            RUNS = runs
            patch(owner, attribute, count, act)
            train(recipe, [f"settings.runs_folder={runs}"])

        code = forked(log, broken)
        (run,) = runs.glob("*/[0-9]*")
        again = forked(log, lambda run=run: resume(run))
        ended[name] = {"code": code, "resumed": again, "run": str(run), "log": str(log)}
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
