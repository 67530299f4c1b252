"""The states of the global random generators, for checkpoints."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any


def rng_state() -> dict[str, Any]:
    """Collect the states of Python's, NumPy's and torch's global generators.

    Libraries that are not imported have no state worth saving, and are not imported for it.
    """
    state: dict[str, Any] = {"python": random.getstate()}
    if "numpy" in sys.modules:
        import numpy as np

        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        state["numpy"] = [name, keys, int(position), int(has_gauss), float(cached)]
    if "torch" in sys.modules:
        import torch

        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda._initialized:
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the states; those of CUDA only if the number of devices is the same."""
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy as np

        np.random.set_state(tuple(state["numpy"]))
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
            torch.cuda.set_rng_state_all(state["cuda"])
