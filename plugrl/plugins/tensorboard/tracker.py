"""``TensorBoardTracker``: metrics as TensorBoard scalars, samples as its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from plugrl.core.config.schemas.schema import described
from plugrl.core.config.sources.writer import dump_yaml
from plugrl.core.errors import PluginError
from plugrl.core.run.tracking.tables import SampleTables, markdown
from plugrl.core.run.tracking.tracker import TrackedRun, Tracker
from plugrl.plugins.tensorboard.events import cut_events


class TensorBoardTracker(Tracker):
    """Writes event files that ``tensorboard --logdir runs`` shows.

    Raises:
        PluginError: the package ``tensorboard`` cannot be imported.
    """

    packages: ClassVar[tuple[str, ...]] = ("tensorboard",)
    requirement: ClassVar[str] = "plugrl[tensorboard]"

    @dataclass
    class Config:
        """Where the event files go and how often they are flushed."""

        log_dir: str | None = described(None, "folder; null: `tensorboard` in the run folder")
        flush_seconds: int = described(30, "seconds between two flushes", at_least=1, at_most=10**8)
        samples: bool = described(True, "whether samples are written, as tables")
        config: bool = described(True, "whether the configuration is written, as a text")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        try:
            from torch.utils.tensorboard import SummaryWriter
        except Exception as error:
            raise PluginError(
                f"the tracker tensorboard cannot import the package tensorboard ({error}): "
                'pip install "plugrl[tensorboard]"'
            ) from error
        place = self.config.log_dir
        self._folder = Path(place).absolute() if place else None
        self._class = SummaryWriter
        self._writer: Any = None
        self._tables = SampleTables()

    def start(self, run: TrackedRun) -> int | None:
        """Open an event file; of a resumed run, cut off what came after its checkpoint."""
        folder = self._folder / run.id if self._folder else run.folder / "tensorboard"
        held = cut_events(folder, run.step) if run.resumed else None
        # A TensorBoard that is open has read already what was cut off.
        self._writer = self._class(
            str(folder),
            purge_step=run.step + 1 if run.resumed else None,
            flush_secs=self.config.flush_seconds,
        )
        if self.config.config and (held is None or held < 0):
            text = "".join(f"    {line}\n" for line in dump_yaml(dict(run.config)).splitlines())
            self._writer.add_text("config", text, 0)
        return held

    def log(self, step: int, metrics: Mapping[str, float | int]) -> None:
        """Write one scalar for each metric, and the tables of the step's samples."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._write_samples(step)

    def sample(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep a record until its step is logged."""
        if self.config.samples:
            self._tables.add(name, record)

    def flush(self) -> None:
        """Write to disk what came so far."""
        self._writer.flush()

    def finish(self, outcome: str) -> None:
        """Close the event file."""
        self._write_samples(None)
        self._writer.close()

    def _write_samples(self, step: int | None) -> None:
        for table in self._tables.take(step):
            self._writer.add_text(table.name, markdown(table), table.step)
