"""``plugrl train``: from a configuration to a trained run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from plugrl.commands._run_arguments import Quiet, Verbose

if TYPE_CHECKING:
    from plugrl.core.experiment import Experiment

EXAMPLES = """
plugrl train quickstart
plugrl train experiment.yaml seed=1 trainer.total_train_steps=200
plugrl train experiment.yaml --seeds 5
plugrl train experiment.yaml --dry-run
"""


def command(
    config: Annotated[str, typer.Argument(help="A YAML file or the name of a recipe.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Values to set.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs with as many seeds, counted up from the first.")
    ] = 1,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all, print the plan, try if a step fits."),
    ] = False,
    config_path: Annotated[
        list[str] | None,
        typer.Option(
            "--config-path",
            metavar="FOLDER",
            help="Further folder in which `defaults` are looked up.",
        ),
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train as a configuration says, in a new run folder."""
    from plugrl.commands._output import set_verbosity
    from plugrl.commands._results import emit_results
    from plugrl.core.experiment import prepare, start

    words, paths = overrides or [], config_path or []
    if dry_run:
        from plugrl.commands.validate import report

        experiment = prepare(config, words, config_path=paths, setup=True)
        report(experiment, as_json=False)
        _try(experiment)
        return
    verbosity = set_verbosity(verbose=verbose, quiet=quiet)
    experiment = prepare(config, words, config_path=paths, setup=True)
    experiment.warn_unchecked()
    if seeds == 1:
        emit_results([start(experiment)], verbosity)
        return
    first = int(experiment.validated.tree["seed"])
    numbered = ([*words, f"seed={seed}"] for seed in range(first, first + seeds))
    trained = [start(prepare(config, given, config_path=paths, setup=True)) for given in numbered]
    emit_results(trained, verbosity)


def _try(experiment: Experiment) -> None:
    """Print how much memory the largest step takes."""
    from plugrl.core.null_run import dry_run

    tried = dry_run(experiment)
    if tried is None:
        print("memory: this trainer has no step to try")
        return
    for key in tried:
        if not key.endswith("peak_bytes"):
            continue
        prefix = key.removesuffix("peak_bytes")
        peak, total = (tried[f"{prefix}{name}"] / 2**30 for name in ("peak_bytes", "total_bytes"))
        rows, tokens = tried.get(f"{prefix}rows"), tried.get(f"{prefix}tokens")
        of = f" with {rows:.0f} sequences of {tokens:.0f} tokens" if rows and tokens else ""
        label = f"{prefix[:-1]}: memory" if prefix else "memory"
        print(f"{label}: at most {peak:.2f} of {total:.2f} GiB{of}: fits")
