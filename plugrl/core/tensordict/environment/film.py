"""Films of episodes: frames written as GIF or MP4."""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugrl.core.errors import ConfigError, RunError

if TYPE_CHECKING:
    import numpy as np

#: What each format needs.
_MODULES = {"gif": ("PIL",), "mp4": ("imageio", "imageio_ffmpeg")}
#: Viewers show GIFs with shorter frames much too slowly.
_FASTEST_GIF = 50.0


def missing(format: str) -> str | None:
    """What to install before films of ``format`` can be written; None: nothing."""
    absent = [name for name in _MODULES[format] if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f'a film as {format} needs {", ".join(absent)}; run: pip install "plugrl[video]"'


def write_film(
    path: str | os.PathLike[str], frames: Sequence[np.ndarray], fps: float = 30.0
) -> Path:
    """Write frames as a film; the ending of ``path`` tells the format.

    Args:
        path: ends in ``.gif`` or ``.mp4``; its folder is made.
        frames: bytes ``[height, width, 3]``, all of one size; grey ones ``[height, width]`` too.
        fps: frames in a second. GIFs of more than 50 leave some out and last equally long.

    Returns:
        The path.

    Raises:
        ConfigError: the format is unknown, or what writes it is not installed.
        RunError: there is no frame, or frames differ in size.
    """
    target = Path(path)
    format = target.suffix.removeprefix(".")
    if format not in _MODULES:
        raise ConfigError(f"film {target}: its name must end in .gif or .mp4")
    if (fault := missing(format)) is not None:
        raise ConfigError(fault)
    if not fps > 0:
        raise RunError(f"film {target}: fps must be more than 0, not {fps}")
    pictures = _pictures(target, frames)
    target.parent.mkdir(parents=True, exist_ok=True)
    # What stands under the name is whole.
    draft = target.with_name(f".{target.stem}.draft{target.suffix}")
    try:
        (_write_gif if format == "gif" else _write_mp4)(draft, pictures, fps)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _pictures(target: Path, frames: Sequence[np.ndarray]) -> list[np.ndarray]:
    import numpy as np

    if not len(frames):
        raise RunError(f"film {target}: there is no frame")
    pictures: list[np.ndarray] = []
    for number, frame in enumerate(frames):
        picture = np.asarray(frame)
        if picture.ndim == 2:
            picture = np.repeat(picture[..., None], 3, axis=2)
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise RunError(
                f"film {target}: frame {number} is {picture.dtype} of shape {picture.shape}, not "
                "bytes [height, width, 3]; give the environment render_mode rgb_array"
            )
        if pictures and picture.shape != pictures[0].shape:
            raise RunError(
                f"film {target}: frame {number} has shape {picture.shape}, and the first "
                f"{pictures[0].shape}"
            )
        pictures.append(np.ascontiguousarray(picture))
    return pictures


def _write_gif(path: Path, pictures: list[np.ndarray], fps: float) -> None:
    from PIL import Image

    step = max(1, math.ceil(fps / _FASTEST_GIF))
    images = [Image.fromarray(picture) for picture in pictures[::step]]
    # The last frame stays for a second, so that the end can be seen before it begins anew.
    durations = [round(1000 * step / fps)] * (len(images) - 1) + [1000]
    images[0].save(
        path, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0
    )


def _write_mp4(path: Path, pictures: list[np.ndarray], fps: float) -> None:
    import numpy as np

    imageio: Any = importlib.import_module("imageio.v2")
    # The codec wants even sizes.
    height, width = pictures[0].shape[:2]
    margin = ((0, height % 2), (0, width % 2), (0, 0))
    with imageio.get_writer(path, fps=fps, codec="libx264", macro_block_size=1) as writer:
        for picture in pictures:
            writer.append_data(np.pad(picture, margin, mode="edge"))
