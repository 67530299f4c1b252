"""``TensorBoardTracker``: metrics as TensorBoard scalars, samples as its texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.config.schema import described
from plugrl.core.errors import PluginError
from plugrl.core.run.metrics import json_ready
from plugrl.core.run.trackers import Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from plugrl.core.run.run import Run


class TensorBoardTracker(Tracker):
    """Writes event files that ``tensorboard --logdir runs`` shows.

    Raises:
        PluginError: the package ``tensorboard`` is not installed.
    """

    @dataclass
    class Config:
        """Where the event files go and how often they are flushed."""

        log_dir: str | None = described(None, "folder; null: `tensorboard` in the run folder")
        flush_seconds: int = described(30, "seconds between two flushes")
        samples: bool = described(True, "whether samples are written as texts")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        try:
            import tensorboard  # noqa: F401 - torch's own message does not name the extra
        except ImportError as error:
            raise PluginError(
                "the tracker tensorboard needs the package tensorboard, which is not installed: "
                'pip install "plugrl[tensorboard]"'
            ) from error
        self._writer: SummaryWriter | None = None

    def start(self, run: Run) -> None:
        """Open the event file; a resumed run hides what came after its checkpoint."""
        from torch.utils.tensorboard import SummaryWriter

        folder = self.config.log_dir
        self._writer = SummaryWriter(
            str(Path(folder) / run.id) if folder else str(run.folder / "tensorboard"),
            purge_step=run.step + 1 if run.step else None,
            flush_secs=self.config.flush_seconds,
        )

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Write one scalar for each metric."""
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Write the record as indented JSON."""
        if self._writer is not None and self.config.samples:
            text = json.dumps(json_ready(record), indent=2, ensure_ascii=False)
            indented = "\n".join(f"    {line}" for line in text.splitlines())
            self._writer.add_text(name, indented, int(record.get("step", 0)))

    def finish(self, outcome: str) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
