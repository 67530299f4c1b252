"""Calls written as Python: ``[search(query="x"), add(1, 2)]``, as Llama models write them."""

from __future__ import annotations

import ast
import re

from plugrl.core.sandbox.inside.syntax import parse_python
from plugrl.core.text.agents.parsing import ParsedReply, Parser, ToolCall

_LOOKS = re.compile(r"\[?\s*[A-Za-z_][\w.]*\s*\(")
_TAGS = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")


class PythonicParser(Parser):
    """A reply that is one call, or a list of calls, with literal arguments. Nothing is executed."""

    def parse(self, text: str) -> ParsedReply:
        """Read the calls of a reply that looks like one; other text is content."""
        stripped = text.strip()
        for tag in _TAGS:
            stripped = stripped.replace(tag, "").strip()
        if not _LOOKS.match(stripped):
            return ParsedReply(content=text)
        try:
            body = parse_python(stripped, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if not stripped.startswith("["):
                # Prose may begin with a word and a bracket.
                return ParsedReply(content=text)
            return ParsedReply(
                calls=[ToolCall(error=f"the calls are no Python: {_error_text(error)}")]
            )
        nodes = body.elts if isinstance(body, ast.List) else [body]
        return ParsedReply(calls=[_call(node) for node in nodes])


def _error_text(error: BaseException) -> str:
    return str(getattr(error, "msg", None) or type(error).__name__)


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        return ToolCall(error="an entry of the list is no call")
    name = ast.unparse(node.func)
    try:
        positional = [ast.literal_eval(argument) for argument in node.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
    except (ValueError, TypeError, RecursionError, MemoryError):
        return ToolCall(name, error=f"the arguments of {name} are no literals")
    if positional and named:
        return ToolCall(name, error=f"{name} mixes named and unnamed arguments; name them all")
    return ToolCall(name, positional or named)
