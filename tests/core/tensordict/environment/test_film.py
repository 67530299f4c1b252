"""Films: what is written is read again with another reader."""

import subprocess
import sys

import numpy as np
import pytest

from plugrl.core.errors import ConfigError, RunError
from plugrl.core.tensordict.environment.film import missing, write_film

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def frame(colour, height=20, width=30):
    return np.full((height, width, 3), colour, np.uint8)


def test_a_gif_shows_the_frames_at_their_speed_and_its_end_for_a_second(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = write_film(tmp_path / "deep" / "a.gif", [frame(RED), frame(GREEN), frame(BLUE)], 20)
    assert path == tmp_path / "deep" / "a.gif"
    assert [each.name for each in path.parent.iterdir()] == ["a.gif"]
    with image.open(path) as film:
        assert (film.n_frames, film.size) == (3, (30, 20))
        seen = []
        for number in range(3):
            film.seek(number)
            seen.append((film.convert("RGB").getpixel((5, 5)), film.info["duration"]))
    assert seen == [(RED, 50), (GREEN, 50), (BLUE, 1000)]


def test_a_fast_gif_leaves_frames_out_and_lasts_as_long(tmp_path):
    image = pytest.importorskip("PIL.Image")
    frames = [frame((number, 0, 0)) for number in range(0, 240, 20)]
    with image.open(write_film(tmp_path / "a.gif", frames, 100)) as film:
        assert film.n_frames == 6
        assert film.info["duration"] == 20


def test_an_mp4_has_the_frames_in_even_sizes(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    imageio = pytest.importorskip("imageio.v2")
    path = write_film(tmp_path / "a.mp4", [frame(RED, 21, 33)] * 8 + [frame(BLUE, 21, 33)] * 4, 10)
    with imageio.get_reader(path) as film:
        metadata, frames = film.get_meta_data(), [each for each in film]  # noqa: C416 - it claims to be endless
    assert (metadata["fps"], metadata["size"]) == (10, (34, 22))
    assert len(frames) == 12
    # The codec changes colours a little.
    assert frames[0][10, 10] == pytest.approx(RED, abs=12)
    assert frames[-1][10, 10] == pytest.approx(BLUE, abs=12)


def test_grey_frames_are_shown_grey(tmp_path):
    image = pytest.importorskip("PIL.Image")
    grey = np.full((4, 4), 100, np.uint8)
    with image.open(write_film(tmp_path / "a.gif", [grey, grey + 50])) as film:
        assert film.convert("RGB").getpixel((0, 0)) == (100, 100, 100)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([], "there is no frame"),
        ([frame(RED), frame(RED, 21)], r"frame 1 has shape \(21, 30, 3\), and the first \(20, 30"),
        ([frame(RED).astype(float)], "frame 0 is float64 .* render_mode rgb_array"),
        ([frame(RED)[..., :2]], r"shape \(20, 30, 2\), not bytes \[height, width, 3\]"),
    ],
)
def test_what_is_no_film_is_refused(tmp_path, frames, message):
    pytest.importorskip("PIL")
    with pytest.raises(RunError, match=message):
        write_film(tmp_path / "a.gif", frames)
    assert not list(tmp_path.iterdir())


def test_names_and_speeds_are_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.gif or \.mp4"):
        write_film(tmp_path / "a.webm", [frame(RED)])
    pytest.importorskip("PIL")
    with pytest.raises(RunError, match="fps must be more than 0, not 0"):
        write_film(tmp_path / "a.gif", [frame(RED)], 0)


def test_a_film_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    path = write_film(tmp_path / "a.gif", [frame(RED)])
    before = path.read_bytes()

    def full(*arguments, **options):
        raise OSError("no space left on device")

    monkeypatch.setattr(image.Image, "save", full)
    with pytest.raises(OSError, match="no space"):
        write_film(path, [frame(BLUE)])
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.gif"]


@pytest.mark.parametrize(("format", "module"), [("gif", "PIL"), ("mp4", "imageio_ffmpeg")])
def test_what_a_format_needs_is_named_with_what_to_run(format, module):
    program = (
        "import importlib.machinery, sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: sys.meta_path[1:] = []\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from plugrl.core.tensordict.environment.film import missing\n"
        f"print(missing({format!r}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == (
        f'a film as {format} needs {module}; run: pip install "plugrl[video]"\n'
    )


def test_nothing_is_missing_where_all_is_installed():
    pytest.importorskip("PIL")
    assert missing("gif") is None
