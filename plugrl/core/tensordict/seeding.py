"""Generators that depend on names, so that nothing else that is drawn changes them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def seed_of(*names: Any) -> int:
    """A number of 63 bits that depends on ``names`` alone, in every process alike."""
    digest = hashlib.sha256("/".join(map(str, names)).encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_of(*names: Any) -> np.random.Generator:
    """A generator whose draws depend on ``names`` alone."""
    return np.random.default_rng(seed_of(*names))
