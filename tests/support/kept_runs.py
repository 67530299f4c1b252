"""Keep a small run of every trainer, so that later versions show that they can read it.

    python tests/support/kept_runs.py

Trains each trainer with the plugrl that is installed and writes ``VERSION/TRAINER.tar.xz`` below
``tests/compatibility/runs``. Done once for each release; what lies there is never made again.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plugrl
from plugrl.core.plugins.registry import default_registry
from plugrl.testing import tiny

RUNS = Path(__file__).parents[1] / "compatibility" / "runs"
#: Stands in the files of a kept run for the folder in which it was made.
FOLDER = "/KEPT/RUN/FOLDER"
TEXTS = {".json", ".jsonl", ".yaml", ".txt"}
#: What is made anew, or says something of the machine alone.
LEFT_OUT = {"report.html", "lock", "timeline.jsonl", "environment.json"}
#: Sections that make a run small whose networks are large by default.
SMALLER: dict[str, Mapping[str, Any]] = {
    "sac": {"sac": {"critic_hidden": [8]}},
    "td3": {"td3": {"critic_hidden": [8]}},
}


def keep(name: str, target: Path) -> None:
    """Train ``name``, and keep the run as it was after its last step but one."""
    registry = default_registry()
    trainer = registry.load(registry.resolve("trainer", name))
    sections = tiny.merged(getattr(trainer, "conformance", {}), SMALLER.get(name, {}))
    with tempfile.TemporaryDirectory() as place:
        run = plugrl.train(tiny.config(name, Path(place), sections))
        checkpoints = sorted((run.folder / "checkpoints").iterdir())
        for each in checkpoints[: len(checkpoints) - 2] + checkpoints[len(checkpoints) - 1 :]:
            # A run without a state keeps its only checkpoint.
            if len(checkpoints) > 1:
                shutil.rmtree(each)
        for file in sorted(Path(place).rglob("*")):
            if file.name in LEFT_OUT:
                file.unlink()
            elif file.suffix in TEXTS:
                text = file.read_text("utf-8").replace(str(Path(place)), FOLDER)
                file.write_text(text, "utf-8")
        run.folder.rename(Path(place, "run"))
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for file in ("problems.jsonl", "run"):
                archive.add(Path(place, file), file, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Keep all."""
    folder = RUNS / plugrl.__version__
    folder.mkdir(parents=True)
    for record in default_registry().records("trainer"):
        # An analysis reads rollouts and trains nothing.
        if record.distribution == "plugrl" and record.name != "rollout_analysis":
            keep(record.name, folder / f"{record.name}.tar.xz")


if __name__ == "__main__":
    main()
