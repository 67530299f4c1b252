"""Counts the files, classes and functions of plugrl that run in a training step.

    python benchmarks/code_paths.py

A profile hook records every function of the package that is called between the ends of two steps
(a GRPO step of a tiny language model, a PPO iteration on CartPole-v1), and while a configuration of
twelve lines is prepared. It says how much one has to read to follow a step, and nothing of speed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import plugrl
from plugrl.core.experiment import prepare, start

PACKAGE = str(Path(plugrl.__file__).parent)
SOURCE = {
    "config": {
        "model_type": "qwen3",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 16,
    },
    "tokenizer": {"characters": "0123456789+="},
}
SHARED = {"settings": {"progress": "none", "checkpoint_every": 0}, "validate": {"enabled": False}}
GRPO = {
    "scenario": {"type": "arithmetic", "digits": 2},
    "models": {"policy": {"source": SOURCE, "train": "local"}},
    "data": {"batch_size": 2, "rollout_repeat_n": 4},
    "rollout_worker": {"max_response_length": 4, "evaluator": "exact_match"},
    "trainer": {"type": "self_hosted_grpo", "total_train_steps": 3},
    **SHARED,
}
PPO = {
    "scenario": {"type": "gymnasium", "id": "CartPole-v1", "num_envs": 2},
    "rl": {"num_iterations": 3, "frames_per_batch": 64},
    "trainer": "vanilla_ppo",
    **SHARED,
}
TWELVE_LINES = """\
experiment_name: twelve
scenario: {type: gymnasium, id: CartPole-v1, num_envs: 2}
rl:
  num_iterations: 2
  frames_per_batch: 64
  gamma: 0.98
agents:
  agent:
    body: {type: mlp, hidden: [32]}
trainer: vanilla_ppo
settings:
  progress: none
"""


class Recorder:
    """The code objects of plugrl that threads of this process enter while it records."""

    def __init__(self) -> None:
        self.seen: set[CodeType] = set()

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.seen.add(frame.f_code)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Record this thread, and those that are started from now on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def end(self) -> None:
        """Record no longer."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]

    def counts(self) -> dict[str, int]:
        """Files, classes and functions; comprehensions are part of their function."""
        named = [code for code in self.seen if not code.co_name.startswith("<")]
        owners = {
            (code.co_filename, code.co_qualname.rpartition(".")[0])
            for code in named
            if "." in code.co_qualname.replace(".<locals>.", "")
        }
        return {
            "files": len({code.co_filename for code in self.seen}),
            "classes": len(owners),
            "functions": len(named),
        }


def second_step(tree: dict[str, Any], folder: Path) -> Recorder:
    """What runs after the first step ended and until the second has."""
    recorder = Recorder()

    class Hooks:
        @plugrl.hookimpl
        def plugrl_step_end(self, step: int) -> None:
            if step == 1:
                recorder.begin()
            elif step == 2:
                recorder.end()

    settings = {**tree["settings"], "runs_folder": str(folder)}
    experiment = prepare({**tree, "settings": settings})
    experiment.plugins.manager.register(Hooks())
    start(experiment)
    return recorder


def preparation(folder: Path) -> Recorder:
    """What runs from the text of a configuration to an experiment that can start."""
    file = folder / "twelve.yaml"
    file.write_text(TWELVE_LINES, encoding="utf-8")
    recorder = Recorder()
    with recorder.recording():
        prepare(str(file))
    return recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--files", action="store_true", help="name the files too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        measured: dict[str, Callable[[], Recorder]] = {
            "GRPO step": lambda: second_step(GRPO, folder),
            "PPO iteration": lambda: second_step(PPO, folder),
            "preparation": lambda: preparation(folder),
        }
        recorders = {name: measure() for name, measure in measured.items()}
    if arguments.json:
        print(json.dumps({name: recorder.counts() for name, recorder in recorders.items()}))
        return
    for name, recorder in recorders.items():
        print(f"{name:15}", *(f"{count:4} {what}" for what, count in recorder.counts().items()))
        if arguments.files:
            for file in sorted({code.co_filename for code in recorder.seen}):
                print("   ", Path(file).relative_to(PACKAGE))


if __name__ == "__main__":
    main()
