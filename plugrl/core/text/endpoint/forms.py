"""Forms that a request gives its answer: JSON, JSON of a schema, and calls of tools.

They become grammars in the Lark dialect of ``llguidance``, in which ``%json`` is a JSON schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: Between two tokens of JSON: nothing, a space, or a line break with what indents the next line. A
#: bound, since a model that has not learned much may go on with white space for ever.
_SPACE = r"[ ]?|\n[ ]{0,16}"


def json_grammar(schema: Mapping[str, Any]) -> str:
    """A grammar of JSON that matches ``schema``."""
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON that matches ``schema``, as part of a grammar."""
    options = {"whitespace_pattern": _SPACE}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"
