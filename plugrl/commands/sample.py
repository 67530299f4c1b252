"""``plugrl sample``: answers of a run's or a folder's model to prompts."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._run_arguments import AsJson, Checkpoint, RunsFolder, Target

EXAMPLES = """
plugrl sample latest "12+34="
plugrl sample latest "12+34=" --samples 4 --temperature 1
plugrl sample exported/policy --file prompts.txt --json
"""


def command(
    target: Target,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT]...", help="What is asked.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Read prompts from a file, one a line."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers a prompt.")] = 1,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus: keep this probability mass.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 256,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the answers.")] = 0,
    model: Annotated[str, typer.Option(help="Name of the model, a key of models.")] = "policy",
    checkpoint: Checkpoint = "newest",
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Print the answers of a model to prompts, exactly as written where output is no terminal."""
    import sys

    from plugrl.commands._output import emit_json, read_lines
    from plugrl.core.errors import UsageError
    from plugrl.core.loaded_run import open_checkpoint, trainer_of
    from plugrl.core.text.inference.sampling import SamplingParams
    from plugrl.core.text.loaded_models import check_language_models, sample_answers
    from plugrl.core.wording import shown

    asked = [*(prompts or []), *(read_lines(file) if file else [])]
    if not asked:
        # Small networks are asked nothing, so that no prompt would help.
        if (trainer := trainer_of(target, runs_folder)) is not None:
            check_language_models(trainer, target)
        raise UsageError("no prompt is given; write one, or --file FILE")
    sampling = SamplingParams(temperature=temperature, top_p=top_p, max_new_tokens=max_tokens)
    with open_checkpoint(target, runs_folder=runs_folder, checkpoint=checkpoint) as saved:
        answers = sample_answers(saved, model, asked, sampling, samples=samples, seed=seed)
    if as_json:
        emit_json(answers)
        return
    for answer in answers:
        end = "" if answer["finish_reason"] == "stop" else f"  [{answer['finish_reason']}]"
        text = f"{answer['prompt']}{answer['answer']}{end}"
        print(shown(text) if sys.stdout.isatty() else text)
