"""An engine of a user's file that loads its model when it is told to, or fails to."""

import time
from dataclasses import dataclass
from pathlib import Path

from plugrl.core.errors import ConfigError
from plugrl.plugins.transformers.inference_service import TransformersInferenceService


class LateEngine(TransformersInferenceService):
    @dataclass
    class Config(TransformersInferenceService.Config):
        told: str = ""

    def load(self, spec):
        while not (told := Path(self.config.told)).exists():
            time.sleep(0.01)
        if fault := told.read_text(encoding="utf-8"):
            raise ConfigError(fault)
        super().load(spec)
