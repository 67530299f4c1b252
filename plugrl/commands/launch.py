"""``plugrl launch``: a configuration of this machine trained on a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment
    from plugrl.core.launch.launcher import Launcher

EXAMPLES = """
plugrl launch experiment.yaml --on ray --address http://head:8265
plugrl launch experiment.yaml seed=1 --on slurm --dry-run
plugrl launch -c experiment.yaml -m self-hosted -r -t exp-v2
plugrl launch experiment.yaml --on ray --resume latest
"""


class Mode(StrEnum):
    """What trains the weights."""

    SELF_HOSTED = "self-hosted"
    TRAINING_SERVICE = "training-service"


def command(
    context: typer.Context,
    config: Annotated[
        str | None, typer.Argument(help="A YAML file or the name of a recipe.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to set.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="PLACE",
            help="local, ray, kubernetes, slurm or a plugin's launcher; with --mode kubernetes.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Of ray: http://HOST:8265; of kubernetes: a context of kubectl."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")
    ] = False,
    mode: Annotated[
        Mode | None,
        typer.Option("-m", "--mode", help="What the configuration has to train with."),
    ] = None,
    train_config: Annotated[
        str | None, typer.Option("-c", "--train-config", help="Another way to name CONFIG.")
    ] = None,
    run: Annotated[
        bool,
        typer.Option("-r", "--run-nexrl", help="Start at once, as is done anyway."),
    ] = False,
    tag: Annotated[
        str | None, typer.Option("-t", "--tag", help="End of the job's name; else the time.")
    ] = None,
    inference_url: Annotated[
        str | None,
        typer.Option("--inference-url", help="A server that is up; no engines are started."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Continue a run there: its name, or latest."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Return when the job is sent.")
    ] = False,
    config_path: Annotated[
        list[str] | None,
        typer.Option(
            "--config-path",
            metavar="FOLDER",
            help="Further folder in which `defaults` are looked up.",
        ),
    ] = None,
) -> None:
    """Train on a cluster, with the files that the configuration names.

    The configuration is checked here first. Relative paths in it travel; absolute ones are those of
    the cluster. The job is followed until it ends where jobs begin at once; Ctrl-C leaves it.
    """
    from plugrl.core.errors import UsageError
    from plugrl.core.experiment import prepare
    from plugrl.core.launch.job import make_job
    from plugrl.core.launch.launcher import find_launcher

    words = list(overrides or [])
    if train_config is not None:
        # What stands first is then a value.
        words = [word for word in (config, *words) if word is not None]
        config = train_config
    if config is None:
        raise UsageError("name a configuration: plugrl launch CONFIG --on PLACE")
    place = on or ("kubernetes" if mode is not None else None)
    if place is None:
        raise UsageError(f"say where: {', '.join(f'--on {name}' for name in _places())}")
    launcher = find_launcher(place, address)
    paths = config_path or []
    experiment = prepare(config, words, config_path=paths, setup=True, elsewhere=place != "local")
    _check_mode(mode, experiment, inference_url)
    if inference_url is not None:
        words += _server(inference_url, experiment)
        experiment = prepare(
            config, words, config_path=paths, setup=True, elsewhere=place != "local"
        )
    experiment.warn_unchecked()
    above: dict[str, Any] = context.parent.params if context.parent is not None else {}
    job = make_job(
        config,
        words,
        experiment.composed,
        experiment.validated,
        experiment.registry,
        config_path=paths,
        plugins=above.get("plugin") or (),
        tag=tag,
        resume=resume,
        engines=inference_url is None and mode is not Mode.TRAINING_SERVICE,
    )
    if dry_run:
        print(launcher.preview(job), end="")
        return
    name = launcher.start(job)
    print(f"job {name} on {place}", flush=True)
    if detach or not launcher.follows:
        _say_how(name, place, address)
        return
    follow(launcher, name, place, address)


def follow(launcher: Launcher, name: str, place: str, address: str | None) -> None:
    """Print what a job prints until it ends; Ctrl-C leaves the job alone.

    Raises:
        RunError: the job failed or was stopped.
    """
    from plugrl.core.errors import EXIT_INTERRUPTED, RunError

    try:
        for piece in launcher.logs(name, follow=True):
            print(piece, end="", flush=True)
        status = _end(launcher, name)
    except KeyboardInterrupt:
        _say_how(name, place, address)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if status.state != "succeeded":
        detail = f": {status.message}" if status.message else ""
        again = "launch it again with --resume RUN to continue its run"
        raise RunError(f"the job {name} is {status.state}{detail}; {again}")


def _end(launcher: Launcher, name: str) -> Any:
    """How a job ended whose log has ended; the place may take a moment to know."""
    import time

    for pause in (0.1, 0.2, 0.5, 1, 2, 5, 10, 10):
        status = launcher.status(name)
        if status.ended:
            return status
        time.sleep(pause)
    return launcher.status(name)


def _say_how(name: str, place: str, address: str | None) -> None:
    """Print the commands for a job that is left alone, to stderr."""
    import shlex
    import sys

    where = ["--on", place, *(["--address", address] if address else [])]
    for verb in ("logs", "stop"):
        print(f"plugrl jobs {verb} {shlex.join([name, *where])}", file=sys.stderr)


def _places() -> list[str]:
    from plugrl.core.plugins.registry import default_registry

    return sorted({record.name for record in default_registry().records("launcher")})


def _check_mode(mode: Mode | None, experiment: Experiment, inference_url: str | None) -> None:
    """Refuse a mode that is not that of the trainer.

    Raises:
        UsageError: it is not.
    """
    from plugrl.core.errors import UsageError
    from plugrl.core.text.remote_api import RemoteApiTrainer

    classes = [experiment.validated.trainer, *(p.trainer for _, p in experiment.validated.phases)]
    remote = any(isinstance(cls, type) and issubclass(cls, RemoteApiTrainer) for cls in classes)
    real = Mode.TRAINING_SERVICE if remote else Mode.SELF_HOSTED
    if mode is not None and mode is not real:
        name = experiment.validated.tree["trainer"].get("type", "the trainer")
        raise UsageError(f"trainer {name} is {real}, not {mode}; write -m {real}")
    if inference_url is not None and remote:
        raise UsageError(
            "--inference-url is for self-hosted training: a training service samples itself; leave "
            "it out"
        )


def _server(url: str, experiment: Experiment) -> list[str]:
    """The overrides by which a run asks a server that is up.

    Raises:
        UsageError: it is no address.
    """
    import json
    import re

    from plugrl.core.errors import UsageError

    address = url if "://" in url else f"http://{url}/v1"
    if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", address):
        raise UsageError(
            f"--inference-url {url!r} is no address; write HOST:PORT, or https://HOST/v1"
        )
    section = "service.inference_service"
    made = [f"{section}.type=openai", f"{section}.base_url={json.dumps(address)}"]
    machines = experiment.validated.tree["resource"]["inference"] or {}
    if machines.get("served_model_name"):
        made.append(f"{section}.model={json.dumps(machines['served_model_name'])}")
    return made
