"""Forms that a request gives its answer: JSON, JSON of a schema, and calls of tools.

They become grammars in the Lark dialect of ``llguidance``, in which ``%json`` is a JSON schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from plugrl.core.text.agents.parsing import CallRule, Parser
from plugrl.core.text.endpoint.faults import invalid, unsupported
from plugrl.core.text.inference import grammars

#: Characters of a schema as JSON.
LONGEST_SCHEMA = 2**17
#: Calls of one reply, where calls are forced.
_MOST_CALLS = 16
#: An automaton for multiples of a number has as many states as the number; of a million, it takes
#: seconds to make.
_MOST_DIGITS = 4
#: Between two tokens of JSON: nothing, a space, or a line break with what indents the next line. A
#: bound, since a model that has not learned much may go on with white space for ever.
_SPACE = r"[ ]?|\n[ ]{0,16}"


@dataclass(frozen=True)
class AnswerForm:
    """What a request asks of the form of its answer.

    Attributes:
        schema: of the JSON that an answer is; None: it may be any text.
        choice: whether a reply may call tools, must not, must, or must call the one of that name.
        parallel: whether one reply may make several calls.
    """

    schema: Mapping[str, Any] | None = None
    choice: Literal["auto", "none", "required"] | tuple[str] = "auto"
    parallel: bool = True

    @property
    def forced(self) -> bool:
        """Whether a reply must call a tool."""
        return self.choice not in ("auto", "none")


def read_response_format(value: Any, param: str = "response_format") -> Mapping[str, Any] | None:
    """The schema that a request names; None: its answer may be any text.

    Args:
        value: ``response_format`` of a chat, or ``text.format`` of a response, which has the keys
            of ``json_schema`` beside its type.
        param: which of them, for messages.

    Raises:
        ApiError: it is malformed, or cannot be enforced.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise unsupported(param, f"{param} can be of type text, json_object or json_schema")
    own = value.get("json_schema", {}) if param == "response_format" else value
    schema = own.get("schema") if isinstance(own, dict) else None
    if not isinstance(schema, dict):
        raise invalid(param, f"{param} has no schema, which must be an object")
    if not isinstance(own.get("name", ""), str):
        raise invalid(param, f"the name of {param} must be text")
    return checked_schema(schema, param)


def read_tool_choice(
    value: Any, tools: Sequence[Mapping[str, Any]]
) -> Literal["auto", "none", "required"] | tuple[str]:
    """What ``tool_choice`` asks for; a name is a tuple of it.

    Raises:
        ApiError: it is malformed, or there is no such tool.
    """
    if value is None or value in ("auto", "none"):
        return value or "auto"
    if value == "required":
        if not tools:
            raise invalid("tool_choice", "tool_choice is required, and there are no tools")
        return "required"
    kind = value.get("type") if isinstance(value, dict) else None
    # The interface of responses has the name beside the type.
    own = value.get("function", value) if kind == "function" else None
    name = own.get("name") if isinstance(own, dict) else None
    if not isinstance(name, str):
        raise unsupported(
            "tool_choice", "tool_choice can be auto, none, required or a function with its name"
        )
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        known = ", ".join(names)[:200] or "none"
        raise invalid("tool_choice", f"there is no tool {name[:64]!r}; tools are: {known}")
    return (name,)


def checked_schema(schema: Mapping[str, Any], param: str) -> Mapping[str, Any]:
    """``schema``, which must be one that can be enforced.

    Raises:
        ApiError: it is too long, no schema, or has what cannot be enforced.
    """
    try:
        length = len(json.dumps(schema))
    except RecursionError:
        raise invalid(param, f"the schema of {param} is nested too deeply") from None
    if length > LONGEST_SCHEMA:
        raise invalid(
            param, f"the schema of {param} has {length} characters; at most {LONGEST_SCHEMA}"
        )
    if not grammars.is_installed():
        raise unsupported(param, grammars.MISSING)
    if any(_digits(number) > _MOST_DIGITS for number in _multiples(schema)):
        raise invalid(
            param, f"the schema of {param} has multipleOf with more than {_MOST_DIGITS} digits"
        )
    fault = grammars.grammar_fault(json_grammar(schema))
    if fault:
        raise invalid(param, f"the schema of {param} cannot be enforced: {fault}")
    return schema


def _multiples(schema: Any) -> Iterator[float]:
    """The numbers that a schema has behind ``multipleOf``."""
    rest = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping):
            number = value.get("multipleOf")
            if isinstance(number, (int, float)):
                yield number
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _digits(number: float) -> int:
    """Significant digits of a number."""
    return len(Decimal(str(number)).normalize().as_tuple().digits)


def json_grammar(schema: Mapping[str, Any]) -> str:
    """A grammar of JSON that matches ``schema``."""
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """JSON that matches ``schema``, as part of a grammar."""
    options = {"whitespace_pattern": _SPACE}
    return f"%json {json.dumps({**schema, 'x-guidance': options})}"


def answer_grammar(
    form: AnswerForm,
    tools: Sequence[Mapping[str, Any]],
    parsers: Sequence[Parser],
    call_parsers: Sequence[Parser],
    prompt: str,
) -> tuple[str, list[str]]:
    """The grammar of an answer, and which parameters of the request it cannot enforce.

    Reasoning may stand before it where the model has a parser of reasoning.

    Args:
        form: what the request asks for.
        tools: that a reply may call.
        parsers: read the reasoning.
        call_parsers: read the calls, and say how one is written.
        prompt: what is replied to, as the chat template wrote it.

    Returns:
        "" where an answer may be any text.

    Raises:
        ApiError: calls are forced, and no parser says how one is written.
    """
    may_call = bool(tools) and form.choice != "none"
    calls = _calls(form, tools, call_parsers) if may_call else []
    if may_call and not calls:
        _refuse_unknown_calls(form)
    if form.forced:
        rules = _forced(calls, form)
    elif form.schema is not None:
        rules = {"start": "answer", "answer": json_rule(form.schema)}
        if calls:
            rules |= {**_forced(calls, form, "calls"), "start": "answer | calls"}
    else:
        limits = call_limits(form, tools)
        if not limits or not calls or not all(call.opening for call in calls):
            return "", limits
        rules = _free(calls, form)
    return _grammar(rules, parsers, prompt), []


def call_limits(form: AnswerForm, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parameters that limit the calls which a reply is free to make."""
    if not tools or form.choice == "none":
        return []
    strict = any(tool["function"].get("strict") for tool in tools)
    limits = {"tools.strict": strict, "parallel_tool_calls": not form.parallel}
    return [name for name, limited in limits.items() if limited]


def _refuse_unknown_calls(form: AnswerForm) -> None:
    """Refuse what needs to know how calls are written, where no parser says so.

    Raises:
        ApiError: calls are forced, or an answer is either a call or JSON.
    """
    if form.forced:
        raise unsupported(
            "tool_choice",
            "calls cannot be forced, since no parser of calls says how one is written; send "
            "auto, or use a parser that does, such as hermes",
        )
    if form.schema is not None:
        raise unsupported(
            "response_format",
            "response_format cannot be enforced beside tools, since no parser of calls says "
            "how one is written; send tool_choice none, or use a parser that does",
        )


def _calls(
    form: AnswerForm, tools: Sequence[Mapping[str, Any]], parsers: Sequence[Parser]
) -> list[CallRule]:
    """How each tool that may be called is called; empty: no parser says so of one of them."""
    found = []
    for tool in tools:
        function = tool["function"]
        if isinstance(form.choice, tuple) and function["name"] not in form.choice:
            continue
        given = {"type": "object", **(function.get("parameters") or {})}
        held = form.forced or form.schema is not None or function.get("strict")
        schema = checked_schema(given, "tools") if held else {"type": "object"}
        rules = (parser.call_rule(function["name"], json_rule(schema)) for parser in parsers)
        rule = next((rule for rule in rules if rule is not None), None)
        if rule is None:
            return []
        found.append(rule)
    return found


def _forced(calls: Sequence[CallRule], form: AnswerForm, start: str = "start") -> dict[str, str]:
    """Calls, one after the other, and nothing else."""
    # Without a mark at its beginning, a second call cannot be told from the first.
    alone = not form.parallel or isinstance(form.choice, tuple) or not all(c.opening for c in calls)
    more = "" if alone else f' ("\\n"? call){{0,{_MOST_CALLS - 1}}}'
    own = [f"{json.dumps(c.opening)} {c.rest}" if c.opening else c.rest for c in calls]
    return {start: f"call{more}", "call": " | ".join(own)}


def _free(calls: Sequence[CallRule], form: AnswerForm) -> dict[str, str]:
    """Any text, in which what begins as a call must be one."""
    rules: dict[str, str] = {"TEXT": "/(.|\\n)*/"}
    own: list[str] = []
    for opening in dict.fromkeys(call.opening for call in calls):
        number = len(own)
        rests = " | ".join(f"({call.rest})" for call in calls if call.opening == opening)
        rules[f"begin_{number}[lazy]"] = f"TEXT {json.dumps(opening)}"
        own.append(f"begin_{number} ({rests})")
    rules["call"] = " | ".join(own)
    rules["text"] = "TEXT"
    return {"start": "call* text" if form.parallel else "call | text", **rules}


def _grammar(rules: Mapping[str, str], parsers: Sequence[Parser], prompt: str) -> str:
    """The rules as one text, with reasoning before them."""
    rules = {"form" if name == "start" else name: rule for name, rule in rules.items()}
    start = "form"
    for number, parser in enumerate(reversed(parsers)):
        tags = parser.reasoning_tags(prompt)
        if tags is None:
            continue
        opening, closing = tags
        name = f"reasoning_{number}"
        rules[f"{name}[lazy]"] = f"/(.|\\n)*/ {json.dumps(closing)}"
        own = f"{name} /[ \\n]{{0,4}}/"
        start = f"({json.dumps(opening)} {own})? {start}" if opening else f"{own} {start}"
    return "\n".join([f"start: {start}", *(f"{name}: {rule}" for name, rule in rules.items())])


def check_grammar(grammar: str, param: str) -> None:
    """Refuse a grammar that cannot be compiled.

    Raises:
        ApiError: it cannot.
    """
    fault = grammars.grammar_fault(grammar)
    if fault:
        raise invalid(param, f"{param} cannot be enforced: {fault}")
