"""Says which hooks a run calls."""

import plugrl


def said(name, **values):
    words = ["hook", name, *(f"{key}={value}" for key, value in values.items())]
    print(" ".join(words) + "\n", end="")


@plugrl.hookimpl
def plugrl_configure(config):
    said("configure")


@plugrl.hookimpl
def plugrl_run_start(run):
    said("run_start", step=run.step)


@plugrl.hookimpl
def plugrl_rollouts_collected(step, trajectories):
    said("rollouts_collected", step=step, trajectories=len(trajectories))


@plugrl.hookimpl
def plugrl_weights_synced(step):
    said("weights_synced", step=step)


@plugrl.hookimpl
def plugrl_evaluation_end(step, metrics):
    said("evaluation_end", step=step, metrics=len(metrics) > 0)


@plugrl.hookimpl
def plugrl_checkpoint_saved(step, path):
    said("checkpoint_saved", step=step, there=path.exists())


@plugrl.hookimpl
def plugrl_step_end(run, step, metrics):
    said("step_end", step=step, metrics=len(metrics) > 0)


@plugrl.hookimpl
def plugrl_run_end(outcome):
    said("run_end", outcome=outcome)
