"""``plugrl jobs``: what ``plugrl launch`` has started on a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from plugrl.commands._group import examples, new_app
from plugrl.commands._run_arguments import AsJson

app = new_app(
    "List, follow and stop launched jobs.",
    """
    plugrl jobs list --on ray
    plugrl jobs logs quickstart-v2 --on ray --follow
    plugrl jobs stop quickstart-v2 --on ray --address http://head:8265
    """,
)
On = Annotated[
    str,
    typer.Option("--on", metavar="PLACE", help="ray, kubernetes, slurm, or a plugin's launcher."),
]
Address = Annotated[str | None, typer.Option(help="As of plugrl launch.")]
Name = Annotated[str, typer.Argument(help="The job, as plugrl launch printed it.")]


@app.command("list", epilog=examples("plugrl jobs list --on ray"))
def list_jobs(on: On, address: Address = None, as_json: AsJson = False) -> None:
    """List the jobs, the newest first."""
    from dataclasses import asdict

    from plugrl.commands._output import emit_table
    from plugrl.core.launch.launcher import find_launcher

    rows = [asdict(job) for job in find_launcher(on, address).jobs()]
    emit_table(rows, ["name", "state", "message"], as_json=as_json, empty="no jobs")


@app.command("status", epilog=examples("plugrl jobs status quickstart-v2 --on ray"))
def status(name: Name, on: On, address: Address = None, as_json: AsJson = False) -> None:
    """Say where a job stands."""
    from dataclasses import asdict

    from plugrl.commands._output import emit_json
    from plugrl.core.launch.launcher import find_launcher

    found = find_launcher(on, address).status(name)
    if as_json:
        emit_json(asdict(found))
        return
    print(f"{found.state}: {found.message}" if found.message else found.state)


@app.command("logs", epilog=examples("plugrl jobs logs quickstart-v2 --on ray --follow"))
def logs(
    name: Name,
    on: On,
    address: Address = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Until the job ends, whose end is the exit code.")
    ] = False,
) -> None:
    """Print what a job has printed."""
    from plugrl.commands.launch import follow as follow_job
    from plugrl.core.launch.launcher import find_launcher

    launcher = find_launcher(on, address)
    if follow:
        follow_job(launcher, name, on, address)
        return
    for piece in launcher.logs(name, follow=False):
        print(piece, end="", flush=True)


@app.command("stop", epilog=examples("plugrl jobs stop quickstart-v2 --on ray"))
def stop(name: Name, on: On, address: Address = None) -> None:
    """Stop a job; it saves a checkpoint first where the cluster lets it."""
    from plugrl.core.launch.launcher import find_launcher

    find_launcher(on, address).stop(name)
    print(f"asked {name} to stop")
