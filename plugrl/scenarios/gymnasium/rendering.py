"""Whether frames of an environment can be drawn."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from dataclasses import replace

import numpy as np

from plugrl.core.errors import ConfigError
from plugrl.core.plugins.user_code.error_location import one_line
from plugrl.scenarios.gymnasium.recipe import Recipe


def rendering_fault(recipe: Recipe) -> str | None:
    """Why no frame of an environment can be drawn; None: one was.

    Args:
        recipe: of a copy that is made to be looked at.
    """
    try:
        plain = replace(recipe, render_mode=None).make()
        modes = plain.metadata.get("render_modes") or []
        plain.close()
        if "rgb_array" not in modes:
            has = ", ".join(map(str, modes)) or "none"
            return (
                f"environment {recipe.id} draws no frames (rgb_array); its render modes: {has}; "
                "write validate.film: none"
            )
        made = recipe.make()
    except ConfigError as error:
        return str(error)
    try:
        made.reset(seed=0)
        frame = np.asarray(made.render())
        if frame.ndim != 3 or frame.shape[2] != 3:
            return f"environment {recipe.id} draws frames of shape {frame.shape}, not [h, w, 3]"
    except Exception as error:
        remedy = ", or write validate.film: none"
        if importlib.util.find_spec("pygame") is None:
            remedy = f'; run: pip install "plugrl[video]"{remedy}'
        return f"environment {recipe.id} cannot be drawn: {one_line(error)}{remedy}"
    finally:
        with suppress(Exception):
            made.close()
    return None
