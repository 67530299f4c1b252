"""A process that trains a toy with all trackers.

Usage: tracked_driver.py PLACE STEPS KILL_AT [RUN_FOLDER]. Prints the run folder. After step
KILL_AT it kills itself; 0: never.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from plugrl.core.run.run import Run
from plugrl.plugins.jsonl.tracker import JsonlTracker
from plugrl.plugins.mlflow.tracker import MlflowTracker
from plugrl.plugins.tensorboard.tracker import TensorBoardTracker
from plugrl.plugins.trackio.tracker import TrackioTracker
from plugrl.plugins.wandb.tracker import WandbTracker


class Toy:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def main(place, steps, kill_at, folder=None):
    trackers = [
        JsonlTracker({"path": str(place / "all.jsonl")}),
        MlflowTracker({"folder": str(place / "mlflow")}),
        TensorBoardTracker(),
        TrackioTracker({"folder": str(place / "trackio"), "project": "p"}),
        WandbTracker({"project": "p"}),
    ]
    settings = {
        "runs_folder": str(place / "runs"), "progress": "none", "checkpoint_every": 4,
    }  # fmt: skip
    tree = {"experiment_name": "toy", "settings": settings}
    if folder is None:
        composed = SimpleNamespace(input_text="", overrides=(), tree=tree)
        run = Run.create(SimpleNamespace(tree=tree), composed, trackers=trackers)
    else:
        run = Run.open(folder, trackers=trackers)
    print(run.folder, flush=True)
    toy = Toy()
    run.attach(toy)
    with run:
        run.restore()
        # Databases take their time to begin; then all are as far as the run.
        give_up = time.monotonic() + 240
        run.log(max(run.step, 0), {"begun": 1})
        while any(feed._flushed < feed._given for feed in run._trackers._feeds):
            assert time.monotonic() < give_up
            time.sleep(0.05)
        for step in range(toy.done + 1, steps + 1):
            toy.done = step
            run.sample("answers", {"prompt": f"{step}+1="})
            run.end_step(step, {"train/loss": 1 / step})
            time.sleep(0.05)
            if step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
