"""Start-up time of the command line, as ratios to ``python -c "import typer"``.

``python benchmarks/startup.py`` prints one JSON object: the median of ten wall-clock times of
each command in milliseconds, taken in turn so that a busy machine slows all of them alike,
their ratios, and what 200 installed plugins add to ``plugins list``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BASE = ["-c", "import typer"]
COMMANDS = {
    "--help": ["-m", "plugrl", "--help"],
    "plugins list": ["-m", "plugrl", "plugins", "list"],
}


def fake_distributions(folder: Path, count: int) -> None:
    """Write metadata of ``count`` installed plugins, each with a trainer and a hook module."""
    for index in range(count):
        info = folder / f"fake_plugin_{index:03}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: fake-plugin-{index:03}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[plugrl.trainers]\nfake_{index:03} = fake_plugin_{index:03}.trainer:Trainer\n"
            f"[plugrl]\nfake_{index:03} = fake_plugin_{index:03}.hooks\n"
        )


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Wall-clock seconds of one run of Python."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - started


def measure(repeats: int = 10) -> dict[str, object]:
    """The medians in milliseconds, the ratios and the cost of 200 plugins."""
    with tempfile.TemporaryDirectory(prefix="plugrl-startup-") as folder:
        fake_distributions(Path(folder), 200)
        plain = dict(os.environ)
        path = os.pathsep.join(filter(None, [folder, plain.get("PYTHONPATH", "")]))
        many = plain | {"PYTHONPATH": path}
        runs = {"import typer": (BASE, plain)}
        runs |= {name: (arguments, plain) for name, arguments in COMMANDS.items()}
        runs["plugins list, 200 plugins"] = (COMMANDS["plugins list"], many)
        runs["--help, 200 plugins"] = (COMMANDS["--help"], many)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for arguments, environment in runs.values():  # warm the caches of files and bytecode
            seconds(arguments, environment)
        for _ in range(repeats):
            for name, (arguments, environment) in runs.items():
                times[name].append(seconds(arguments, environment))
    medians = {name: statistics.median(values) * 1000 for name, values in times.items()}
    return {
        "milliseconds": {name: round(value, 1) for name, value in medians.items()},
        "ratios": {name: round(medians[name] / medians["import typer"], 2) for name in COMMANDS},
        "added_by_200_plugins_ms": {
            name: round(medians[f"{name}, 200 plugins"] - medians[name], 1) for name in COMMANDS
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="it prints JSON in any case")
    print(json.dumps(measure(parser.parse_args().repeats), indent=2))
