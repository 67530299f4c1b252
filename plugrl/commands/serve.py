"""``plugrl serve``: the models of a run or a folder behind OpenAI's interface."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from plugrl.commands._run_arguments import AsJson, Checkpoint, RunsFolder, Target

if TYPE_CHECKING:
    from plugrl.core.text.endpoint.serving import Serving

EXAMPLES = """
plugrl serve latest
plugrl serve exported/policy --port 8000 --tool-parser hermes
plugrl serve latest --checkpoint best --record answers.jsonl
"""


def command(
    target: Target,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
    tool_parser: Annotated[
        str,
        typer.Option(
            "--tool-parser", metavar="PARSER", help="Reads the calls, if a request has tools."
        ),
    ] = "hermes",
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            "--reasoning-parser", metavar="PARSER", help="Reads the reasoning of replies."
        ),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option("--record", metavar="FILE", help="Append every answer as a JSON line."),
    ] = None,
    checkpoint: Checkpoint = "newest",
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Serve models until Ctrl-C, to clients that send the token.

    The token is that of the variable PLUGRL_SERVE_TOKEN; without it one is made and printed.
    """
    import sys
    import threading

    from plugrl.commands._output import check_writable
    from plugrl.core.errors import PluginError
    from plugrl.core.loaded_run import open_checkpoint
    from plugrl.core.run.process.signals import raise_on_sigterm
    from plugrl.core.text.agents.parsing import make_parser
    from plugrl.core.text.endpoint.server import MISSING, is_installed
    from plugrl.core.text.endpoint.serving import serving, token_of_environment

    if not is_installed():
        raise PluginError(MISSING)
    token = token_of_environment()
    calls = [make_parser({"type": tool_parser})]
    reasoning = [make_parser({"type": reasoning_parser})] if reasoning_parser else []
    with contextlib.ExitStack() as stack:
        file = None
        if record is not None:
            check_writable(record)
            file = stack.enter_context(open(record, "a", encoding="utf-8"))
        stack.enter_context(raise_on_sigterm("terminated"))
        saved = stack.enter_context(
            open_checkpoint(target, runs_folder=runs_folder, checkpoint=checkpoint)
        )
        served = stack.enter_context(
            serving(
                saved, host, port, token=token, parsers=reasoning, call_parsers=calls, record=file
            )
        )
        _announce(served, saved.origin, made=token is None, as_json=as_json)
        sys.stdout.flush()
        threading.Event().wait()


def _announce(served: Serving, origin: str, *, made: bool, as_json: bool) -> None:
    """Say where the models are, and the token if it was made here."""
    from plugrl.commands._output import emit_json

    if as_json:
        key = {"api_key": served.api_key} if made else {}
        emit_json({"base_url": served.base_url, **key, "models": served.models})
        return
    print(f"serving {', '.join(served.models)} of {origin} until Ctrl-C")
    print(f"export OPENAI_BASE_URL={served.base_url}")
    print(f"export OPENAI_API_KEY={served.api_key if made else '$PLUGRL_SERVE_TOKEN'}")
