"""Imports one plugin in a process of its own, to find its cost and its faults.

``python -m plugrl.commands._probe RESULT.json`` reads one entry point as JSON from
stdin and writes its findings; :func:`probe` starts that process and survives whatever the plugin
does in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plugrl.core.plugins.packages.installed import (
    COMMAND_GROUP,
    HOOK_GROUP,
    RECIPE_GROUP,
    EntryPoint,
)

#: Packages that are slow to import. A hook or command module should leave them for later.
HEAVY = (
    "torch",
    "tensordict",
    "torchrl",
    "transformers",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "tensorflow",
    "jax",
    "vllm",
    "ray",
    "wandb",
    "omegaconf",
)
#: Of these, the ones that take seconds.
VERY_HEAVY = frozenset(HEAVY) - {"numpy", "omegaconf", "pyarrow"}

#: Environment variables that what plugrl depends on sets when it is imported. A plugin that imports
#: it has no part in that.
OF_DEPENDENCIES = frozenset(
    {
        "LAZY_LEGACY_OP",  # torchrl
        "PYGAME_HIDE_SUPPORT_PROMPT",  # gymnasium, pettingzoo, ale_py
        "RAY_CLIENT_MODE",  # ray, which torchrl imports where it is installed
        "SDL_AUDIODRIVER",  # pettingzoo
        "TORCHINDUCTOR_CACHE_DIR",  # tensordict, peft
    }
)


@dataclass(slots=True)
class Finding:
    """The result of one import: its time, the heavy modules that it imports, and its faults."""

    seconds: float | None = None
    heavy: list[str] = field(default_factory=list)
    error: str | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``failed``, ``warning`` or ``ok``."""
        return "failed" if self.error else "warning" if self.warnings else "ok"


def probe(entry: EntryPoint, *, timeout: float = 60.0) -> Finding:
    """Import ``entry`` in a new process and report; never raises for what the plugin does."""
    with tempfile.TemporaryDirectory(prefix="plugrl-probe-") as folder:
        result = Path(folder, "result.json")
        try:
            process = subprocess.run(
                [sys.executable, "-m", "plugrl.commands._probe", str(result)],
                input=json.dumps(asdict(entry)),
                text=True,
                encoding="utf-8",
                errors="replace",
                capture_output=True,
                timeout=timeout,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Finding(seconds=timeout, error=f"its import took longer than {timeout:g} s")
        if not result.is_file():
            lines = process.stderr.strip().splitlines()
            reason = f": {lines[-1]}" if lines else ""
            return Finding(
                error=f"its import ended the process with code {process.returncode}{reason}"
            )
        return Finding(**json.loads(result.read_text(encoding="utf-8")))


def examine(entry: EntryPoint) -> Finding:
    """Import ``entry`` in this process and check it by the rules of its group."""
    from plugrl.core.plugins.loading import describe_error, import_target

    finding = Finding()
    before = set(sys.modules)
    environment = dict(os.environ)
    started = time.perf_counter()
    if entry.group == RECIPE_GROUP:
        finding.error = _recipe_fault(entry)
        return finding
    try:
        value = import_target(entry.target)
    except BaseException as error:
        finding.seconds = time.perf_counter() - started
        finding.error = f"import: {describe_error(error, entry.target)}"
        return finding
    finding.seconds = time.perf_counter() - started
    new = set(sys.modules) - before
    finding.heavy = [name for name in HEAVY if name in new]
    changed = {name for name, _ in environment.items() ^ dict(os.environ).items()}
    if own := sorted(changed - OF_DEPENDENCIES):
        finding.warnings.append(f"its import changes environment variables: {', '.join(own)}")
    try:
        _check(entry, value, finding)
    except BaseException as error:
        finding.error = str(error) or describe_error(error, entry.target)
    return finding


def _check(entry: EntryPoint, value: Any, finding: Finding) -> None:
    if entry.group in (HOOK_GROUP, COMMAND_GROUP):
        slow = [name for name in finding.heavy if name in VERY_HEAVY]
        if slow:
            finding.warnings.append(
                f"it imports {', '.join(slow)} at import time, in every run; "
                "import it inside the functions that need it"
            )
    if entry.group == HOOK_GROUP:
        _check_hooks(entry, value)
    elif entry.group == COMMAND_GROUP:
        import typer

        if not isinstance(value, typer.Typer):
            raise TypeError(f"{entry.target} is a {type(value).__name__}, not a typer.Typer")
    else:
        from plugrl.core.plugins.kinds import former_group_warning
        from plugrl.core.plugins.loading import adapt_function, check_component
        from plugrl.core.plugins.resolution import record_of

        former = former_group_warning(entry.group)
        if former is not None:
            finding.warnings.append(former)
        record = record_of(entry)
        check_component(record, adapt_function(record, value))


def _recipe_fault(entry: EntryPoint) -> str | None:
    """Why the file of a recipe cannot be read."""
    from plugrl.core.config.sources.origins import Fault
    from plugrl.core.config.sources.reader import read_file
    from plugrl.core.errors import PlugrlError
    from plugrl.core.plugins.packages.recipes import recipe_of

    faults: list[Fault] = []
    try:
        read_file(recipe_of(entry).file(), faults)
    except PlugrlError as error:
        return str(error)
    return str(faults[0]) if faults else None


def _check_hooks(entry: EntryPoint, value: Any) -> None:
    from plugrl.core.plugins.discovery import check_hook_plugin, new_manager

    plugin = value() if isinstance(value, type) else value
    check_hook_plugin(plugin)
    new_manager().register(plugin, entry.name)


def _main() -> None:
    entry = EntryPoint(**json.loads(sys.stdin.read()))
    finding = examine(entry)
    # Leave at once: threads or exit handlers of the plugin must not hold the answer back.
    Path(sys.argv[1]).write_text(json.dumps(asdict(finding)), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    _main()
