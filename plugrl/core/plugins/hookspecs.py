"""The hooks: what a plugin can observe of a run.

A hook is a function marked ``@plugrl.hookimpl`` in a module (or a method of an object) that an
entry point of the group ``plugrl`` names. All hooks run in the driver process, are called with
keyword arguments, and may leave out arguments that they do not need. They are observers: what
they return is ignored, and one that raises is logged once and counted while the run goes on.
Only :class:`~plugrl.core.errors.StopRun` passes through; it ends the run cleanly.

Adding a hook or an argument is a minor change. ``HOOK_API`` grows when one is removed or
changes its meaning; a hook module may declare the version it was written for as
``PLUGRL_HOOK_API = 1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pluggy

from plugrl.core.plugins.hook_types import Registrar, Run, Trajectory, ValidatedConfig

HOOK_API = 1

hookspec = pluggy.HookspecMarker("plugrl")
hookimpl = pluggy.HookimplMarker("plugrl")


@hookspec
def plugrl_register_components(registry: Registrar) -> None:
    """Register components that are only known at run time.

    Called once in each process that needs the components, right after the plugin was loaded.

    Args:
        registry: call ``registry.register(kind, name, obj)`` on it.
    """


@hookspec
def plugrl_configure(config: ValidatedConfig) -> None:
    """Look at the configuration before anything is built, and refuse it if need be.

    The one hook that may end the run with an error, by raising ``plugrl.ConfigError``.

    Args:
        config: the validated configuration, defaults filled in; not to be changed.
    """


@hookspec
def plugrl_run_start(run: Run) -> None:
    """The run folder exists and the trainer is bound; training starts next, or goes on.

    Args:
        run: the run; ``run.folder`` and ``run.step`` tell where and from which step.
    """


@hookspec
def plugrl_rollouts_collected(
    run: Run, step: int, trajectories: Sequence[Trajectory], metrics: Mapping[str, float]
) -> None:
    """The trajectories of a step are complete, before the trainer learns from them.

    Args:
        run: the run.
        step: the step that they belong to, counted from 1.
        trajectories: all of them, invalid ones too; copies, so that changes of them are lost.
        metrics: numbers about the rollouts so far.
    """


@hookspec
def plugrl_step_end(run: Run, step: int, metrics: Mapping[str, float]) -> None:
    """A training step is over and its metrics are written.

    Args:
        run: the run.
        step: the step, counted from 1.
        metrics: the numbers of the step by name.
    """


@hookspec
def plugrl_evaluation_end(run: Run, step: int, metrics: Mapping[str, float]) -> None:
    """A held-out evaluation is over.

    Args:
        run: the run.
        step: the last step before it; 0 before training.
        metrics: the numbers of the evaluation by name.
    """


@hookspec
def plugrl_weights_synced(run: Run, step: int, versions: Mapping[str, int]) -> None:
    """The sampling weights are up to date with the trained ones.

    Args:
        run: the run.
        step: the step whose weights they are.
        versions: the weight version of each trained model, by model name.
    """


@hookspec
def plugrl_checkpoint_saved(run: Run, step: int, path: Path) -> None:
    """A checkpoint is complete on disk.

    Args:
        run: the run.
        step: the step that it holds.
        path: its folder.
    """


@hookspec
def plugrl_run_end(run: Run, outcome: str) -> None:
    """The run is over, well or badly; its files are complete.

    Args:
        run: the run.
        outcome: ``done``, ``failed``, ``interrupted`` or ``terminated``.
    """
