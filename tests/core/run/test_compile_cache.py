"""Where compiled code is kept, and that the status line tells of compiling."""

import os

import pytest
import torch._dynamo

from plugrl.core.run.process.compiler import cache_folder, is_compiling, prepare_compiling
from plugrl.core.run.progress import Progress

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
    prepare_compiling()
    folder = tmp_path / ".cache" / "plugrl" / "compiled"
    assert folder.is_dir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_variables_name_another_one(environment, tmp_path):
    environment.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "plugrl" / "compiled"
    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path / "own"))
    environment.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/torch")
    prepare_compiling()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/of/torch"
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "own" / "triton")


def test_what_torch_has_written_down_itself_is_no_choice(environment, tmp_path):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path / "own"))
    assert os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", cache_dir()) != str(tmp_path / "own")
    prepare_compiling()
    assert cache_dir() == str(tmp_path / "own")


def test_a_folder_that_cannot_be_made_leaves_torch_its_own(environment, tmp_path):
    (tmp_path / "file").write_text("")
    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path / "file" / "below"))
    prepare_compiling()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_the_status_line_says_so_while_something_is_compiled(environment, tmp_path):
    environment.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path))
    torch._dynamo.reset()
    # Asked for twice, as by two services, and counted once.
    prepare_compiling()
    prepare_compiling()
    progress = Progress("rich")
    said = []

    def backend(graph, inputs):
        with progress.at("training"):
            said.append(progress._status().description)
        return graph

    assert torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist() == [2, 2]
    assert said == ["compiling"]
    assert not is_compiling()
    with progress.at("training"):
        assert progress._status().description == "training"
