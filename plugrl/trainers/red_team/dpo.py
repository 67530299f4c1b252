"""``dpo``: the tester learns the better of two probes that followed one dialogue.

The loss is that of :mod:`plugrl.trainers.self_hosted_dpo` (arXiv 2305.18290, equation 7), with the
baseline as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.trainers.red_team.preference import PairConfig, PreferenceAlgorithm
from plugrl.trainers.self_hosted_dpo import DpoConfig, dpo


@dataclass
class HarnessDpoConfig(PairConfig, DpoConfig):
    """Options of the algorithm ``dpo``."""


class HarnessDpo(PreferenceAlgorithm):
    """Direct preference optimization on pairs of siblings."""

    Config: ClassVar[type] = HarnessDpoConfig
    loss: ClassVar[Callable[..., Any]] = staticmethod(dpo)
    name: ClassVar[str] = "dpo"
