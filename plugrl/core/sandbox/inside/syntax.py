"""Python's parser, for programs that several threads look at."""

from __future__ import annotations

import ast
import threading
from typing import Literal, overload

# Python 3.11 counts the nesting of all threads in one number, so that two that parse at the same
# time may end in a SystemError ("recursion depth mismatch", python/cpython#106905).
_ONE_AT_A_TIME = threading.Lock()


@overload
def parse_python(
    code: str | bytes, file: str = ..., *, mode: Literal["exec"] = ...
) -> ast.Module: ...
@overload
def parse_python(
    code: str | bytes, file: str = ..., *, mode: Literal["eval"]
) -> ast.Expression: ...
def parse_python(
    code: str | bytes, file: str = "<unknown>", *, mode: Literal["exec", "eval"] = "exec"
) -> ast.AST:
    """What ``ast.parse`` gives, from any thread.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as ``ast.parse`` does.
    """
    with _ONE_AT_A_TIME:
        return ast.parse(code, file, mode)
