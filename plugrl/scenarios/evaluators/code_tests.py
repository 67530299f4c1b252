"""Test cases of programming problems, in the forms in which data sets hold them."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plugrl.core.sandbox.inside.assertions import fault_of
from plugrl.core.sandbox.inside.syntax import parse_python
from plugrl.core.sandbox.jobs import ProgramOutcome, Runner

_NONE = object()
#: Keys of what a test expects.
_EXPECTED = frozenset({"expected", "output", "stdout"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """How what a program prints is compared.

    ``mode`` is ``exact``, ``lines`` (blanks at ends of lines and empty last lines do not count) or
    ``words`` (no white space counts). Numbers may differ by ``tolerance``, which needs ``words``.
    """

    mode: str = "lines"
    tolerance: float = 0.0

    def equal(self, found: str, expected: str) -> bool:
        """Whether ``found`` is what was expected."""
        if self.mode == "exact":
            return found == expected
        if self.mode == "lines":
            return _lines(found) == _lines(expected)
        ours, theirs = found.split(), expected.split()
        return len(ours) == len(theirs) and all(map(self._close, ours, theirs))

    def _close(self, found: str, expected: str) -> bool:
        if found == expected:
            return True
        try:
            return self.tolerance > 0 and abs(float(found) - float(expected)) <= self.tolerance
        except ValueError:
            return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(frozen=True, slots=True)
class InputTest:
    """A program reads ``given`` and must print ``expected``."""

    given: str
    expected: str

    def run(self, box: Runner, program: str, comparison: Comparison) -> tuple[bool, ProgramOutcome]:
        """Whether ``program`` passes, and what came of it."""
        outcome = box.script(program, self.given)
        passed = outcome.verdict == "done" and comparison.equal(outcome.output, self.expected)
        return passed, outcome


@dataclass(frozen=True, slots=True)
class AssertTest:
    """Code that calls functions of a program and must not raise.

    It runs in a process of its own, or, where it is ``trusted``, among the names of the program.
    """

    code: str
    trusted: bool = False

    def run(self, box: Runner, program: str, comparison: Comparison) -> tuple[bool, ProgramOutcome]:
        """Whether ``program`` passes, and what came of it."""
        outcome = box.asserts(program, self.code, trusted=self.trusted)
        return outcome.verdict == "done", outcome


@dataclass(frozen=True, slots=True)
class CallTest:
    """A function that must return ``expected``; the result is compared outside of the box."""

    name: str
    arguments: list[Any]
    expected: Any

    def run(self, box: Runner, program: str, comparison: Comparison) -> tuple[bool, ProgramOutcome]:
        """Whether ``program`` passes, and what came of it."""
        outcome = box.call(program, self.name, self.arguments)
        expected = json.loads(json.dumps(self.expected))
        passed = outcome.verdict == "done" and _same(outcome.value, expected, comparison.tolerance)
        return passed, outcome


def _same(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether a result is the expected one, however deep both are."""
    pairs = [(found, expected)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(other, list) and isinstance(one, list) and len(one) == len(other):
            pairs += zip(one, other, strict=True)
        elif isinstance(other, dict) and isinstance(one, dict) and one.keys() == other.keys():
            pairs += [(one[key], other[key]) for key in other]
        elif not _equal(one, other, tolerance):
            return False
    return True


def _equal(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether two values are equal that hold no others."""
    if isinstance(found, (list, dict)) or isinstance(expected, (list, dict)):
        return False
    if isinstance(expected, bool) or isinstance(found, bool):
        return found is expected
    if isinstance(expected, (int, float)) and isinstance(found, (int, float)):
        return found == expected or _near(found, expected, tolerance)
    return bool(found == expected)


def _near(found: float, expected: float, tolerance: float) -> bool:
    try:
        return abs(found - expected) <= tolerance
    except OverflowError:
        # A whole number beyond every floating-point one, and one with a fraction.
        return False


Test = InputTest | AssertTest | CallTest


def read_tests(value: Any, *, trusted: bool = False) -> list[Test]:
    """The test cases of a problem.

    Args:
        value: a list of cases, or one; or JSON text of either. A case is text, which is assert
            code; ``{input, output}`` or ``{stdin, stdout}``; ``{assert}``; or
            ``{function, arguments, expected}``, where ``expected`` may be null. Also ``{inputs,
            outputs}`` with lists, and with ``fn_name`` for a function.
        trusted: whether assert code runs in the program's own process.

    Raises:
        ValueError: there are none, one has another form, or assert code cannot run in a process of
            its own, is no Python, or only compares.
    """
    if isinstance(value, str):
        value = _decode_json(value)
    if isinstance(value, Mapping) and "inputs" in value:
        tests = _columns(value)
    elif isinstance(value, (str, Mapping)):
        tests = [_case(value)]
    elif isinstance(value, Sequence):
        tests = [_case(case) for case in value]
    else:
        raise ValueError(f"tests of type {type(value).__name__}; a list of cases is expected")
    if not tests:
        raise ValueError("the problem has no tests")
    return [_judged_as(test, trusted) for test in tests]


def _judged_as(test: Test, trusted: bool) -> Test:
    if not isinstance(test, AssertTest):
        return test
    try:
        fault = fault_of(test.code)
        idle = _always_true_line(test.code)
    except SyntaxError as error:
        raise ValueError(f"assert code in line {error.lineno} is no Python: {error.msg}") from None
    if idle is not None:
        raise ValueError(f"assert code compares in line {idle} and asserts nothing; write assert")
    if fault is not None and not trusted:
        raise ValueError(
            f"assert code {fault}, which cannot leave its process; test functions, or set "
            "assertions=trusted, which programs can deceive"
        )
    return replace(test, trusted=trusted)


def _always_true_line(code: str) -> int | None:
    """The line of a comparison in code that every program passes; None: it may fail."""
    tree = parse_python(code)
    if any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(tree)):
        return None
    return next(
        (
            node.lineno
            for node in tree.body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Compare)
        ),
        None,
    )


def _decode_json(text: str) -> Any:
    if text.lstrip()[:1] not in ("[", "{", '"'):
        return text
    try:
        return json.loads(text)
    except ValueError:
        # Assert code may begin like this too.
        return text


def _columns(value: Mapping[str, Any]) -> list[Test]:
    given, expected, name = value["inputs"], value.get("outputs"), value.get("fn_name")
    if not isinstance(expected, Sequence) or len(given) != len(expected):
        raise ValueError("tests have not as many outputs as inputs")
    pairs = zip(given, expected, strict=True)
    if not name:
        if any(o is None for o in expected):
            raise ValueError("tests have no output where null stands; write the text")
        return [InputTest("" if i is None else _text(i), _text(o)) for i, o in pairs]
    return [CallTest(str(name), list(i), _unwrap_single(o)) for i, o in pairs]


def _unwrap_single(expected: Any) -> Any:
    """Unwrap a single result: data sets of this form hold it in a list."""
    return expected[0] if isinstance(expected, list) and len(expected) == 1 else expected


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _case(case: Any) -> Test:
    if isinstance(case, str):
        return AssertTest(case)
    if not isinstance(case, Mapping):
        raise ValueError(f"a test of type {type(case).__name__}; text or a mapping is expected")

    def first(*names: str) -> Any:
        # Columns of parquet files hold every key, and null where a case has none.
        return next((case[n] for n in names if case.get(n) is not None), _NONE)

    code, function = first("assert", "code"), first("function", "fn_name")
    given, expected = first("input", "stdin"), first("expected", "output", "stdout")
    if code is not _NONE:
        return AssertTest(str(code))
    if function is not _NONE and expected is _NONE and _EXPECTED & set(case):
        # A function that returns nothing.
        expected = None
    if function is not _NONE and expected is not _NONE:
        arguments = first("arguments", "args", "input")
        return CallTest(str(function), [] if arguments is _NONE else list(arguments), expected)
    if expected is not _NONE:
        return InputTest("" if given is _NONE else _text(given), _text(expected))
    keys = f"the keys {', '.join(map(repr, case))}" if case else "no keys"
    raise ValueError(
        f"a test with {keys}; write input and output, assert, or function, arguments and expected"
    )
