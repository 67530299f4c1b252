"""Where compiled code is kept."""

import os

import pytest

from plugrl.core.run.process.compiler import cache_folder, use_cache_folder

NAMES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PLUGRL_COMPILE_CACHE", "XDG_CACHE_HOME")


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in NAMES:
        # Set first, so that what is written in a test is taken back.
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def test_it_is_a_folder_of_the_user_that_lasts(tmp_path):
    use_cache_folder()
    folder = tmp_path / ".cache" / "plugrl" / "compiled"
    assert folder.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_variables_name_another_one(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "plugrl" / "compiled"
    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path / "own"))
    environment.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/torch")
    use_cache_folder()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/of/torch"
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "own" / "triton")


def test_a_folder_that_cannot_be_made_leaves_torch_its_own(environment, tmp_path):
    (tmp_path / "file").write_text("")
    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path / "file" / "below"))
    use_cache_folder()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
