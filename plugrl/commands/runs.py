"""``plugrl runs``: what was trained here, and how it ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from plugrl.commands._group import examples, new_app
from plugrl.commands._output import emit_json, emit_table, note
from plugrl.commands._run_arguments import RUN_HELP, AsJson, Run, RunsFolder

EXAMPLES = """
plugrl runs list
plugrl runs show latest
plugrl runs compare 20260101 20260102
tensorboard --logdir $(plugrl runs path latest)
"""
LIST_EXAMPLES = """
plugrl runs list
plugrl runs list --state failed
plugrl runs list --runs-folder /data/runs --json
"""
SHOW_EXAMPLES = """
plugrl runs show latest
plugrl runs show quickstart --json
plugrl runs show latest --timeline --last 20
plugrl runs show runs/quickstart/20260101-120000-ab12cd
"""
PATH_EXAMPLES = """
plugrl runs path latest
cat $(plugrl runs path latest)/metrics.jsonl
"""
COMPARE_EXAMPLES = """
plugrl runs compare 20260101-120000-ab12cd latest
plugrl runs compare baseline larger --json
"""

STATE_HELP = (
    "Show only runs that are running, done, failed, interrupted, terminated, killed or broken."
)

app = new_app("List and show runs.", EXAMPLES)


@app.command("list", epilog=examples(LIST_EXAMPLES))
def list_runs(
    runs_folder: RunsFolder = "runs",
    state: Annotated[str | None, typer.Option(help=STATE_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest last; a broken folder is listed as broken, with the reason."""
    from pathlib import Path

    from plugrl.core.errors import UsageError
    from plugrl.core.run.folder import find_all
    from plugrl.core.run.records.records import STATES
    from plugrl.core.wording import did_you_mean

    if state is not None and state not in STATES:
        raise UsageError(
            f"there is no state {state!r}{did_you_mean(state, STATES, 1) or ';'}"
            f" states: {', '.join(STATES)}"
        )
    root = Path(runs_folder)
    if not root.is_dir() and runs_folder != "runs":
        raise UsageError(f"there is no runs folder {runs_folder}; check --runs-folder")
    rows = [run.to_json() for run in find_all(root) if state in (None, run.state)]
    which = "no runs" if state is None else f"no runs that are {state}"
    swept = ("sweep",) if any(row["sweep"] for row in rows) else ()
    columns = ("experiment", "id", "state", "step", "started", *swept, "error")
    emit_table(rows, columns, as_json=as_json, empty=f"{which} in {runs_folder}")


@app.command("show", epilog=examples(SHOW_EXAMPLES))
def show(
    run: Run,
    runs_folder: RunsFolder = "runs",
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show who was busy when, and what overlapped.")
    ] = False,
    last: Annotated[
        int | None, typer.Option(min=1, help="Only the last steps of the timeline.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: its state, checkpoints and last metrics, or its timeline."""
    if timeline:
        from pathlib import Path

        from plugrl.commands._timeline import show_timeline
        from plugrl.core.run.folder import find

        show_timeline(find(run, Path(runs_folder)), last=last, as_json=as_json)
        return
    if last is not None:
        from plugrl.core.errors import UsageError

        raise UsageError("--last is of the timeline: add --timeline")
    facts = _facts(run, runs_folder)
    if as_json:
        emit_json(facts)
        return
    metrics = facts.pop("metrics")
    # Seconds since 1970 are for programs; the rows above have the times of the run.
    metrics.pop("time/unix", None)
    facts["checkpoints"] = ", ".join(facts["checkpoints"])
    rows = [{"name": name, "value": value} for name, value in {**facts, **metrics}.items()]
    emit_table(rows, ("name", "value"))


@app.command("path", epilog=examples(PATH_EXAMPLES))
def path(run: Run, runs_folder: RunsFolder = "runs", as_json: AsJson = False) -> None:
    """Print the folder of one run."""
    from pathlib import Path

    from plugrl.core.run.folder import find

    found = find(run, Path(runs_folder))
    if as_json:
        emit_json({"path": str(found)})
    else:
        print(found)


@app.command("compare", epilog=examples(COMPARE_EXAMPLES))
def compare(
    runs: Annotated[list[str], typer.Argument(help=RUN_HELP, metavar="RUN RUN...")],
    runs_folder: RunsFolder = "runs",
    as_json: AsJson = False,
) -> None:
    """Compare runs: state, headline and last metrics, and what differs in their configurations."""
    from pathlib import Path

    from plugrl.core.errors import UsageError
    from plugrl.core.run.folder import find
    from plugrl.core.run.report.comparison import compare_runs

    folders = list(dict.fromkeys(find(run, Path(runs_folder)) for run in runs))
    if len(folders) < 2:
        raise UsageError(f"{' and '.join(runs)} are one run; name another one to compare it with")
    found = compare_runs(folders)
    if as_json:
        emit_json(found)
        return
    names = [f"{run['experiment']}/{run['id']}" for run in found["runs"]]
    for title, column in (("facts", "name"), ("metrics", "metric"), ("configuration", "key")):
        rows = [
            {column: name, **dict(zip(names, values, strict=True))}
            for name, values in found[title].items()
        ]
        if rows:
            emit_table(rows, (column, *names))
            print()
    if not found["configuration"]:
        note("their configurations are equal")


def _facts(reference: str, runs_folder: str) -> dict[str, Any]:
    from pathlib import Path

    from plugrl.core.errors import ConfigError
    from plugrl.core.run import folder
    from plugrl.core.run.checkpoints.checkpoint import candidates
    from plugrl.core.run.checkpoints.folder import checkpoint_folder
    from plugrl.core.run.records.places import read_places
    from plugrl.core.run.records.records import METRICS_FILE, read_jsonl

    found = folder.find(reference, Path(runs_folder))
    facts = folder.summarize(found).to_json()
    try:
        kept = checkpoint_folder(found)
        facts["checkpoint_path"] = str(kept.resolve())
        facts["checkpoints"] = [path.name for path in candidates(kept)]
        records = read_jsonl(found / METRICS_FILE)
    except (OSError, ConfigError) as error:
        facts["checkpoints"], records = [], []
        lost = f"{found} cannot be read: {getattr(error, 'strerror', error)}"
        facts["error"] = facts["error"] or (lost if isinstance(error, OSError) else str(error))
    facts |= read_places(found)
    facts["metrics"] = records[-1] if records else {}
    return facts
