"""What is said when something could not be compiled."""

import logging

import pytest

from plugrl.core.run.process import compiler
from plugrl.core.run.process.compiler import compiler_failure


def test_the_folder_of_kept_code_is_named_where_an_error_is_about_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path))
    error = RuntimeError(f"Failed to import {tmp_path}/md/cmdq.py\nSyntaxError: null bytes")
    assert compiler_failure(error) == (
        f"RuntimeError: Failed to import {tmp_path}/md/cmdq.py; delete {tmp_path} if it is damaged"
    )


def test_kept_code_that_cannot_be_read_is_one_line(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("PLUGRL_COMPILE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "_unreadable", False)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    compiler.prepare_compiling()
    torch_log = logging.getLogger("torch._inductor.codecache")
    # As torch 2.11 to 2.13 say it of each file.
    for _ in range(3):
        torch_log.warning("fx graph cache unable to load compiled graph", exc_info=True)
    torch_log.warning("another matter")
    assert [record.getMessage() for record in caplog.records if "kept" in record.getMessage()] == [
        f"{tmp_path}: kept code cannot be read, and is compiled again"
    ]
    assert "unable" not in caplog.text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("\nno such operation\n  at line 3\n"), "RuntimeError: no such operation"),
        (RuntimeError(""), "RuntimeError"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_the_first_line_is_enough(error, said):
    assert compiler_failure(error) == said
