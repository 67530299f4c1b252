"""What trainers share whose losses suppose that the present policy took the steps."""

from __future__ import annotations

from dataclasses import dataclass

from plugrl.core.config.schemas.schema import described
from plugrl.core.errors import ConfigError
from plugrl.core.tensordict.sections import RlConfig


@dataclass
class OnPolicyRlConfig(RlConfig):
    """``rl`` with the defaults that suit one step of the optimizer for each batch."""

    num_epochs: int = described(1, "passes over each batch; only the first is with its own policy")
    minibatch_size: int | None = described(
        None, "steps of one optimizer step; null: the whole batch"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_value:
            raise ConfigError(
                "clip_value needs the clip range of ppo, which this trainer has not; leave it out"
            )
