"""``plugrl bench``: run a benchmark of the source checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plugrl.commands._run_arguments import AsJson
from plugrl.core.sandbox.inside.syntax import parse_python

EXAMPLES = """
plugrl bench --list
plugrl bench grpo_cpu --no-peer
plugrl bench grpo_cpu --make-peer ~/trl --json
plugrl bench grpo_cpu --peer-python ~/trl/bin/python --rounds 5
"""

#: Arguments that are not plugrl's own go to the benchmark.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def command(
    ctx: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME] [ARGUMENTS]...", help="Which benchmark.")
    ] = None,
    as_json: AsJson = False,
    peer_python: Annotated[
        str | None,
        typer.Option(
            "--peer-python", metavar="PATH", help="Python of the environment of the peer."
        ),
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the benchmarks.")] = False,
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="FOLDER", help="Folder that holds the benchmarks."),
    ] = None,
) -> None:
    """Run a benchmark and print its numbers beside those of its peer.

    Further arguments go to the benchmark, which ends with its own exit code;
    plugrl bench NAME -- --help shows them. The benchmarks are part of the source checkout.
    """
    import subprocess
    import sys

    from plugrl.commands._output import emit_table
    from plugrl.core.errors import UsageError
    from plugrl.core.wording import did_you_mean

    scripts = _scripts(_folder(folder))
    if listing or name is None:
        rows = [{"name": n, "about": _about(p), "path": str(p)} for n, p in scripts.items()]
        emit_table(rows, ("name", "about"), as_json=as_json)
        return
    if name not in scripts:
        raise UsageError(
            f"there is no benchmark {name!r}{did_you_mean(name, scripts) or ';'} "
            f"benchmarks: {', '.join(scripts)}"
        )
    words = [*(["--json"] if as_json else []), *ctx.args]
    words += ["--peer-python", peer_python] if peer_python is not None else []
    # A process of its own: a benchmark sets threads before torch starts.
    code = subprocess.run([sys.executable, str(scripts[name]), *words]).returncode
    raise typer.Exit(code if code >= 0 else 128 - code)


def _folder(given: str | None) -> Path:
    """The folder of the benchmarks: the given one, the checkout's, or ``./benchmarks``."""
    from plugrl.core.errors import UsageError

    places = [Path(given)] if given is not None else _places()
    for place in places:
        if _scripts(place):
            return place
    if given is not None:
        raise UsageError(f"--folder {given}: holds no benchmarks (Python files)")
    raise UsageError(
        "the benchmarks are not installed with the package; run this in the source checkout of "
        "plugrl, or give its folder benchmarks with --folder"
    )


def _places() -> list[Path]:
    """Where a checkout keeps them, when plugrl is installed from it or it is entered."""
    root = Path(__file__).resolve().parents[2]
    return [place / "benchmarks" for place in (root, Path.cwd()) if _is_checkout(place)]


def _is_checkout(folder: Path) -> bool:
    return (folder / "plugrl" / "cli.py").is_file()


def _scripts(folder: Path) -> dict[str, Path]:
    found = sorted(folder.glob("*.py")) if folder.is_dir() else []
    return {path.stem: path for path in found if not path.stem.startswith("_")}


def _about(path: Path) -> str:
    """The first line of the docstring."""
    import ast

    try:
        text = ast.get_docstring(parse_python(path.read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return f"cannot be read: {type(error).__name__}"
    return text.partition("\n")[0].rstrip(".")
