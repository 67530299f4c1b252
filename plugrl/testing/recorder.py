"""A hook plugin that records the hooks that a run calls, and can stop the run."""

from __future__ import annotations

import os
from typing import Any

from plugrl.core.errors import StopRun
from plugrl.core.plugins.hookspecs import hookimpl


class Recorder:
    """Records the hook calls of one run in order.

    Args:
        stop: whether to stop the run at the end of its first step.

    Attributes:
        calls: hook names without prefix, with the step (the outcome for ``run_end``).
        complete: the value of ``trainer.complete`` at the end of each step.
        seconds: the processor time of the run, in this process and those it waited for.
    """

    def __init__(self, *, stop: bool = False) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.seconds = 0.0
        self.complete: list[bool] = []
        self._stop = stop

    @property
    def ended_steps(self) -> list[int]:
        """The steps that ended, in order."""
        return [step for name, step in self.calls if name == "step_end"]

    @hookimpl
    def plugrl_run_start(self, run: Any) -> None:
        """Record the start."""
        self.seconds -= _processor_time()
        self.calls.append(("run_start", run.step))

    @hookimpl
    def plugrl_rollouts_collected(self, step: int) -> None:
        """Record the rollouts of a step."""
        self.calls.append(("rollouts_collected", step))

    @hookimpl
    def plugrl_weights_synced(self, step: int) -> None:
        """Record a weight sync."""
        self.calls.append(("weights_synced", step))

    @hookimpl
    def plugrl_evaluation_end(self, step: int) -> None:
        """Record an evaluation."""
        self.calls.append(("evaluation_end", step))

    @hookimpl
    def plugrl_step_end(self, run: Any, step: int) -> None:
        """Record the end of a step, and stop the run if requested."""
        self.complete.append(bool(getattr(run.trainer, "complete", False)))
        self.calls.append(("step_end", step))
        if self._stop:
            raise StopRun("the conformance kit stops the run here")

    @hookimpl
    def plugrl_checkpoint_saved(self, step: int) -> None:
        """Record a checkpoint."""
        self.calls.append(("checkpoint_saved", step))

    @hookimpl
    def plugrl_run_end(self, outcome: str) -> None:
        """Record the end."""
        self.seconds += _processor_time()
        self.calls.append(("run_end", outcome))


def _processor_time() -> float:
    """Processor time of this process and of those that it has waited for, in seconds."""
    return sum(os.times()[:4])


def order_faults(calls: list[tuple[str, Any]]) -> list[str]:
    """The faults in the order of the calls of a successful run, as messages."""
    names = [name for name, _ in calls]
    if names[:1] != ["run_start"] or calls[-1:] != [("run_end", "done")]:
        return [f"run_start, then the steps, then run_end(done) are expected, not {names}"]
    faults: list[str] = []
    ended = -1
    waiting: list[tuple[str, Any]] = []
    for name, step in calls[1:-1]:
        if name == "step_end":
            faults += [f"{n}({s}) came before step_end({step})" for n, s in waiting if s != step]
            ended, waiting = step, []
        elif name == "checkpoint_saved":
            faults += [f"{name}({step}) came after step_end({ended})"] if step != ended else []
        # An evaluation may also come after the end of its step; step 0 is before training.
        elif name != "evaluation_end" or step != max(ended, 0):
            waiting.append((name, step))
    return faults + [f"{name}({step}) came after the last step_end" for name, step in waiting]
