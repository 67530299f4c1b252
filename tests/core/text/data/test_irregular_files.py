"""Data files that are none, or damaged: each is refused at once, in one line that names it."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from plugrl.core.errors import ConfigError
from plugrl.core.text.data.files import LONGEST_LINE, first_problem, read_files


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device", "circle"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    path = tmp_path / f"problems{suffix}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path)
    for read in (first_problem, lambda each: read_files([each])):
        with pytest.raises(ConfigError, match=r"^data file .*(not a regular|symbolic)") as caught:
            read(path)
        assert "\n" not in str(caught.value)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError, match=r"^data file ") as caught:
        read_files([path])
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The kernel bounds the path of a socket.
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("problems.jsonl")
        assert "not a regular file" in refusal(Path("problems.jsonl"))


@pytest.mark.parametrize("target", ["/proc/self/status", "/proc/self/mem"])
def test_a_file_of_the_kernel_is_refused(tmp_path: Path, target: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.symlink_to(target)
    refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which root alone may")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"a": 1}\n', encoding="utf-8")
    path.chmod(0)
    os.seteuid(65534)
    try:
        assert refusal(path).endswith("Permission denied")
    finally:
        os.seteuid(0)


NESTED = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
DIGITS = '{"a": ' + "1" * 5000 + "}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' is there twice; leave one out"),
        ('{"a": [{"b": {"c": 1, "d": 2, "c": 1}}]}', "the key 'c' is there twice"),
        (NESTED, "nested too deeply"),
        (DIGITS, "a number of more than 4,300 digits; write it as a text"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_that_python_would_misread_is_refused(
    tmp_path: Path, text: str, says: str, suffix: str
) -> None:
    path = tmp_path / f"problems{suffix}"
    path.write_text(f"[{text}]" if suffix == ".json" else f'{{"a": 1}}\n{text}\n', encoding="utf-8")
    place = path if suffix == ".json" else f"{path}:2"
    message = refusal(path)
    assert message.startswith(f"data file {place}: ")
    assert says in message
    assert len(message) < len(str(path)) + 200


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_text_of_another_encoding_is_refused(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"problems{suffix}"
    text = {".csv": "prompt\r\né\r\n", ".json": '[{"prompt": "é"}]'}
    path.write_text(text.get(suffix, '{"prompt": "é"}\n'), encoding=encoding)
    assert refusal(path).endswith("not UTF-8 text; save it as UTF-8")


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".jsonl", '{"prompt": "é"}\r\n\r\n{"prompt": "b"}'),
        (".json", '[{"prompt": "é"},\r\n{"prompt": "b"}]'),
        (".csv", "prompt\r\né\r\nb\r\n"),
    ],
)
def test_a_mark_of_byte_order_and_other_line_ends_are_read(
    tmp_path: Path, suffix: str, text: str
) -> None:
    path = tmp_path / f"problems{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_files([path]) == [{"prompt": "é"}, {"prompt": "b"}]


def test_a_line_without_end_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b'{"prompt": "')
    os.truncate(path, 3 * LONGEST_LINE)
    assert "the line has more than 67,108,864 characters" in refusal(path)


def test_a_quotation_mark_that_is_not_closed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "problems.csv"
    path.write_text('a,b\n1,"2\n3,4\n', encoding="utf-8")
    assert refusal(path).endswith("a quoted field does not end; close its quotation mark")


def table_bytes(kind: str, folder: Path) -> bytes:
    """Three batches of a table with texts, lists and mappings."""
    values = {"prompt": [f"q{n}" for n in range(90)], "numbers": [[1.0, 2.0]] * 90}
    table = pyarrow.table(values | {"more": [{"x": 1}] * 90})
    path = str(folder / "whole")
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path, compression="none")
    else:
        new = pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream
        with pyarrow.OSFile(path, "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, 30)
    return Path(path).read_bytes()


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_a_table_that_is_cut_short_is_refused(tmp_path: Path, kind: str) -> None:
    whole = table_bytes(kind, tmp_path)
    path = tmp_path / ("problems.parquet" if kind == "parquet" else "problems.arrow")
    # The last eight bytes of a stream are its end, which a reader need not see.
    for length in (0, 3, 9, len(whole) // 2, len(whole) - 9):
        path.write_bytes(whole[:length])
        refusal(path)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_bytes_of_a_table_that_are_others_are_refused_or_values(tmp_path: Path, kind: str) -> None:
    whole = table_bytes(kind, tmp_path)
    path = tmp_path / ("problems.parquet" if kind == "parquet" else "problems.arrow")
    draw = random.Random(kind)
    refusals = []
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 3, 20])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_files([path])
        except ConfigError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert all(each.startswith(f"data file {path}") for each in refusals)
    assert not any("\n" in each for each in refusals)
