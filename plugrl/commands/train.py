"""``plugrl train``: from a configuration to a trained run."""

from __future__ import annotations

from typing import Annotated

import typer

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
        bool, typer.Option("--dry-run", help="Check everything and print the plan; train nothing.")
    ] = False,
    config_path: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER", help="Further folder in which `defaults` are looked up."),
    ] = None,
) -> None:
    """Train as a configuration says, in a new run folder."""
    from plugrl.commands._output import emit_runs, show_progress
    from plugrl.core.experiment import prepare, start

    words, paths = overrides or [], config_path or []
    if dry_run:
        from plugrl.commands.validate import report

        report(prepare(config, words, config_path=paths), as_json=False)
        return
    show_progress()
    experiment = prepare(config, words, config_path=paths)
    experiment.warn_unchecked()
    if seeds == 1:
        emit_runs([start(experiment)])
        return
    first = int(experiment.validated.tree["seed"])
    numbered = ([*words, f"seed={seed}"] for seed in range(first, first + seeds))
    emit_runs([start(prepare(config, given, config_path=paths)) for given in numbered])
