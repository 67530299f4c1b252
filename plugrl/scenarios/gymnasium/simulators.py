"""How the state of simulators that are no Python code is taken and put back."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from plugrl.core.tensordict.environment.state import ENGINES, Engine


def register() -> None:
    """Make the state of MuJoCo and of the Arcade Learning Environment known."""
    ENGINES["mujoco._structs.MjData"] = Engine(_take_mujoco, _put_mujoco)
    # What a simulation is made of does not change while it runs.
    ENGINES["mujoco._structs.MjModel"] = Engine(lambda model: None, lambda model, state: None)
    ENGINES["ale_py._ale_py.ALEInterface"] = Engine(_take_ale, _put_ale)


def _arrays(data: Any) -> dict[str, np.ndarray]:
    found = {}
    for name in dir(data):
        if not name.startswith("_"):
            value = getattr(data, name, None)
            if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size:
                found[name] = value
    return found


def _take_mujoco(data: Any) -> dict[str, Any]:
    held = {name: array.copy() for name, array in _arrays(data).items()}
    return {"time": float(data.time), "arrays": held}


def _put_mujoco(data: Any, state: dict[str, Any]) -> None:
    mujoco: Any = importlib.import_module("mujoco")
    data.time = state["time"]
    # Twice: positions decide how many contacts there are, and with that the size of arrays that
    # environments read before their next step.
    for again in (False, True):
        for name, array in _arrays(data).items():
            saved = state["arrays"].get(name)
            if saved is not None and saved.shape == array.shape and array.flags.writeable:
                np.copyto(array, saved)
        if not again:
            mujoco.mj_forward(data.model, data)


def _take_ale(ale: Any) -> dict[str, Any]:
    return {"state": ale.cloneState(include_rng=True).__getstate__()}


def _put_ale(ale: Any, state: dict[str, Any]) -> None:
    ale_py: Any = importlib.import_module("ale_py")
    saved = ale_py.ALEState.__new__(ale_py.ALEState)
    saved.__setstate__(state["state"])
    ale.restoreState(saved)
