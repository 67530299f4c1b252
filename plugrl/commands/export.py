"""``plugrl export``: a run's model as a folder that other software loads."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import Checkpoint, Run, RunsFolder

EXAMPLES = """
plugrl export latest exported/policy
plugrl export latest exported/policy --checkpoint best
plugrl export latest adapter --adapter
"""


def command(
    run: Run,
    folder: Annotated[str, typer.Argument(help="A new or empty folder.", metavar="FOLDER")],
    model: Annotated[str, typer.Option(help="Name of the model, a key of models.")] = "policy",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="The LoRA adapter alone, as peft reads it.")
    ] = False,
    checkpoint: Checkpoint = "newest",
    runs_folder: RunsFolder = "runs",
) -> None:
    """Write a trained model and its tokenizer as transformers' from_pretrained reads them.

    A LoRA adapter is merged into the weights unless --adapter asks for it alone. A model of
    trainer reward_model becomes a sequence classifier.
    """
    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.text.loaded_models import export

    with open_checkpoint(run, runs_folder=runs_folder, checkpoint=checkpoint) as saved:
        print(export(saved, model, folder, adapter=adapter))
