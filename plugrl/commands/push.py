"""``plugrl push``: a run's model, with its records and a card, to the hub."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import Checkpoint, Run, RunsFolder

EXAMPLES = """
plugrl push latest me/gsm8k-0.5b --dry-run
plugrl push latest me/gsm8k-0.5b --checkpoint best
plugrl push latest me/gsm8k-0.5b --public --revision seed-1
"""


def command(
    run: Run,
    repo: Annotated[str, typer.Argument(help="On the hub: owner/name.", metavar="REPO")],
    model: Annotated[str, typer.Option(help="Name of the model, a key of models.")] = "policy",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The LoRA adapter alone, as peft reads it.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="A new repository is public; else it is private.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option(help="Branch that is written, made if it is not there.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the files, and write nothing to the hub.")
    ] = False,
    checkpoint: Checkpoint = "newest",
    runs_folder: RunsFolder = "runs",
) -> None:
    """Publish a trained model with configuration, curves, versions and a model card.

    The weights are those of plugrl export. Credentials are left out, as in all that a run shares.
    Needs a token that may write: HF_TOKEN, or that of hf auth login.
    """
    import tempfile
    from pathlib import Path

    from plugrl.core.hub.hub import find_hub
    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.text.publication import write_publication

    hub = find_hub()
    hub.check_push(repo, token=not dry_run)
    with (
        tempfile.TemporaryDirectory(prefix="plugrl-push-") as temporary,
        open_checkpoint(run, runs_folder=runs_folder, checkpoint=checkpoint) as saved,
    ):
        folder = Path(temporary) / "model"
        files = write_publication(saved, model, repo, folder, adapter=adapter)
        if dry_run:
            for file in files:
                print(f"{file.stat().st_size:>14,} {file.relative_to(folder)}")
            return
        message = f"{model} of {saved.origin}"
        address = hub.push(folder, repo, private=not public, revision=revision, message=message)
        print(f"pushed {model} of {saved.origin} to {address}")
