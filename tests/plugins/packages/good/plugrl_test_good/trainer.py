from dataclasses import dataclass

from plugrl import Trainer, TrainingResult, register_trainer


@dataclass
class GoodConfig:
    steps: int = 2


# The entry point names this class too: both are one component.
@register_trainer("good")
class GoodTrainer(Trainer):
    """Counts its steps."""

    Config = GoodConfig

    def train(self):
        for step in range(1, self.config.steps + 1):
            self.run.end_step(step, {"value": float(step)})
        return TrainingResult(steps=self.config.steps)
