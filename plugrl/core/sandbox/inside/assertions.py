"""Runs assertions about a program in a process that has never executed the program.

The program's functions are proxies here: arguments go out and results come back as data. Assertions
therefore compare numbers, strings and collections of them, never an object that the program made.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import symtable
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from plugrl.core.sandbox.inside.syntax import parse_python
from plugrl.core.sandbox.inside.value_codec import decode, encode, parse_json

#: Names that tests use without importing them, and their modules.
_KNOWN = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque"), "collections"),
    **dict.fromkeys(("List", "Dict", "Tuple", "Set", "Optional", "Any"), "typing"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "isclose": "math",
}
_SHORT = {"np": "numpy"}
_SOLUTION = "Solution"


def names_of_program(code: str) -> list[str]:
    """The names that test code takes from the program: those it neither defines nor imports.

    A built-in name counts only if the code names nothing else of the program: then the program
    defines a function of that name.

    Raises:
        SyntaxError: it is no Python.
    """
    free, called = _free_names(code), _called_names(code)
    modules = {n for n in free if n in sys.stdlib_module_names or n in _SHORT} - called
    own = {n for n in free - modules if n not in _KNOWN and not hasattr(builtins, n)}
    return sorted(own or {n for n in free & called if hasattr(builtins, n)})


def fault_of(code: str) -> str | None:
    """Why test code cannot run in a process of its own; None if it can.

    Raises:
        SyntaxError: it is no Python.
    """
    names = names_of_program(code)
    for name in names:
        constant = name.isupper() and len(name) > 1
        if name[:1].isupper() and not constant and name != _SOLUTION:
            return f"makes objects of {name}, a class of the program"
    tree = parse_python(code)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(value, ast.Lambda) or (
                    isinstance(value, ast.Name) and value.id in own
                ):
                    return f"hands {node.func.id} a function of its own"
    return None


def _free_names(code: str) -> set[str]:
    """Names that are read but never bound at the top level."""
    top = symtable.symtable(code, "test.py", "exec")
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {s.get_name() for s in top.get_symbols() if s.is_namespace()}

    def used(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is top or symbol.is_global()):
                yield symbol.get_name()
        for inner in table.get_children():
            yield from used(inner)

    return {name for name in used(top) if not name.startswith("__")} - bound


def _called_names(code: str) -> set[str]:
    calls = (node.func for node in ast.walk(parse_python(code)) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


class _RemoteProgram:
    """The program in the other process, reached over two pipes."""

    def __init__(self, answers: IO[str], questions: IO[str]) -> None:
        self._answers = answers
        self._questions = questions
        self._instances = 0

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self._questions.write(json.dumps(question) + "\n")
        self._questions.flush()
        return self.read_answer()

    def read_answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise EOFError("the program has ended")
        answer = parse_json(line)
        if not isinstance(answer, dict):
            raise ValueError("the program gave no answer")
        return answer

    def call(self, target: Mapping[str, Any], arguments: Any, keywords: Any) -> Any:
        sent = [encode(each, _stand_in) for each in arguments]
        named = {key: encode(value, _stand_in) for key, value in keywords.items()}
        answer = self.ask({**target, "arguments": sent, "keywords": named})
        if "raised" in answer:
            raise _exception(str(answer["raised"]), str(answer.get("text", "")))
        if isinstance(answer.get("arguments"), list):
            for own, new in zip(arguments, answer["arguments"], strict=False):
                _copy_back(own, decode(new, self.stand_in))
        return decode(answer["value"], self.stand_in)

    def stand_in(self, kind: str, held: Any) -> Any:
        if kind != "function":
            raise ValueError(f"no value: {kind}")
        return _RemoteFunction(self, str(held))

    def name(self, name: str) -> Any:
        """The value of a name if it is a constant; else a proxy of a function."""
        if name == _SOLUTION:
            return self._instance
        answer = self.ask({"get": name})
        return (
            decode(answer["value"], self.stand_in)
            if "value" in answer
            else _RemoteFunction(self, name)
        )

    def _instance(self) -> _RemoteInstance:
        self._instances += 1
        return _RemoteInstance(self, self._instances)


class _RemoteFunction:
    """A proxy of a function of the program; it equals only itself."""

    def __init__(self, program: _RemoteProgram, name: str) -> None:
        self._program = program
        self.__name__ = name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._program.call({"call": self.__name__}, arguments, keywords)


class _RemoteInstance:
    """A proxy of an object of the program's class ``Solution``; only methods can be used."""

    def __init__(self, program: _RemoteProgram, number: int) -> None:
        self._program = program
        self._number = number

    def __getattr__(self, name: str) -> Any:
        target = {"call": name, "instance": self._number}
        return lambda *a, **k: self._program.call(target, a, k)


def _stand_in(value: Any) -> Any:
    return {"function": value.__name__} if isinstance(value, _RemoteFunction) else None


def _exception(name: str, text: str) -> Exception:
    """An exception of the built-in class of that name, or RuntimeError.

    StopIteration would silently end a loop of the tests, so it becomes a RuntimeError too.
    """
    found = getattr(builtins, name, None)
    ends = (StopIteration, StopAsyncIteration)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, ends):
        try:
            return found(text)
        except TypeError:
            pass
    return RuntimeError(f"{name}: {text}")


def _copy_back(own: Any, new: Any) -> None:
    """Apply changes that the function made to its copy of an argument."""
    if isinstance(own, list) and isinstance(new, list):
        own[:] = new
    elif (isinstance(own, dict) and isinstance(new, dict)) or (
        isinstance(own, set) and isinstance(new, set)
    ):
        own.clear()
        own.update(new)


def run_tests(code: str, answers: IO[str], questions: IO[str]) -> None:
    """Run test code with proxies for what it takes from the program; its exceptions propagate."""
    program = _RemoteProgram(answers, questions)
    # The program says when it has run to its end; if it never does, the tests fail.
    program.read_answer()
    names: dict[str, Any] = {"__name__": "test"}
    for name in sorted(_free_names(code)):
        module = _KNOWN.get(name)
        if module is not None:
            names[name] = getattr(importlib.import_module(module), name)
        elif name in _SHORT or name in sys.stdlib_module_names:
            names[name] = importlib.import_module(_SHORT.get(name, name))
    for name in names_of_program(code):
        names[name] = program.name(name)
    exec(compile(code, "test.py", "exec"), names)


def answer_questions(names: dict[str, Any], questions: IO[str], answers: IO[str]) -> None:
    """In the process of the program: serve calls until the pipe is closed."""
    instances: dict[int, Any] = {}

    def function(kind: str, held: Any) -> Any:
        return _lookup(names, str(held))

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({})
    for line in questions:
        question = parse_json(line)
        try:
            answer = _answer(question, names, instances, function)
        except Exception as error:
            answer = {"raised": type(error).__name__, "text": str(error)}
        say(answer)


def _answer(
    question: Mapping[str, Any], names: dict[str, Any], instances: dict[int, Any], function: Any
) -> dict[str, Any]:
    def stand_in(value: Any) -> Any:
        shown = str(getattr(value, "__name__", ""))
        return {"function": shown} if callable(value) and names.get(shown) is value else None

    if "get" in question:
        return {"value": encode(_lookup(names, question["get"]), stand_in)}
    if "instance" in question:
        number = question["instance"]
        instances.setdefault(number, None)
        instances[number] = instances[number] or names[_SOLUTION]()
        called = getattr(instances[number], question["call"])
    else:
        called = _lookup(names, question["call"])
    arguments = [decode(each, function) for each in question["arguments"]]
    keywords = {key: decode(each, function) for key, each in question["keywords"].items()}
    answer = {"value": encode(called(*arguments, **keywords), stand_in)}
    try:
        after = [encode(each, stand_in) for each in arguments]
    except (TypeError, ValueError):
        return answer
    return answer if after == question["arguments"] else {**answer, "arguments": after}


def _lookup(names: Mapping[str, Any], name: str) -> Any:
    found = names.get(name, getattr(builtins, name, None))
    if found is None and name not in names:
        raise NameError(f"the program has no function {name!r}")
    return found
