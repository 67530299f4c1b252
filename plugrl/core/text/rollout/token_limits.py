"""What bounds the tokens of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from plugrl.core.text.inference.services import InferenceService


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What bounds the tokens of a model.

    Attributes:
        vocabulary: token ids are below it.
        context: a sequence has at most so many tokens.
    """

    vocabulary: int
    context: int

    @classmethod
    def of(cls, services: Mapping[str, InferenceService]) -> dict[str, Self]:
        """The limits of several models by name."""
        return {
            name: cls(service.vocabulary_size, service.max_sequence_length)
            for name, service in services.items()
        }
