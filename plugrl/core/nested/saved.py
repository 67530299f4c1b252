"""Nested dictionaries in one file without pickle: JSON for the tree, NumPy's format for arrays."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
import zlib
from pathlib import Path as File
from typing import Any, BinaryIO, TypeVar

import numpy as np

from plugrl.core.errors import RunError, UsageError
from plugrl.core.nested.arrays import STRING, Array, is_string
from plugrl.core.nested.entries import _Entries

Tree = TypeVar("Tree", bound=_Entries)
_TREE = "tree"
_FORMAT = 1
#: What reading a file that something else wrote, or that is cut off or changed, may raise.
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    UsageError,
)


def save(tree: _Entries, path: str | os.PathLike[str]) -> None:
    """Write a nested dictionary to a file, whole or not at all.

    Raises:
        RunError, UsageError: the file cannot be written.
    """
    from plugrl.core.run.files import disk_error, temporary_name

    file = File(path)
    arrays: dict[str, Array] = {}
    document = {"format": _FORMAT, **_taken_apart(tree, arrays)}
    arrays[_TREE] = _bytes(json.dumps(document).encode())
    temporary = temporary_name(file)
    try:
        with temporary.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **arrays)
        os.replace(temporary, file)
    except OSError as error:
        raise disk_error(error, "save a nested dictionary", file, "another path") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def load(kind: type[Tree], path: str | os.PathLike[str]) -> Tree:
    """Read what :func:`save` wrote.

    Raises:
        UsageError: there is no such file.
        RunError: it is no saved nested dictionary, or is damaged.
    """
    try:
        with File(path).open("rb") as file, np.load(_zip(file), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        document = json.loads(arrays[_TREE].tobytes())
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']} is not {_FORMAT}")
        return _put_together(kind, document, arrays)
    except FileNotFoundError:
        raise UsageError(f"cannot load {path}: there is no such file") from None
    except OSError as error:
        raise RunError(f"cannot load {path}: {error.strerror or error}") from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RunError(
            f"cannot load {path}: it is no whole file that NestedArrayDict.save wrote ({reason})"
        ) from None


def _zip(file: BinaryIO) -> BinaryIO:
    if not zipfile.is_zipfile(file):  # NumPy would advise to unpickle it
        raise ValueError("it is no zip file")
    file.seek(0)
    return file


def _bytes(text: bytes) -> Array:
    return np.frombuffer(text, np.uint8)


def _taken_apart(tree: _Entries, arrays: dict[str, Array]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in tree._entries.items():
        if isinstance(value, _Entries):
            entries[key] = _taken_apart(value, arrays)
            continue
        name = f"array{len(arrays)}"
        if is_string(value):
            texts = [None if text is None else text.encode() for text in value.ravel().tolist()]
            lengths = [-1 if text is None else len(text) for text in texts]
            arrays[name] = np.array(lengths, np.int64).reshape(value.shape)
            arrays[f"{name}.text"] = _bytes(b"".join(text for text in texts if text))
            entries[key] = {"strings": name}
        else:
            arrays[name] = value
            entries[key] = {"array": name}
    return {"batch_size": list(tree._batch), "entries": entries}


def _put_together(kind: type[Tree], document: Any, arrays: dict[str, Array]) -> Tree:
    tree = kind._of({}, tuple(map(int, document["batch_size"])))
    for key, value in document["entries"].items():
        if "entries" in value:
            tree.set((key,), _put_together(kind, value, arrays))
        elif "strings" in value:
            name = value["strings"]
            tree.set((key,), _strings(arrays[name], arrays[f"{name}.text"].tobytes()))
        else:
            tree.set((key,), arrays[value["array"]])
    return tree


def _strings(lengths: Array, text: bytes) -> Array:
    sizes = np.maximum(lengths, 0).ravel()
    ends = np.cumsum(sizes)
    if sizes.sum() != len(text):
        raise ValueError("its strings are cut off")
    objects = np.empty(lengths.size, object)
    for i, (end, size, length) in enumerate(zip(ends, sizes, lengths.ravel(), strict=True)):
        objects[i] = None if length < 0 else text[end - size : end].decode()
    return objects.reshape(lengths.shape).astype(STRING)
