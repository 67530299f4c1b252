"""The growing files of a run folder: metrics and samples."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugrl.core.run.folder import METRICS_FILE
from plugrl.core.run.records.metrics import JsonlFile


class RunRecords:
    """Writes ``metrics.jsonl`` and ``samples/*.jsonl``, and truncates them to a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._metrics = JsonlFile(folder / METRICS_FILE)
        self._folder = folder / "samples"
        self._samples: dict[str, JsonlFile] = {}

    def metrics(self, step: int, numbers: Mapping[str, float | int]) -> None:
        """Write one line of metrics; names below ``time/`` may differ between equal runs."""
        own = {"step": step, "time/unix": round(time.time(), 3)}
        self._metrics.append(own | dict(numbers) | own)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Write one record to ``samples/<name>.jsonl``."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "samples"
        if safe not in self._samples:
            self._folder.mkdir(exist_ok=True)
            self._samples[safe] = JsonlFile(self._folder / f"{safe}.jsonl")
        self._samples[safe].append(record)

    def sizes(self) -> dict[str, int]:
        """The current size of each file, for a checkpoint."""
        samples = {path.stem: path.stat().st_size for path in self._folder.glob("*.jsonl")}
        return {"": self._metrics.size(), **samples}

    def truncate(self, sizes: Mapping[str, int]) -> None:
        """Truncate each file to the size that :meth:`sizes` returned."""
        self._metrics.truncate(sizes.get("", 0))
        self.close()
        for path in self._folder.glob("*.jsonl"):
            JsonlFile(path).truncate(sizes.get(path.stem, 0))

    def sync(self) -> None:
        """Make all lines so far survive a power cut."""
        for file in (self._metrics, *self._samples.values()):
            file.sync()

    def close(self) -> None:
        """Close all files."""
        for file in (self._metrics, *self._samples.values()):
            file.close()
