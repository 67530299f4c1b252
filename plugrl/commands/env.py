"""``plugrl env``: the environment, in a form that can be pasted into a report."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from plugrl.commands._output import emit_json

EXAMPLES = """
plugrl env
plugrl env --json
"""
PACKAGES = (
    "plugrl",
    "torch",
    "tensordict",
    "torchrl",
    "transformers",
    "omegaconf",
    "pluggy",
    "typer",
    "rich",
    "safetensors",
    "pyarrow",
    "numpy",
)


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Describe Python, the machine, the packages and the plugins, for a bug report."""
    facts = collect()
    if as_json:
        emit_json(facts)
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, item in value.items():
                print(f"  {name}: {item}")
        else:
            print(f"{key}: {value}")


def collect() -> dict[str, Any]:
    """What ``plugrl env`` prints; a torch that cannot be imported is told, not raised."""
    import os
    import platform
    import sys

    from plugrl.core.plugins.packages.installed import PluginSelection, normalize, scan

    selection = PluginSelection.from_environment()
    plugins: dict[str, str] = {}
    for entry in scan():
        if normalize(entry.distribution) != "plugrl":
            refusal = selection.refusal(entry.distribution, entry.name)
            state = f"{entry.version} ({refusal})" if refusal else entry.version
            plugins.setdefault(entry.distribution, state)
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("PLUGRL_PLUGINS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))
    }
    return {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "devices": _devices(),
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": plugins or "none",
        "variables": variables or "none",
    }


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    try:
        import torch
    except Exception as error:
        return f"torch cannot be imported: {type(error).__name__}: {error}"
    if not torch.cuda.is_available():
        return "cpu"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"cpu, {', '.join(names)} (CUDA {torch.version.cuda})"
