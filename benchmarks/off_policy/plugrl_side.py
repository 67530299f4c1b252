"""plugrl's side of the benchmark: an ordinary configuration, given to ``plugrl.train``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import task

GIVEN = task.arguments()
CLOCK = task.Clock(GIVEN)

import plugrl  # noqa: E402 - the time of importing it counts


class Turns:
    """Notes when training begins, and when an iteration has ended, records included."""

    mean_return = 0.0

    def plugrl_run_start(self) -> None:
        """Training begins."""
        CLOCK.end("setup")

    def plugrl_step_end(self, step: int, metrics: Any) -> None:
        """An iteration has ended."""
        self.mean_return = metrics.get("rollout/mean_episode_return", self.mean_return)
        if step > 0:
            CLOCK.iteration()


class Refusals(logging.Handler):
    """Ends a side that was to be compiled and goes on uncompiled."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at what is logged."""
        if "goes on uncompiled" in record.getMessage():
            raise SystemExit(record.getMessage())


def configuration(given: task.Given) -> dict[str, Any]:
    """The run, as a mapping."""
    own = given.settings
    body = {"type": "mlp", "hidden": task.WIDTHS, "activation": "relu"}
    section: dict[str, Any] = {
        "buffer_size": own.buffer,
        "learning_starts": own.learning_starts,
        "train_freq": own.train_freq,
        "gradient_steps": own.updates,
    }
    if given.algorithm == "dqn":
        section["target_update_interval"] = task.TARGET_INTERVAL
        section["exploration_fraction"] = task.FRACTION
        section["exploration_final_eps"] = task.FINAL_EPS
    else:
        section |= {"tau": task.TAU, "critic_hidden": task.WIDTHS}
    if given.algorithm == "td3":
        section["action_noise"] = task.NOISE
    return {
        "experiment_name": f"off_policy_{given.algorithm}",
        "seed": given.seed,
        "scenario": {"type": "gymnasium", "id": own.environment, "num_envs": 1},
        "agents": {"_default": {"body": body}},
        "rl": {
            "num_iterations": given.iterations,
            "frames_per_batch": task.ITERATION,
            "minibatch_size": own.batch,
            "lr": own.learning_rate,
            "gamma": task.GAMMA,
            "compile": given.compiled,
        },
        given.algorithm: section,
        # The other side plays no evaluation episodes either.
        "validate": {"enabled": False},
        "trainer": {"type": given.algorithm},
        "settings": {
            "runs_folder": str(given.folder / "runs"),
            "torch_threads": 1,
            "device": "cpu",
        },
    }


if __name__ == "__main__":
    turns = Turns()
    CLOCK.end("imports")
    if GIVEN.compiled:
        logging.getLogger("plugrl").addHandler(Refusals(logging.WARNING))
    plugrl.train(configuration(GIVEN), callbacks=[turns])
    CLOCK.end("learn")
    CLOCK.report(turns.mean_return)
