"""A process that trains a toy, for the tests that kill, signal and starve it.

Usage: run_driver.py MODE RUNS_FOLDER [RUN_FOLDER]. Prints the run folder first, then each step.
"""

import hashlib
import resource
import sys
import time
from types import SimpleNamespace

import torch

from plugrl.core.errors import PlugrlError, StopRun
from plugrl.core.run.run import Run


class Toy:
    """Adds a random number to its weights in each step."""

    def __init__(self, numbers: int = 4) -> None:
        self.weights = torch.zeros(numbers)
        self.done = 0

    def state_dict(self):
        return {"weights": self.weights, "done": self.done}

    def load_state_dict(self, state):
        self.weights, self.done = state["weights"], state["done"]

    def step(self) -> float:
        self.weights = self.weights + torch.rand(len(self.weights))
        self.done += 1
        return float(self.weights.sum())


class StopAt:
    """Stands where the hooks of plugins are called, and asks for the end at one step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def call(self, name, **arguments):
        if name == "plugrl_step_end" and arguments["step"] == self.step:
            raise StopRun("enough")


def make(runs_folder, mode: str) -> Run:
    settings = {"runs_folder": str(runs_folder), "progress": "none", "checkpoint_every": 1}
    if mode == "hang":
        # The other steps have to meet it on a busy machine.
        settings["deadlines"] = {"rollout": 4.0}
    tree = {"experiment_name": "toy", "seed": 0, "settings": settings}
    composed = SimpleNamespace(input_text="experiment_name: toy\n", overrides=())
    return Run.create(SimpleNamespace(tree=tree), composed)


def work(run: Run, toy: Toy, mode: str) -> None:
    total = 10**9 if mode in ("endless", "big", "deaf", "limited") else 6
    for step in range(toy.done + 1, total + 1):
        with run.phase("rollout"):
            if mode == "hang" and step == 3:
                time.sleep(600)
            if mode == "deaf" and step == 3:
                print("deaf", flush=True)
                # One long call of C: no Python signal handler runs until it returns.
                hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
            value = toy.step()
        run.end_step(step, {"value": value})
        print(step, flush=True)
        if mode == "endless":
            time.sleep(0.01)


def main() -> int:
    mode, runs_folder, *rest = sys.argv[1:]
    torch.manual_seed(0)
    try:
        run = Run.open(rest[0]) if rest else make(runs_folder, mode)
        print(run.folder, flush=True)
        if mode == "limited":
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        # As weights of 800,000 bytes.
        toy = Toy(200_000 if mode in ("big", "limited") else 4)
        run.attach(toy)
        print("restored", run.restore(), flush=True)
        with run:
            work(run, toy, mode)
    except PlugrlError as error:
        print(f"error: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
