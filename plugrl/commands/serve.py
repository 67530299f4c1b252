"""``plugrl serve``: the models of a run or a folder behind OpenAI's interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from plugrl.commands._saved import AsJson, Checkpoint, RunsFolder, Target

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
        str, typer.Option(metavar="PARSER", help="Reads the calls, if a request has tools.")
    ] = "hermes",
    reasoning_parser: Annotated[
        str | None, typer.Option(metavar="PARSER", help="Reads the reasoning of replies.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append every answer as a JSON line.")
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

    from plugrl.commands._output import check_writable, emit_json
    from plugrl.core.errors import PluginError
    from plugrl.core.saved import opened
    from plugrl.core.text.agents.parsing import make_parser
    from plugrl.core.text.endpoint.server import MISSING, installed
    from plugrl.core.text.endpoint.serving import serving, token_of_environment

    if not installed():
        raise PluginError(MISSING)
    token = token_of_environment()
    calls = [make_parser({"type": tool_parser})]
    reasoning = [make_parser({"type": reasoning_parser})] if reasoning_parser else []
    with contextlib.ExitStack() as stack:
        file = None
        if record is not None:
            check_writable(record)
            file = stack.enter_context(open(record, "a", encoding="utf-8"))
        stack.enter_context(_terminable())
        saved = stack.enter_context(opened(target, runs_folder=runs_folder, checkpoint=checkpoint))
        served = stack.enter_context(
            serving(
                saved, host, port, token=token, parsers=reasoning, call_parsers=calls, record=file
            )
        )
        if as_json:
            made = {} if token else {"api_key": served.api_key}
            emit_json({"base_url": served.base_url, **made, "models": served.models})
        else:
            print(f"serving {', '.join(served.models)} of {saved.origin} until Ctrl-C")
            print(f"export OPENAI_BASE_URL={served.base_url}")
            print(f"export OPENAI_API_KEY={'$PLUGRL_SERVE_TOKEN' if token else served.api_key}")
        sys.stdout.flush()
        threading.Event().wait()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """End by an exception at SIGTERM, so that everything is closed."""
    import signal
    import threading

    from plugrl.core.errors import RunTerminated

    def end(*_: object) -> None:
        raise RunTerminated("terminated")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
