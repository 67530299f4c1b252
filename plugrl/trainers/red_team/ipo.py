"""``ipo``: as ``dpo``, towards a margin between the two probes instead of any.

The loss is that of :mod:`plugrl.trainers.losses.ipo` (arXiv 2310.12036, equation 17), with the
baseline as the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from plugrl.trainers.losses.ipo import IpoConfig, ipo
from plugrl.trainers.red_team.preference import PairConfig, PreferenceAlgorithm


@dataclass
class HarnessIpoConfig(PairConfig, IpoConfig):
    """Options of the algorithm ``ipo``."""


class HarnessIpo(PreferenceAlgorithm):
    """Identity preference optimization on pairs of siblings."""

    Config: ClassVar[type] = HarnessIpoConfig
    loss: ClassVar[Callable[..., Any]] = staticmethod(ipo)
    name: ClassVar[str] = "ipo"
