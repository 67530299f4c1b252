"""A plugin for runs that are killed: it writes down what is trained, and breaks things on demand.

``PLUGRL_TEST_TRAINED`` names the file that gets a JSON line for each training batch;
``PLUGRL_TEST_BREAK`` says what breaks: ``complete``, ``sync``, ``disk`` or nothing.
"""

import asyncio
import json
import os
import resource
import signal
import time

import plugrl
from plugrl.core.run.checkpoints import checkpoint
from plugrl.core.text.rollout.worker import trajectory_of
from plugrl.core.text.trajectory_trainer import TrajectoryTrainer
from plugrl.plugins.transformers.inference_service import TransformersInferenceService as Engine

BREAK = os.environ.get("PLUGRL_TEST_BREAK")
_train_models = TrajectoryTrainer._train_models


def train_models(self, batches, metrics):
    record = {
        "step": self._step + 1,
        "keys": [[t.group_id, t.run_id] for own in batches.values() for t in own],
        "gap": max(
            self.models.trained[name].version - v
            for name, own in batches.items()
            for t in own
            for v in t.versions or ()
            if v >= 0
        ),
    }
    with open(os.environ["PLUGRL_TEST_TRAINED"], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return _train_models(self, batches, metrics)


TrajectoryTrainer._train_models = train_models


@plugrl.register_rollout_worker("uneven")
async def uneven(task, worker):
    """Attempts of different lengths."""
    tokenizer = task.tokenizers["policy"]
    prompt = tokenizer.encode(task.prompt)
    answer = await task.ask("policy", prompt)
    await asyncio.sleep(0.02 * task.random.random())
    trajectory = trajectory_of(task, "policy", prompt, answer)
    return await worker.judged(task, trajectory, tokenizer.decode(answer.tokens))


if BREAK == "complete":
    _complete, _calls = Engine.complete, []

    async def complete(self, request):
        _calls.append(1)
        if len(_calls) > 30:
            await asyncio.sleep(1000)
        return await _complete(self, request)

    Engine.complete = complete

if BREAK == "sync":
    _update = Engine.update_weights

    def update_weights(self, weights, version):
        if version >= 4:
            time.sleep(1000)
        _update(self, weights, version)

    Engine.update_weights = update_weights

if BREAK == "disk":
    _write = checkpoint.write_state

    def write_state(folder, *args, **kwargs):
        if "step-00000004" in str(folder):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        return _write(folder, *args, **kwargs)

    checkpoint.write_state = write_state
